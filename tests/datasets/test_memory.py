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
import json, sys, threading
import torch
from astkit.datasets import Images, Loader, open_mapped, write_mapped

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

with Peak() as need:  # what the reader itself takes is no data
    train(Loader(few, batch, resident=False, **options))
above, seen = [], []
for kind in kinds:
    with Peak() as measured:
        data = write_mapped(folder, Noise()) if kind == kinds[0] else open_mapped(folder)
        if kind == "memory":  # the control: the same images, copied
            data = Images(data.images.clone(), data.labels, data.classes, "copy")
        workers = 1 if kind == "workers" else 0
        seen.append(train(Loader(data, batch, num_workers=workers, **options)))
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


@pytest.mark.alone
def test_a_quarter_of_a_gigabyte_in_64_megabytes(tmp_path):
    limit = 64 << 20
    mapped, workers, copied = measured("mapped workers memory", tmp_path / "set", limit)
    assert mapped < limit
    assert workers < limit
    assert copied > 3 * limit  # the control
