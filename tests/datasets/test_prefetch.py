import gc
import threading
import time
import traceback
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import dropout
from torch.utils.data import DataLoader, TensorDataset

from astkit.datasets import Batch, BatchSource, ForeignLoader, Images, Loader, Prefetched, as_loader
from astkit.datasets.prefetch import THREAD
from astkit.rng import isolated
from tests.datasets.toy import DATA, N, Rows, assert_same


class Counted:
    """A source of ``total`` batches that counts what was made and where, and may fail at one."""

    keyed = True
    num_samples = None

    def __init__(self, total=10, fail_at=None):
        self.total, self.fail_at = total, fail_at
        self.made, self.threads, self.closed = 0, [], False

    def __len__(self):
        return self.total

    def batches(self, epoch, order=None, start=0):
        try:
            for number in range(start, self.total):
                if number == self.fail_at:
                    raise KeyError("broken in the making")
                self.made += 1
                self.threads.append(threading.current_thread())
                yield Batch(torch.tensor([number]), torch.ones(1), torch.tensor([number]))
        finally:
            self.closed = True

    def check_labels(self, num_outputs):
        self.outputs = num_outputs


def wait_for(source, made):
    deadline = time.monotonic() + 10
    while source.made < made and time.monotonic() < deadline:
        time.sleep(0.001)


def helpers():
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert helpers() == []


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(0, 3),
    st.one_of(st.none(), st.lists(st.integers(0, N - 1), max_size=30)),
    st.booleans(),
)
def test_batches_are_the_source_s(size, depth, epoch, start, order, resident):
    order = None if order is None else torch.tensor(order, dtype=torch.int64)
    source = Loader(DATA, size, augment=("crop", "flip"), resident=resident)
    ahead = Prefetched(source, depth)
    assert_same(list(source.batches(epoch, order, start)), list(ahead.batches(epoch, order, start)))


def test_follows_the_protocol():
    source = Loader(DATA, 5)
    ahead = Prefetched(source)
    assert isinstance(ahead, BatchSource)
    assert (ahead.num_samples, len(ahead)) == (N, 5)
    assert ahead.keyed
    assert_same(list(ahead.batches(0)), list(as_loader(ahead, "cpu").batches(0)))
    assert ahead.to("cpu") is ahead
    assert ahead.device == torch.device("cpu")
    assert_same(list(source.batches(0)), list(Prefetched(ahead).batches(0)))


def test_workers_and_thread_together():
    source = Loader(Rows(), 4, num_workers=1)
    ahead = Prefetched(source)
    for epoch in (0, 1):
        assert_same(list(Loader(DATA, 4).batches(epoch)), list(ahead.batches(epoch)))
    for _ in ahead.batches(2):
        break
    assert_same(list(Loader(DATA, 4).batches(3)), list(ahead.batches(3)))


@pytest.mark.parametrize("depth", [1, 3])
def test_it_is_ahead_by_depth_and_no_more(depth):
    source = Counted()
    batches = Prefetched(source, depth).batches(0)
    assert source.made == 0  # nothing is made before somebody asks
    for taken in (1, 2, 3):
        next(batches)
        wait_for(source, taken + depth)
        time.sleep(0.02)  # time enough to make one too many
        assert source.made == taken + depth
    assert source.threads[0] is threading.current_thread()
    assert all(thread is not threading.current_thread() for thread in source.threads[1:])
    batches.close()
    assert source.closed


@pytest.mark.parametrize("end", ["close", "forget", "throw", "break"])
def test_leaving_early_leaves_no_thread(end):
    source = Counted()
    batches = Prefetched(source).batches(0)
    next(batches)
    assert len(helpers()) == 1
    if end == "close":
        batches.close()
    elif end == "throw":
        with pytest.raises(ZeroDivisionError):
            batches.throw(ZeroDivisionError())
    elif end == "break":
        for _ in batches:
            break
        del batches
    else:
        del batches
    gc.collect()
    assert helpers() == []
    assert source.closed


