import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from astkit.datasets import BatchSource, Loader
from astkit.datasets.settings import fits
from tests.datasets.toy import BOTH, DATA, STATS, N, Rows, assert_same, passes


def test_follows_the_protocol():
    loader = Loader(DATA, 5)
    assert isinstance(loader, BatchSource)
    assert (loader.num_samples, len(loader)) == (N, 5)
    assert len(Loader(DATA, 5, drop_last=True)) == len(passes(Loader(DATA, 5, drop_last=True))) == 4
    assert loader.to("cpu") is loader


def test_plain_batches_are_the_rows():
    index, x, y = passes(Loader(DATA, N, shuffle=False, normalize=STATS))[0]
    assert index.tolist() == list(range(N))
    assert torch.equal(y, DATA.labels)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in STATS)
    torch.testing.assert_close(x, (DATA.images.float() / 255 - mean) / std)
    torch.testing.assert_close(passes(Loader(DATA, N, shuffle=False))[0][1], DATA.images / 255)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 30),
    st.sampled_from([(), ("crop",), ("flip",), BOTH]),
    st.integers(0, 3),
    st.booleans(),
    st.one_of(st.none(), st.lists(st.integers(0, N - 1), max_size=30)),
)
def test_resident_equals_streamed_equals_dataset(size, augment, epoch, drop_last, order):
    order = None if order is None else torch.tensor(order, dtype=torch.int64)
    options = {"augment": augment, "seed": 7, "normalize": STATS, "drop_last": drop_last}
    resident = Loader(DATA, size, resident=True, **options)
    streamed = Loader(DATA, size, resident=False, **options)
    assert resident.settings.resident
    assert not streamed.settings.resident
    expected = passes(resident, epoch, order=order)
    assert_same(expected, passes(streamed, epoch, order=order))
    assert_same(expected, passes(Loader(Rows(), size, **options), epoch, order=order))


def test_workers_change_nothing_and_live_on():
    options = {"augment": BOTH, "normalize": STATS}
    loader = Loader(DATA, 4, resident=False, num_workers=2, **options)
    for epoch in (0, 1):
        assert_same(passes(loader, epoch), passes(Loader(DATA, 4, **options), epoch))
    stale = loader.batches(2)
    next(stale)
    assert_same(passes(loader, 3), passes(Loader(DATA, 4, **options), 3))
    with pytest.raises(RuntimeError, match="Another pass"):
        next(stale)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 8), st.booleans())
def test_a_resumed_pass_is_the_tail(size, start, resident):
    loader = Loader(DATA, size, augment=BOTH, resident=resident)
    assert_same(passes(loader, 2)[start:], passes(loader, 2, start=start))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(N)), st.integers(1, 30), st.integers(0, 3))
def test_a_row_looks_the_same_in_any_batch(order, size, epoch):
    alone = Loader(DATA, 1, augment=BOTH, shuffle=False)
    images = torch.cat([batch.x for batch in alone.batches(epoch)])
    for index, x, y in Loader(DATA, size, augment=BOTH).batches(epoch, torch.tensor(order)):
        assert torch.equal(x, images[index])
        assert torch.equal(y, DATA.labels[index])


def test_each_pass_visits_every_row_in_its_own_order():
    loader = Loader(DATA, 4)
    orders = [torch.cat([batch.index for batch in loader.batches(epoch)]) for epoch in (0, 1)]
    for order in orders:
        assert order.sort().values.tolist() == list(range(N))
    assert not torch.equal(*orders)


def test_rows_left_out_are_never_loaded():
    data = Rows()
    loader = Loader(data, 3)
    passes(loader, order=torch.tensor([4, 9, 1, 7, 2]), start=1)
    assert data.read == [7, 2]
    assert passes(loader, order=torch.tensor([], dtype=torch.int64)) == []


def test_global_generators_stay_where_they_are():
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    for data, resident in ((DATA, True), (DATA, False), (Rows(), "auto")):
        passes(Loader(data, 4, augment=BOTH, resident=resident))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()
    assert before[2] == random.getstate()


def test_floats_and_python_labels_pass_through():
    loader = Loader(Rows(lambda x: x.float() - 9, int), N, shuffle=False, normalize=STATS)
    _, x, y = passes(loader)[0]
    assert torch.equal(x, DATA.images.float() - 9)
    assert y.dtype == torch.int64


def test_items_of_any_structure_pass():
    for data, x, y in (
        (Rows(torch.Tensor.float, float), DATA.images.float(), DATA.labels.double()),
        (Rows(lambda x: (x, x)), [DATA.images, DATA.images], DATA.labels),
        ([{"x": image, "name": "n"} for image in DATA.images], None, None),
        ([image.float() for image in DATA.images], DATA.images.float(), DATA.images.float()),
    ):
        (batch,) = Loader(data, N, shuffle=False).batches(0)
        assert batch.rows == N
        if x is None:
            assert batch.y is batch.x
            assert torch.equal(batch.x["x"], DATA.images)
            assert batch.x["name"] == ["n"] * N
        elif isinstance(x, list):
            assert all(torch.equal(*pair) for pair in zip(batch.x, x, strict=True))
        else:
            assert torch.equal(batch.x, x)
            assert torch.equal(batch.y, y)


