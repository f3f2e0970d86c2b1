"""Batches of a `Loader`: the same however the rows are loaded, and fixed by seed, epoch and row."""

import gc
import multiprocessing
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

import astkit.datasets.loader as module
from astkit.datasets import Loader, as_loader, indexed, write_mapped
from astkit.datasets.loader import Augment, automatic_resident, automatic_workers, crop
from tests import build
from tests.datasets.toy import BOTH, DATA, STATS, N, Rows, assert_same, passes


def drawn(row):
    """A row drawn from every default generator, as random transforms do."""
    return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))]), row


NOISY = build.computed(N, drawn)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    # how long torch waits for a worker to leave before it terminates it
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    return write_mapped(tmp_path_factory.mktemp("mapped") / "toy", DATA)


# --- batches ---------------------------------------------------------------------------------


orders = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, 3)), max_size=30)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, N),
    st.sampled_from([(), ("crop",), ("flip",), BOTH]),
    st.integers(0, 3),
    st.booleans(),
    st.none() | orders,
    st.integers(0, 6),
)
def test_however_rows_are_loaded_batches_are_the_same(
    mapped, size, augment, epoch, drop_last, visits, start
):
    chosen = {}
    if visits is not None:
        order, occurrence = torch.tensor(visits, dtype=torch.int64).view(-1, 2).T
        chosen = {"order": order, "occurrence": occurrence}
    options = {"augment": augment, "seed": 7, "normalize": STATS, "drop_last": drop_last}
    resident = Loader(DATA, size, resident=True, **options)
    streamed = Loader(DATA, size, resident=False, **options)
    assert (resident.resident, streamed.resident) == (True, False)
    expected = passes(resident, epoch, **chosen)
    assert visits is not None or len(resident) == len(expected)
    assert_same(expected, passes(streamed, epoch, **chosen))
    assert_same(expected, passes(Loader(Rows(), size, **options), epoch, **chosen))
    assert_same(expected, passes(Loader(mapped, size, **options), epoch, **chosen))
    for loader in (resident, streamed):  # a resumed pass is the tail
        assert_same(expected[start:], passes(loader, epoch, start=start, **chosen))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(N)), st.integers(1, 30), st.integers(0, 3))
def test_a_row_looks_the_same_in_any_batch(order, size, epoch):
    alone = Loader(DATA, 1, augment=BOTH, shuffle=False)
    images = torch.cat([batch.x for batch in alone.batches(epoch)])
    for index, x, y in Loader(DATA, size, augment=BOTH).batches(epoch, torch.tensor(order)):
        assert torch.equal(x, images[index])
        assert torch.equal(y, DATA.labels[index])


def test_a_plain_copy_loads_every_row_as_it_is():
    loader = Loader(DATA, 8, augment=BOTH, drop_last=True, normalize=STATS)
    assert_same(passes(Loader(DATA, 8, normalize=STATS)), passes(loader.plain()))
    assert loader.drop_last


def test_global_generators_stay_where_they_are():
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    for data, resident in ((DATA, True), (DATA, False), (Rows(), "auto")):
        passes(Loader(data, 4, augment=BOTH, resident=resident))
    for workers in (0, 1):
        passes(Loader(NOISY, 4, num_workers=workers))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()
    assert before[2] == random.getstate()


