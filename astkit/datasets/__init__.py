"""Data: digits, CIFAR-10 and image folders, their splits, and loaders of batches."""

from astkit.batch import Batch
from astkit.datasets.foreign import as_loader, indexed
from astkit.datasets.images import Images
from astkit.datasets.loaders import BatchSource, Loader
from astkit.datasets.mapped import open_mapped, write_mapped
from astkit.datasets.prefetch import prefetched
from astkit.datasets.sources import load
from astkit.datasets.splits import Splits, split, stratified

__all__ = [
    "Batch",
    "BatchSource",
    "Images",
    "Loader",
    "Splits",
    "as_loader",
    "indexed",
    "load",
    "open_mapped",
    "prefetched",
    "split",
    "stratified",
    "write_mapped",
]