@pytest.mark.parametrize("fail_at", [0, 5])
def test_an_error_comes_with_its_traceback_at_its_place(fail_at):
    source = Counted(fail_at=fail_at)
    batches = Prefetched(source, depth=4).batches(0)
    taken = []
    with pytest.raises(KeyError, match="broken in the making") as caught:
        taken.extend(batch.y.item() for batch in batches)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].line == 'raise KeyError("broken in the making")'
    assert source.made == fail_at
    assert source.closed
    assert list(batches) == []


def test_impossible_passes_fail_at_once():
    with pytest.raises(ValueError, match="start is -1"):
        Prefetched(Loader(DATA)).batches(0, start=-1)


@pytest.mark.parametrize("told", [1, 4])
def test_labels_are_checked_however_far_ahead_the_thread_is(told):
    source = Counted()  # checks nothing itself, so what follows is checked when handed over
    ahead = Prefetched(source, depth=3)
    batches = ahead.batches(0)
    for _ in range(told):
        next(batches)
    wait_for(source, told + 3)
    ahead.check_labels(told + 1)
    assert source.outputs == told + 1
    assert next(batches).y.item() == told
    with pytest.raises(ValueError, match=f"Label {told + 1} occurs 1 time in a batch"):
        next(batches)


def test_random_numbers_of_the_consumer_are_its_own():
    def trained(source):
        sums = []
        for step, batch in enumerate(source.batches(0)):
            with isolated("cpu", 0, "step", step):
                sums += [dropout(batch.x).sum() for _ in range(20)]
        return torch.stack(sums)

    source = Loader(DATA, 2, augment=("crop", "flip"))
    before = torch.get_rng_state()
    assert torch.equal(trained(source), trained(Prefetched(source)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "source",
    [
        ForeignLoader(
            DataLoader(TensorDataset(torch.rand(9, 2), torch.arange(9)), 4, shuffle=True)
        ),
        Loader(Rows(), 4),
    ],
    ids=["foreign", "dataset"],
)
def test_a_source_that_may_draw_stays_in_the_consumer_s_thread(source):
    with pytest.warns(UserWarning, match="may draw from torch's default generators.*num_workers=1"):
        ahead = Prefetched(source)
    assert not ahead.keyed
    with isolated("cpu", 1):
        expected = list(source.batches(0))
    with isolated("cpu", 1):
        batches = ahead.batches(0)
        first = next(batches)
        assert helpers() == []
        assert_same(expected, [first, *batches])


def test_what_is_threaded_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Prefetched(Loader(DATA))
        Prefetched(Loader(Rows(), num_workers=1))


def test_impossible_arguments():
    with pytest.raises(ValueError, match="depth is 0; pass 1 batch or more"):
        Prefetched(Loader(DATA), depth=0)
    with pytest.raises(ValueError, match="source is a DataLoader; pass a Loader, or as_loader"):
        Prefetched(DataLoader(TensorDataset(torch.rand(3))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_computes_on_finished_batches(resident):
    big = Images(
        torch.randint(0, 256, (512, 3, 64, 64)).to(torch.uint8),
        DATA.labels[:1].expand(512),
        DATA.classes,
        "big",
    )
    options = {"augment": ("crop", "flip"), "device": "cuda", "resident": resident}
    source = Loader(big, 32, **options)
    expected = [batch.x.cpu() for batch in source.batches(0)]
    a = torch.rand(2048, 2048, device="cuda")
    for _ in range(5):
        for batch, x in zip(Prefetched(source).batches(0), expected, strict=True):
            a = (a @ a).clamp_(0, 1)  # keeps the consumer's stream behind the copies
            total = batch.x.double().sum()
            assert torch.equal(batch.x.cpu(), x)
            torch.testing.assert_close(total.cpu(), x.double().sum())
            del batch