def test_items_of_any_structure_pass():
    one_image = [({"x": DATA.images[0]}, 0)]
    for data, options, words in (
        (one_image, {"augment": ["flip"]}, r"need images, a tensor \[rows, .* give a dict; leave"),
        (one_image, {"normalize": STATS}, "give a dict; leave"),
        (TensorDataset(torch.zeros(4, 2)), {"augment": ["crop"]}, r"give \[4, 2\]; leave"),
    ):
        with pytest.raises(ValueError, match=words):
            passes(Loader(data, **options))
    for data, x, y in (
        (Rows(torch.Tensor.float, float), DATA.images.float(), DATA.labels.double()),
        (Rows(lambda x: x.float() - 9, int), DATA.images.float() - 9, DATA.labels),
        (Rows(lambda x: (x, x)), [DATA.images, DATA.images], DATA.labels),
        ([{"x": image, "name": "n"} for image in DATA.images], None, None),
        ([image.float() for image in DATA.images], DATA.images.float(), DATA.images.float()),
        # uint8 without channels, such as tokens or bytes, are no images
        (TensorDataset(DATA.images[:, 0], DATA.labels), DATA.images[:, 0], DATA.labels),
        (TensorDataset(DATA.images[:, 0, 0], DATA.labels), DATA.images[:, 0, 0], DATA.labels),
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
            assert batch.x.dtype == x.dtype
            assert torch.equal(batch.x, x)
            assert torch.equal(batch.y, y)


def test_a_collate_function_of_ones_own():
    def padded(items):
        x, y = zip(*items, strict=True)
        return torch.nn.utils.rnn.pad_sequence(list(x), batch_first=True), torch.stack(y)

    ragged = [(torch.ones(1 + row % 3), torch.tensor(row)) for row in range(6)]
    for workers in (0, 1):
        loader = Loader(ragged, 3, collate_fn=padded, num_workers=workers, shuffle=False)
        for index, x, y in loader.batches(0):
            assert torch.equal(index, y)
            assert x.sum(1).tolist() == [1, 2, 3]


UNSTACKED = {
    "ragged": ([torch.ones(1 + row % 3) for row in range(6)], "size"),
    "lists": ([[1] * row for row in range(1, 7)], "should be of equal size"),
    "None": ([{"x": None} for _ in range(6)], "NoneType"),
    "objects": ([object() for _ in range(6)], "found <class 'object'>"),
    "other keys": ([{"a": 1} if row < 5 else {"b": 1} for row in range(6)], "'[ab]'"),
}


@pytest.mark.parametrize("load", [Loader, DataLoader])
@pytest.mark.parametrize("name", UNSTACKED)
def test_rows_that_cannot_be_stacked_are_one_sentence(name, load):
    rows, why = UNSTACKED[name]
    words = rf"^the rows of a batch cannot be stacked \(.*{why}.*\): give .* a collate_fn that .*$"
    for workers in (0, 1) if name == "ragged" else (0,):
        source = as_loader(load(build.as_dataset(rows), 6, num_workers=workers))
        with pytest.raises(ValueError, match=words) as caught:
            list(source.batches(0))
        assert "\n" not in str(caught.value)


class Fetching(list):
    """Rows of which a batch at once leaves out every third one."""

    def __getitems__(self, rows):
        return [self[row] for row in rows if row % 3]


PAIRS = [(torch.full((2,), float(row)), row % 2) for row in range(12)]
OTHER_ROWS = {
    "two views of a row": (PAIRS, lambda items: default_collate([*items, *items])),
    "a mapping of fewer rows": (PAIRS, lambda items: {"x": torch.ones(len(items) - 1)}),
    "left out by the data set": (Fetching(PAIRS), default_collate),
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", OTHER_ROWS)
def test_a_batch_of_other_rows_than_its_index_is_refused(name, wrapped):
    """Their losses would be those of other rows."""
    data, collate_fn = OTHER_ROWS[name]
    loader = Loader(data, 6, collate_fn=collate_fn, shuffle=False)
    if wrapped:

        def with_index(pairs):
            index, items = zip(*pairs, strict=True)
            return torch.tensor(index), collate_fn(list(items))

        loader = as_loader(DataLoader(indexed(data), 6, collate_fn=with_index))
    with pytest.raises(ValueError, match=r"a batch of \d+ rows was made from 6 rows"):
        list(loader.batches(0))


# --- workers ---------------------------------------------------------------------------------


def test_workers_change_nothing_and_live_on():
    options = {"augment": BOTH, "normalize": STATS}
    loader = Loader(DATA, 4, resident=False, num_workers=2, **options)
    for epoch in (0, 1):
        assert_same(passes(loader, epoch), passes(Loader(DATA, 4, **options), epoch))
    begun = loader.batches(2)
    first = [next(begun)]
    assert_same(passes(loader, 3), passes(Loader(DATA, 4, **options), 3))
    assert_same([*first, *begun], passes(Loader(DATA, 4, **options), 2))
    next(loader.batches(4))  # a pass that is given up
    assert_same(passes(loader, 5), passes(Loader(DATA, 4, **options), 5))


def noisy_too(items):
    x, y = torch.utils.data.default_collate(items)
    return x + torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))]), y


@pytest.mark.parametrize("collate_fn", [None, noisy_too])
def test_random_transforms_depend_on_the_batch_alone(collate_fn):
    loader = Loader(NOISY, 3, num_workers=2, collate_fn=collate_fn)
    whole = passes(loader, 1)
    assert_same(whole[4:], passes(loader, 1, start=4))  # a resumed run
    alone = Loader(NOISY, 3, collate_fn=collate_fn)
    assert_same(whole, passes(alone, 1))
    assert_same(whole[4:], passes(alone, 1, start=4))
    assert len(torch.cat([x for _, x, _ in whole]).unique()) == 3 * N
    order = torch.arange(3).repeat(2)
    for each in (loader, Loader(NOISY, 3)):
        occurrence = order.new_tensor([0, 0, 0, 1, 1, 1])
        first, again = passes(each, order=order, occurrence=occurrence)
        assert not (first[1] == again[1]).any()
        (later,) = passes(each, order=order[:3], occurrence=occurrence[3:])
        assert not (first[1] == later[1]).any()  # as in the next round of the same epoch


