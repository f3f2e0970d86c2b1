"""Data several times larger than a limit train with less memory than that limit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
SHARED = Path(os.environ.get("ASTKIT_SHARED_DATA", HERE.parents[3] / "shared" / "data"))
SIDE = 64  # pixels
ROW = 3 * SIDE * SIDE  # bytes

# RssFile is left out: pages of a mapped file are the system's to take back
SCRIPT = """
import json, sys, threading, time
import torch
from astkit.datasets import Images, Loader, ParquetLoader, prefetched, write_mapped, open_mapped

kinds, folder, rows, side, batch = sys.argv[1].split(), sys.argv[2], *map(int, sys.argv[3:6])
torch.set_num_threads(1)

def used():
    lines = (line.split() for line in open("/proc/self/status"))
    return sum(int(w[1]) for w in lines if w[0] in ("RssAnon:", "RssShmem:")) * 1024

class Peak(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.over = 0, threading.Event()
    def run(self):
        while not self.over.wait(0.002):
            self.peak = max(self.peak, used())
    def __enter__(self):
        self.start()
        return self
    def __exit__(self, *_):
        self.over.set()
        self.join()
        self.peak = max(self.peak, used())

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 8, stride=8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
)
model(torch.zeros(2, 3, side, side))
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def train(source, ahead=False):
    seen = 0
    batches = source.batches(0)
    for batch in prefetched(batches) if ahead else batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
        seen += len(batch.y)
    return seen

class Noise:
    def __len__(self):
        return rows
    def __getitem__(self, row):
        return torch.full((3, side, side), row % 256, dtype=torch.uint8), row % 10

options = {"augment": ("crop", "flip"), "normalize": (0.5, 0.25)}
few = torch.zeros(128, 3, side, side, dtype=torch.uint8)
few = Images(few, torch.arange(128) % 10, tuple("0123456789"), "few")
if kinds == ["parquet"]:  # what the readers themselves take is no data
    import io, os, tempfile, pyarrow, pyarrow.parquet
    from PIL import Image
    png, small = io.BytesIO(), os.path.join(tempfile.mkdtemp(), "train-0.parquet")
    Image.new("RGB", (side, side)).save(png, "PNG")
    table = pyarrow.table({"img": [png.getvalue()] * batch, "label": [0] * batch})
    pyarrow.parquet.write_table(table, small)
with Peak() as need:
    train(Loader(few, batch, resident=False, **options))
    if kinds == ["parquet"]:
        train(ParquetLoader(small, batch, **options))
above, seen = [], []
for kind in kinds:
    with Peak() as measured:
        if kind == "parquet":
            source = ParquetLoader(folder, batch, buffer_rows=2048, **options)
        else:
            data = write_mapped(folder, Noise()) if kind == kinds[0] else open_mapped(folder)
            if kind == "memory":  # the control: the same images, copied
                data = Images(data.images.clone(), data.labels, data.classes, "copy")
            workers = 1 if kind == "workers" else 0
            source = Loader(data, batch, num_workers=workers, **options)
        seen.append(train(source, kind == "ahead"))
    above.append(measured.peak - need.peak)
print(json.dumps({"above": above, "seen": seen}))
"""


def measured(kinds, folder, limit):
    """Bytes above the need of model and interpreter, in a pass over ``4 * limit`` bytes each."""
    rows = 4 * limit // ROW + 1
    arguments = [kinds, folder, rows, 32 if kinds == "parquet" else SIDE, 32]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert set(found["seen"]) == {50_000 if kinds == "parquet" else rows}
    return found["above"]


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs /proc to tell kinds of memory apart"
)


@pytest.mark.full
def test_mapped_images_stay_under_the_limit_and_images_in_memory_do_not(tmp_path):
    mapped, copied = measured("ahead memory", tmp_path / "set", limit=32 << 20)
    assert mapped < 32 << 20
    assert copied > 96 << 20


@pytest.mark.full
@pytest.mark.parametrize("kind", ["mapped", "ahead", "workers"])
def test_a_quarter_of_a_gigabyte_in_64_megabytes(kind, tmp_path):
    assert measured(kind, tmp_path / "set", limit=64 << 20)[0] < 64 << 20


@pytest.mark.full
def test_streamed_parquet_stays_under_the_limit():
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    folder = SHARED / "cifar10-jpeg"
    if not list(folder.glob("train-*.parquet")):
        pytest.skip(f"{folder} has no parquet files; set ASTKIT_SHARED_DATA to run this")
    limit = 50_000 * 3 * 32 * 32 // 4
    assert measured("parquet", folder, limit)[0] < limit
