"""Real inputs: digits, CIFAR-10 and image folders, split fairly and fed in batches."""

from astkit.datasets.foreign import ForeignLoader, as_loader
from astkit.datasets.images import Images
from astkit.datasets.loaders import Batch, BatchSource, Loader
from astkit.datasets.sources import load
from astkit.datasets.splits import Splits, split, stratified

__all__ = [
    "Batch",
    "BatchSource",
    "ForeignLoader",
    "Images",
    "Loader",
    "Splits",
    "as_loader",
    "load",
    "split",
    "stratified",
]