class Awkward(Dataset):
    """Rows that come late, or never, or end the process, as long as ``cure`` is not there."""

    def __init__(self, cure, trouble):
        self.cure, self.trouble = cure, trouble

    def __len__(self):
        return 6

    def __getitem__(self, row):
        if row == 3 and not self.cure.exists():
            self.trouble()
        return torch.tensor([row]), row


def fail():
    raise EOFError("row 3 is unlucky")


@pytest.mark.parametrize(
    ("trouble", "words", "workers"),
    [(lambda: time.sleep(600), "timed out after 1", 1), (fail, "row 3 is unlucky", 0)],
)
def test_a_failing_row_is_an_error_and_the_next_pass_works(
    trouble, words, workers, tmp_path, monkeypatch
):
    gc.collect()
    before = set(multiprocessing.active_children())
    monkeypatch.setattr(module, "TIMEOUT_S", 1 if words.startswith("timed") else 60)
    awkward = Awkward(tmp_path / "cure", trouble)
    loader = Loader(awkward, 1, shuffle=False, num_workers=workers)
    with pytest.raises((RuntimeError, EOFError), match=words) as caught:
        passes(loader)
    del caught  # its traceback keeps the workers
    gc.collect()
    for child in set(multiprocessing.active_children()) - before:
        child.join(10)
        assert not child.is_alive()
    (tmp_path / "cure").touch()
    assert [y.item() for _, _, y in passes(loader)] == list(range(6))


DYING = """
import gc, os, sys, time
from pathlib import Path
from astkit.datasets import Loader
from tests.datasets.test_loader import Awkward, passes

gc.disable()  # an error raised in a callback of the collector is lost
cure = Path(sys.argv[1])
die = lambda: (time.sleep(1), os._exit(7))  # when earlier rows have been fetched from it
loader = Loader(Awkward(cure, die), 1, shuffle=False, num_workers=1)
try:
    passes(loader)
except RuntimeError as error:
    assert "exited unexp" in str(error)
except (ConnectionError, EOFError):
    pass  # it died while an earlier row was being fetched from it
else:
    sys.exit("no error")
cure.touch()
print([y.item() for _, _, y in passes(loader)])
"""


def test_a_dying_worker_is_an_error_and_the_next_pass_works(tmp_path):
    # in a process of its own, since torch raises from a signal handler, wherever the program is
    run = [sys.executable, "-c", DYING, str(tmp_path / "cure")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == str(list(range(6))), done.stderr


# --- rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "gib", "device", "workers"),
    [
        (1, 64, "cpu", 0),  # the only core trains
        (5, 64, "cpu", 4),
        (64, 64, "cpu", 4),
        (1, 64, "cuda", 1),
        (64, 64, "cuda", 8),
        (64, 3, "cuda", 3),
        (64, 0, "cuda", 0),
    ],
)
def test_workers_follow_cores_memory_and_device(cores, gib, device, workers, monkeypatch):
    monkeypatch.setattr(module, "allowed_cpus", lambda: cores)
    monkeypatch.setattr(module, "free_memory", lambda: gib * 2**30)
    assert automatic_workers(NOISY, torch.device(device)) == workers
    for in_memory in (DATA, TensorDataset(torch.zeros(4))):
        assert automatic_workers(in_memory, torch.device(device)) == 0
    if device == "cpu":
        assert Loader(NOISY, num_workers="auto").num_workers == workers
        assert (Loader(NOISY).num_workers, Loader(NOISY, num_workers=1).num_workers) == (0, 1)


def test_free_memory_is_what_the_system_says(monkeypatch):
    monkeypatch.setattr(module, "text_of", lambda path: "MemTotal: 99 kB\nMemAvailable:   50 kB\n")
    assert module.free_memory() == 50 * 1024
    monkeypatch.setattr(module, "text_of", lambda path: "")
    assert module.free_memory() > 2**60


def test_small_images_stay_on_the_device(monkeypatch, mapped):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [automatic_resident(DATA, device) for device in (cpu, cuda)] == [True, True]
    assert [automatic_resident(mapped, device) for device in (cpu, cuda)] == [False, True]
    assert not automatic_resident(Rows(), cuda)
    monkeypatch.setattr(module, "RESIDENT_BYTES", DATA.images.nbytes - 1)
    assert [automatic_resident(DATA, device) for device in (cpu, cuda)] == [True, False]


