"""Data several times larger than a limit train with less memory than that limit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SIDE = 64  # pixels
ROW = 3 * SIDE * SIDE  # bytes

# RssFile is left out: pages of a mapped file are the system's to take back
SCRIPT = """
import json, os, sys, threading, time
import torch
from astkit.datasets import Images, Loader, as_loader, open_mapped, write_mapped

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

def train(source):
    seen = 0
    for batch in source.batches(0):
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

def items(rows):
    for row in range(rows):
        yield {"pixels": Noise()[row][0].numpy().tobytes(), "label": row % 10}

def stored(kind, folder, rows):  # images in files that another library reads
    def pair(items):
        pixels = [torch.frombuffer(bytearray(item["pixels"]), dtype=torch.uint8) for item in items]
        labels = torch.tensor([int(item["label"]) for item in items])
        return torch.stack(pixels).view(-1, 3, side, side) / 255, labels
    if kind == "tar":
        import webdataset
        os.makedirs(folder)
        with webdataset.ShardWriter(folder + "/%03d.tar", maxsize=4 << 20, verbose=0) as writer:
            for row, item in enumerate(items(rows)):
                writer.write({"__key__": str(row), "pixels": item["pixels"], "cls": item["label"]})
        shards = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        data = webdataset.WebDataset(shards, shardshuffle=8, detshuffle=True, seed=0)
        data = data.compose(webdataset.detshuffle(200)).rename(label="cls")
        return as_loader(torch.utils.data.DataLoader(data, batch, collate_fn=pair))
    import datasets
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_generator(items, cache_dir=folder, gen_kwargs={"rows": rows})
    assert table.cache_files  # memory-mapped
    if kind == "arrow":
        return Loader(table, batch, collate_fn=pair)
    paths = [folder + f"/{shard}.parquet" for shard in range(16)]
    for shard, path in enumerate(paths):
        table.shard(16, shard, contiguous=True).to_parquet(path, batch_size=100)
    del table
    data = datasets.IterableDataset.from_parquet(paths)
    data = data.shuffle(seed=0, buffer_size=200, max_buffer_input_shards=1)
    return as_loader(torch.utils.data.DataLoader(data, batch, collate_fn=pair))

with Peak() as need:  # what the readers themselves take is no data
    train(Loader(few, batch, resident=False, **options))
    if kinds[0] in ("arrow", "stream", "tar"):
        train(stored(kinds[0], folder + "-few", 4 * batch))
above, seen = [], []
for kind in kinds:
    with Peak() as measured:
        if kind in ("arrow", "stream", "tar"):
            source = stored(kind, folder, rows)
        else:
            data = write_mapped(folder, Noise()) if kind == kinds[0] else open_mapped(folder)
            if kind == "memory":  # the control: the same images, copied
                data = Images(data.images.clone(), data.labels, data.classes, "copy")
            workers = 1 if kind == "workers" else 0
            source = Loader(data, batch, num_workers=workers, **options)
        seen.append(train(source))
    above.append(measured.peak - need.peak)
print(json.dumps({"above": above, "seen": seen}))
"""


def measured(kinds, folder, limit):
    """Bytes above the need of model and interpreter, in a pass over ``4 * limit`` bytes each."""
    rows = 4 * limit // ROW + 1
    arguments = [kinds, folder, rows, SIDE, 32]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert set(found["seen"]) == {rows}
    return found["above"]


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs /proc to tell kinds of memory apart"
)


@pytest.mark.full
def test_mapped_images_stay_under_the_limit_and_images_in_memory_do_not(tmp_path):
    mapped, copied = measured("mapped memory", tmp_path / "set", limit=32 << 20)
    assert mapped < 32 << 20
    assert copied > 96 << 20


@pytest.mark.full
@pytest.mark.parametrize("kind", ["mapped", "workers"])
def test_a_quarter_of_a_gigabyte_in_64_megabytes(kind, tmp_path):
    assert measured(kind, tmp_path / "set", limit=64 << 20)[0] < 64 << 20


@pytest.mark.full
@pytest.mark.parametrize(("kind", "share"), [("arrow", 1), ("stream", 2), ("tar", 1)])
def test_other_libraries_files_take_a_bounded_share_of_their_size(kind, share, tmp_path):
    """Of 4 x 64 MB; shuffling a stream keeps tables of several of its files."""
    package = "webdataset" if kind == "tar" else "datasets"
    pytest.importorskip(package, reason=f"{package} is not installed")
    assert measured(kind, tmp_path / "set", limit=64 << 20)[0] < share * (64 << 20)