def test_a_collate_function_of_ones_own():
    def padded(items):
        x, y = zip(*items, strict=True)
        return torch.nn.utils.rnn.pad_sequence(list(x), batch_first=True), torch.stack(y)

    ragged = [(torch.ones(1 + row % 3), torch.tensor(row)) for row in range(6)]
    with pytest.raises(ValueError, match=r"cannot be stacked.*or pass collate_fn\.$"):
        passes(Loader(ragged, 3))
    for workers in (0, 1):
        loader = Loader(ragged, 3, collate_fn=padded, num_workers=workers, shuffle=False)
        for index, x, y in loader.batches(0):
            assert torch.equal(index, y)
            assert x.sum(1).tolist() == [1, 2, 3]


def test_unusable_items():
    for data, words in (
        (Rows(label=str), "contains tuple without a tensor of shape"),
        (Rows(lambda x: object()), "cannot be stacked"),
        (Rows(lambda x: torch.zeros(int(x[0, 0, 0]))), "cannot be stacked"),
    ):
        with pytest.raises(ValueError, match=words):
            passes(Loader(data, 4))


def test_labels_beyond_the_outputs_are_named():
    with pytest.raises(ValueError, match="Label 3 occurs 5 times in 'toy', but the model has 3"):
        Loader(DATA).check_labels(3)
    Loader(DATA).check_labels(4)
    loader = Loader(Rows(), N)
    loader.check_labels(3)
    with pytest.raises(ValueError, match="Label 3 occurs 5 times in a batch"):
        passes(loader)
    loader.check_labels(4)
    passes(loader)
    ignored = Loader(TensorDataset(torch.zeros(4, 2), torch.tensor([0, -100, -100, 1])), 2)
    ignored.check_labels(2)
    assert sorted(label for _, _, y in passes(ignored) for label in y.tolist()) == [
        -100,
        -100,
        0,
        1,
    ]


def test_bytes_that_are_no_images_are_left_alone():
    tokens = torch.arange(12, dtype=torch.uint8).reshape(4, 3)
    loader = Loader(TensorDataset(tokens, torch.arange(4)), 4, shuffle=False)
    _, x, _ = passes(loader)[0]
    assert x.equal(tokens)


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


def test_impossible_arguments():
    for changes, words in (
        ({"batch_size": 0}, "batch_size is 0"),
        ({"augment": ("spin",)}, "augment has 'spin'"),
        ({"data": []}, "data is empty"),
        ({"data": Endless()}, "no rows to choose from"),
        ({"num_workers": -1}, "num_workers is -1; pass 0 or more, or 'auto'"),
        ({"num_workers": "many"}, "num_workers is 'many'"),
        ({"num_workers": 1.5}, "num_workers is 1.5"),
        ({"timeout_s": 0}, "timeout_s is 0; pass more than 0 seconds"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"resident": "yes"}, "resident is 'yes'"),
        ({"data": Rows(), "resident": True}, "only Images can be kept"),
        ({"normalize": (0.5, 0.0)}, "positive deviations"),
        ({"normalize": ([0.5, 0.5], [1, 1])}, "2 means and 2 deviations for 3 channels"),
    ):
        with pytest.raises(ValueError, match=words):
            Loader(**{"data": DATA, **changes})


def test_impossible_passes_fail_at_once():
    for options, words in (
        ({"order": torch.tensor([0, N])}, "order reaches from 0 to 23"),
        ({"order": torch.tensor([-1])}, "order reaches from -1"),
        ({"order": torch.tensor([0.5])}, "order is a torch.float32"),
        ({"start": -1}, "start is -1"),
    ):
        with pytest.raises(ValueError, match=words):
            Loader(DATA).batches(0, **options)


def test_residency_asks_for_free_memory(monkeypatch):
    class Small:
        @staticmethod
        def mem_get_info(device):
            return 4 * DATA.images.numel() - 1, 10**12

    monkeypatch.setattr(torch, "get_device_module", lambda device: Small)
    assert fits(DATA.images, torch.device("cpu"))
    assert not fits(DATA.images, torch.device("cuda"))
    assert fits(DATA.images[1:], torch.device("cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_sees_the_same_batches(resident):
    options = {"augment": BOTH, "normalize": STATS}
    gpu = passes(Loader(DATA, 4, device="cuda", resident=resident, **options))
    assert gpu[0][1].is_cuda
    assert_same(
        [tuple(part.cpu() for part in batch) for batch in gpu], passes(Loader(DATA, 4, **options))
    )