def test_what_goes_to_a_gpu_is_pinned_and_prefetched():
    for data, workers, options in (
        (Rows(), 2, {"pin_memory": True, "prefetch_factor": 4, "persistent_workers": True}),
        (Rows(), 0, {"pin_memory": False}),  # may be on the GPU already
        (DATA, 0, {"pin_memory": True}),
    ):
        loader = Loader(data, 4, num_workers=workers, resident=False)
        loader.device = torch.device("cuda")
        assert options.items() <= vars(loader._dataloader()).items()
    options = {"pin_memory": False, "prefetch_factor": 2, "timeout": 300.0}
    assert options.items() <= vars(Loader(Rows(), 4, num_workers=2)._dataloader()).items()


def test_unusable_items_and_arguments():
    for data, words in (
        (Rows(label=str), "contains tuple without a tensor of shape"),
        (Rows(lambda x: object()), "default_collate: batch must contain tensors"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            passes(Loader(data, 4))
    for changes, words in (
        ({"batch_size": 0}, "batch_size is 0"),
        ({"normalize": 0.5}, r"normalize is 0.5; pass \(mean, std\), each a number"),
        ({"normalize": (0.5, [0.1, 0.0, 0.1])}, "and std above 0"),
        ({"normalize": (float("nan"), 1)}, "finite"),
        ({"normalize": (0.5, [0.1, 0.1])}, "one for each channel of the images"),
        ({"batch_size": N + 1, "drop_last": True}, "batch_size is 24, and the data have 23 rows"),
        ({"augment": ("spin",)}, "augment is 'spin': give one of crop, flip"),
        ({"data": []}, "data is empty"),
        ({"data": build.as_stream(())}, "no rows to choose from"),
        ({"data": Rows(), "resident": True}, "resident is True for a Rows; pass Images"),
    ):
        with pytest.raises(ValueError, match=words):
            Loader(**{"data": DATA, **changes})
    for order in (torch.ones(N) > 0, torch.arange(3).int(), torch.zeros(1, 1).long()):
        with pytest.raises(ValueError, match="pass the numbers of rows, int64"):
            Loader(DATA).batches(0, order)
    with pytest.raises(ValueError, match="drop_last leaves no batch"):
        as_loader(Loader(DATA, 4, drop_last=True), batch_size=24)


# --- augmentation ----------------------------------------------------------------------------


def augmented(augment, x, seed, epoch):
    rows = torch.arange(len(x))
    return augment.apply(x, augment.draw(rows, torch.zeros_like(rows), seed, epoch))


def slow(x, tops, lefts, flips, pad):
    """Each image by itself, pixel by pixel."""
    out = torch.zeros_like(x)
    height, width = x.shape[2:]
    for i, (top, left, flip) in enumerate(zip(tops, lefts, flips, strict=True)):
        for row in range(height):
            for column in range(width):
                source = width - 1 - column if flip else column
                y, z = row + top - pad, source + left - pad
                if 0 <= y < height and 0 <= z < width:
                    out[i, :, row, column] = x[i, :, y, z]
    return out


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 9),
    st.sampled_from([torch.uint8, torch.float32]),
)
def test_crops_and_flips_equal_the_slow_loop(pad, channels, width, seed, dtype):
    x = torch.randint(1, 256, (5, channels, 4, width)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    top, left = torch.randint(2 * pad + 1, (2, 5), generator=generator)
    expected = slow(x, top.tolist(), left.tolist(), [False] * 5, pad)
    for layout in (torch.contiguous_format, torch.channels_last):
        assert torch.equal(crop(x.contiguous(memory_format=layout), top, left, pad), expected)
    flipped = augmented(Augment(["flip"]), x, seed, 0)
    assert flipped.dtype == dtype
    flips = (flipped != x).flatten(1).any(1)
    assert torch.equal(flipped, slow(x, [0] * 5, [0] * 5, flips.tolist(), 0))


def test_draws_are_those_of_earlier_versions():
    tops, lefts = [6, 4, 7, 8, 3, 0], [5, 7, 2, 8, 8, 1]
    flips = [False, True, True, True, True, False]
    x = torch.rand(6, 2, 5, 5)
    moved = augmented(Augment(BOTH), x, seed=3, epoch=2)
    assert torch.equal(moved, slow(x, tops, lefts, flips, 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_sees_the_same_batches(resident):
    options = {"augment": BOTH, "normalize": STATS}
    gpu = passes(Loader(DATA, 4, device="cuda", resident=resident, **options))
    assert gpu[0][1].is_cuda
    assert_same(
        [tuple(part.cpu() for part in batch) for batch in gpu], passes(Loader(DATA, 4, **options))
    )
