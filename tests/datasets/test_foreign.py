import itertools
from functools import partial

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from astkit import distributed
from astkit.datasets import BatchSource, Images, Loader, as_loader, indexed
from astkit.datasets.foreign import ForeignLoader, divide, open_data, resized
from tests import build
from tests.build import refused

X, Y = torch.randn(10, 3), torch.arange(10) % 3
PAIRS = TensorDataset(X, Y)
ENDLESS = build.as_stream(itertools.repeat((X[0], 1)))
IMAGES = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4), tuple("abcd"), "t")


class Planned:
    """A sampler with a policy, as `Policy.sampler` makes it."""

    policy = "any"

    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        return 10


class Turned(IterableDataset):
    """The rows, begun with another one in each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (PAIRS[(row + self.epoch) % 10] for row in range(10))


def ordinary(data=PAIRS, **options):
    return DataLoader(data, batch_size=4, **options)


def test_adapts_a_dataloader():
    loader = ForeignLoader(ordinary())
    assert isinstance(loader, BatchSource)
    assert (loader.num_samples, len(loader)) == (10, 3)
    assert loader.batch_size == 4
    batches = list(loader.batches(0))
    assert [batch.index for batch in batches] == [None] * 3  # which rows, it does not say
    assert torch.equal(torch.cat([batch.x for batch in batches]), X)
    assert torch.equal(torch.cat([batch.y for batch in loader.batches(1)]), Y)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_indexed_data_set_says_which_rows(workers):
    loader = ForeignLoader(ordinary(indexed(PAIRS), shuffle=True, num_workers=workers))
    assert loader.num_samples == 10
    rows = []
    for batch in loader.batches(0):
        assert torch.equal(batch.x, X[batch.index])
        assert torch.equal(batch.y, Y[batch.index])
        rows += batch.index.tolist()
    assert sorted(rows) == list(range(10))


def test_indexed_data_of_any_kind():
    class Fetching(list):
        def __getitems__(self, rows):
            return [("fetched", row) for row in rows]

    for data, expected in (([5, 6], [(1, 6), (0, 5)]), (Fetching("ab"), [(1, ("fetched", 1))])):
        held = indexed(data)
        assert (len(held), held[0], held.indexed_data) == (2, (0, data[0]), data)
        rows = [row for row, _ in expected]
        assert held.__getitems__(rows) == expected
    for other, why in ((ENDLESS, "has no length"), (ordinary(), "holds batches")):
        refused((partial(indexed, other), f"which {why}, so its rows have no index"))


def test_an_unsized_loader_says_so():
    loader = ForeignLoader(iter([(X, Y)]))
    assert loader.num_samples is None
    with pytest.raises(TypeError):
        len(loader)
    assert len(list(loader.batches(0))) == 1
    refused((lambda: list(loader.batches(1)), r"yielded no batch.*more than once"))


def test_what_a_foreign_loader_cannot_do_it_says():
    loader, planned = ForeignLoader(ordinary()), BatchSampler(Planned(), 2, False)
    refused(
        (lambda: loader.batches(0, order=torch.arange(3)), "pass its dataset instead, with batch"),
        (lambda: as_loader(3), "loader is a int, which cannot be iterated"),
        (lambda: resized(loader, 8), "batch_size is 8, but a DataLoader forms the batches itself"),
        (lambda: as_loader((X, Y), batch_size=8), r"but a tuple forms .*TensorDataset\(x, y\)"),
        (lambda: as_loader(ordinary(sampler=Planned())), "a policy's sampler, .*policy=..."),
        (lambda: as_loader(DataLoader(PAIRS, batch_sampler=planned)), "has a policy's sampler"),
    )


def test_anything_that_trains_becomes_a_source_and_stays_as_it_is():
    loader = Loader(IMAGES, 2, seed=3)
    for source in (loader, ForeignLoader(ordinary())):
        copied = as_loader(source, "cpu")
        assert copied is not source
        assert type(copied) is type(source)
    assert as_loader(loader, batch_size=3).batch_size == 3
    assert (loader.batch_size, as_loader(loader).batch_size) == (2, 2)
    foreign = ForeignLoader(ordinary())
    moved = as_loader(foreign, "meta")
    assert (moved.device.type, foreign.device.type) == ("meta", "cpu")
    assert isinstance(as_loader(ordinary()), ForeignLoader)
    for data, size in ((IMAGES, 4), (PAIRS, 10), (indexed(PAIRS), 10), (indexed([*PAIRS]), 10)):
        made = as_loader(data, seed=5)
        assert isinstance(made, Loader)
        assert (made.batch_size, made.seed, made.shuffle, made.num_samples) == (128, 5, True, size)
        assert as_loader(data, batch_size=7, shuffle=False).order(0).tolist() == list(range(size))
    for stream in (Turned(), DataLoader(Turned(), 5)):
        assert as_loader(stream, batch_size=5).streamed
    assert not as_loader(ordinary()).streamed
    endless = as_loader(ENDLESS, batch_size=3)
    assert next(iter(endless.batches(0))).y.tolist() == [1, 1, 1]


def spread(**options):
    """A sampler of process 1 of 2."""
    return DistributedSampler(PAIRS, num_replicas=2, rank=1, **options)


def test_a_sampler_inside_a_batch_sampler_is_told_the_epoch():
    for options in ({"batch_sampler": BatchSampler(spread(), 5, False)}, {"sampler": spread()}):
        source = as_loader(DataLoader(PAIRS, **options))
        orders = []
        for epoch in range(2):
            sampler = spread()
            sampler.set_epoch(epoch)
            orders.append(torch.cat([batch.x for batch in source.batches(epoch)]))
            assert torch.equal(orders[-1], X[list(sampler)])
        assert not torch.equal(*orders)


def test_several_processes_load_different_rows_or_are_refused(monkeypatch):
    class Own:
        """A batch sampler that divides the rows in its own way."""

        def __iter__(self):
            return iter([[1, 3], [5, 7]])

    monkeypatch.setattr(distributed, "world", lambda: 2)
    for options in (
        {"sampler": spread(), "batch_size": 5},
        {"batch_sampler": BatchSampler(spread(), 5, False)},
        {"batch_sampler": Own()},
    ):
        source = as_loader(DataLoader(PAIRS, **options))
        assert divide(source) is source
    same = "all 2 processes would train on the same rows of the"
    for loader, kind in (
        (ordinary(), "DataLoader"),
        (ordinary(shuffle=True), "DataLoader"),
        (DataLoader(PAIRS, batch_sampler=BatchSampler(RandomSampler(PAIRS), 5, False)), "DataL"),
        ([(X, Y)], "list: pass the data set instead, with batch_size=..., or a DataLoader with sa"),
    ):
        with pytest.raises(ValueError, match=f"{same} {kind}"):
            divide(as_loader(loader))
    for stream in (Turned(), DataLoader(Turned(), 5)):
        source = as_loader(stream)
        with pytest.warns(UserWarning, match=f"{same} stream, unless it divides them itself"):
            assert divide(source) is source


class Mixed(DataLoader):
    """Changes its batches, as mixup does."""

    def __iter__(self):
        return ((x, 1 - y) for x, y in super().__iter__())


class Named(DataLoader):
    """Changes nothing."""


def test_only_loaders_whose_batches_a_loader_can_make_are_converted():
    rows = indexed(PAIRS)
    for loader in (
        ordinary(),
        ordinary(shuffle=True, drop_last=True, num_workers=2),
        Named(PAIRS, 4),
        ordinary(collate_fn=list),
        ordinary(rows),
    ):
        assert isinstance(open_data(loader), Loader)
    for other in (
        PAIRS,
        [(X, Y)],
        Mixed(PAIRS, 4),  # labels would be those without mixing
        DataLoader(Turned(), 5),
        DataLoader(PAIRS, batch_size=None),
        DataLoader(PAIRS, batch_sampler=BatchSampler(RandomSampler(PAIRS), 5, False)),
        ordinary(sampler=Planned()),
        ordinary(sampler=RandomSampler(PAIRS, replacement=True)),
        ordinary(sampler=RandomSampler(PAIRS, num_samples=5)),
        ordinary(num_workers=1, worker_init_fn=print),
        ordinary(rows, collate_fn=list),
    ):
        assert open_data(other) is other


def test_sources_of_a_loader_that_was_looked_at_have_passes_of_their_own():
    loader = Loader(TensorDataset(torch.arange(64.0)[:, None], torch.zeros(64).long()), 8)
    next(loader.batches(0))
    one, other = as_loader(loader), as_loader(loader)
    first, second = one.batches(1), other.batches(2)
    for batch in [part for pair in zip(first, second, strict=True) for part in pair]:
        assert torch.equal(batch.x[:, 0].long(), batch.index)
