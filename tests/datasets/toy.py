"""A few images, and what the tests of loaders do with them."""

import torch
from torch.utils.data import Dataset

from astkit.datasets import Images

N = 23
DATA = Images(
    torch.randint(0, 256, (N, 3, 6, 5), generator=torch.Generator().manual_seed(0)).to(torch.uint8),
    torch.arange(N) % 4,
    ("a", "b", "c", "d"),
    "toy",
)
STATS = ([0.5, 0.4, 0.3], [0.25, 0.2, 0.3])
BOTH = ("crop", "flip")


class Rows(Dataset):
    """The same images as a map-style dataset; remembers which rows were read."""

    def __init__(self, convert=lambda x: x, label=lambda y: y):
        self.read = []
        self.convert, self.label = convert, label

    def __len__(self):
        return N

    def __getitem__(self, row):
        self.read.append(row)
        return self.convert(DATA.images[row]), self.label(DATA.labels[row])


def passes(source, epoch=0, **options):
    return [tuple(part.clone() for part in batch) for batch in source.batches(epoch, **options)]


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        for part, twin in zip(one, other, strict=True):
            assert (part is None) == (twin is None)
            assert part is None or part.dtype == twin.dtype
            assert part is None or torch.equal(part, twin)
