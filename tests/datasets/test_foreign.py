import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from astkit.datasets import BatchSource, ForeignLoader, Images, Loader, as_loader

X, Y = torch.randn(10, 3), torch.arange(10) % 3


def ordinary(**options):
    return DataLoader(TensorDataset(X, Y), batch_size=4, **options)


def test_adapts_a_dataloader():
    loader = ForeignLoader(ordinary())
    assert isinstance(loader, BatchSource)
    assert (loader.num_samples, loader.num_classes, len(loader)) == (10, None, 3)
    assert loader.batch_size == 4
    batches = list(loader.batches(0))
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(10))
    assert torch.equal(torch.cat([batch.x for batch in batches]), X)
    assert [batch.index.tolist() for batch in loader.batches(1, start=2)] == [[8, 9]]


def test_triples_keep_their_index():
    rows = DataLoader(TensorDataset(torch.arange(10) + 50, X, Y), batch_size=4)
    assert next(ForeignLoader(rows).batches(0)).index.tolist() == [50, 51, 52, 53]


def test_an_unsized_loader_says_so():
    loader = ForeignLoader(iter([(X, Y)]))
    assert loader.num_samples is None
    with pytest.raises(TypeError):
        len(loader)
    assert len(list(loader.batches(0))) == 1
    with pytest.raises(ValueError, match=r"yielded no batch.*more than once"):
        list(loader.batches(1))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (X, "yielded .Tensor"),
        ((X,), "must yield tensor pairs"),
        ((X, X, X, Y), "must yield tensor pairs"),
        ((X, "a"), "yielded .Tensor, str."),
        ({"x": X, "y": Y}, "yielded .dict"),
        ((X, Y.float()), "labels of a batch are torch.float32"),
        ((X, Y[:4]), r"x of shape \[10, 3\] with y of shape \[4\]"),
    ],
)
def test_names_what_is_no_batch(item, words):
    with pytest.raises(ValueError, match=words):
        next(ForeignLoader([item]).batches(0))


def test_cannot_select_before_loading():
    with pytest.raises(ValueError, match=r"astkit\.datasets\.Loader"):
        ForeignLoader(ordinary()).batches(0, order=torch.arange(3))
    with pytest.raises(ValueError, match="start is -1"):
        ForeignLoader(ordinary()).batches(0, start=-1)


def test_labels_are_checked_batch_by_batch():
    loader = ForeignLoader(ordinary())
    loader.check_labels(2)
    with pytest.raises(ValueError, match="Label 2 occurs 1 time in batch 0, but the model has 2"):
        next(loader.batches(0))


def test_as_loader():
    images = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4), tuple("abcd"), "t")
    loader = Loader(images)
    assert as_loader(loader, "cpu") is loader
    assert isinstance(as_loader(ordinary()), ForeignLoader)
    foreign = ForeignLoader(ordinary())
    assert as_loader(foreign) is foreign
    for bare in (images, TensorDataset(X, Y)):
        with pytest.raises(ValueError, match="wrap it first: Loader"):
            as_loader(bare)
    with pytest.raises(ValueError, match="loader is a int, which cannot be iterated"):
        as_loader(3)
