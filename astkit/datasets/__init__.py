"""Data: digits, Fashion-MNIST, CIFAR-10 and image folders, their splits, and loaders of batches."""

from astkit.datasets.batch import Batch as Batch
from astkit.datasets.foreign import as_loader as as_loader
from astkit.datasets.foreign import indexed as indexed
from astkit.datasets.images import Images as Images
from astkit.datasets.loader import BatchSource as BatchSource
from astkit.datasets.loader import Loader as Loader
from astkit.datasets.mapped import open_mapped as open_mapped
from astkit.datasets.mapped import write_mapped as write_mapped
from astkit.datasets.sources import Splits as Splits
from astkit.datasets.sources import load as load
from astkit.datasets.sources import split as split
from astkit.datasets.sources import stratified as stratified
