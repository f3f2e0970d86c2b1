"""Data: digits, CIFAR-10 and image folders, their splits, and loaders of batches."""

from astkit.batch import Batch
from astkit.datasets.foreign import ForeignLoader, as_loader, indexed, resized
from astkit.datasets.images import Images
from astkit.datasets.loaders import BatchSource, Loader
from astkit.datasets.mapped import MappedImages, open_mapped, write_mapped
from astkit.datasets.parquet import ParquetLoader
from astkit.datasets.prefetch import prefetched
from astkit.datasets.sources import load
from astkit.datasets.splits import Splits, split, stratified

__all__ = [
    "Batch",
    "BatchSource",
    "ForeignLoader",
    "Images",
    "Loader",
    "MappedImages",
    "ParquetLoader",
    "Splits",
    "as_loader",
    "indexed",
    "load",
    "open_mapped",
    "prefetched",
    "resized",
    "split",
    "stratified",
    "write_mapped",
]
