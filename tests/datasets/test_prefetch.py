import gc
import threading
import time
import traceback

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import dropout

from astkit.batch import Batch
from astkit.datasets import Images, Loader, prefetched
from astkit.datasets.prefetch import AHEAD, THREAD
from astkit.rng import isolated
from tests.datasets.toy import BOTH, DATA, N, Rows, assert_same


class Counted:
    """``total`` batches that count what was made and where, and may fail at one."""

    def __init__(self, total=10, fail_at=None):
        self.total, self.fail_at = total, fail_at
        self.made, self.threads, self.closed = 0, [], False

    def batches(self):
        try:
            for number in range(self.total):
                if number == self.fail_at:
                    raise KeyError("broken in the making")
                self.made += 1
                self.threads.append(threading.current_thread())
                yield Batch(torch.tensor([number]), torch.ones(1), torch.tensor([number]))
        finally:
            self.closed = True


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
    st.integers(0, 3),
    st.one_of(st.none(), st.lists(st.integers(0, N - 1), max_size=30)),
    st.booleans(),
)
def test_batches_are_the_loaders(size, start, order, resident):
    order = None if order is None else torch.tensor(order, dtype=torch.int64)
    source = Loader(DATA, size, augment=BOTH, resident=resident)
    plain, ahead = (source.batches(1, order, start) for _ in range(2))
    assert_same(list(plain), list(prefetched(ahead)))


def test_workers_and_thread_together():
    source = Loader(Rows(), 4, num_workers=1)
    assert_same(list(Loader(DATA, 4).batches(0)), list(prefetched(source.batches(0))))
    for _ in prefetched(source.batches(1)):
        break
    assert_same(list(Loader(DATA, 4).batches(2)), list(prefetched(source.batches(2))))


def test_it_is_ahead_by_two_batches_and_no_more():
    source = Counted()
    batches = prefetched(source.batches())
    assert source.made == 0  # nothing is made before it is asked for
    next(batches)
    assert (source.made, helpers()) == (1, [])  # a trainer learns from the first what fits
    for taken in (2, 3):
        next(batches)
        wait_for(source, taken + AHEAD)
        time.sleep(0.02)  # time enough to make one too many
        assert source.made == taken + AHEAD
    assert source.threads[0] is threading.current_thread()
    assert all(thread is not threading.current_thread() for thread in source.threads[1:])
    batches.close()
    assert source.closed


@pytest.mark.parametrize("end", ["close", "forget", "throw"])
def test_leaving_early_leaves_no_thread(end):
    source = Counted()
    batches = prefetched(source.batches())
    next(batches)
    next(batches)
    assert len(helpers()) == 1
    if end == "close":
        batches.close()
    elif end == "throw":
        with pytest.raises(ZeroDivisionError):
            batches.throw(ZeroDivisionError())
    else:
        del batches
        gc.collect()
    assert helpers() == []
    assert source.closed


@pytest.mark.parametrize("fail_at", [0, 5])
def test_an_error_comes_with_its_traceback_at_its_place(fail_at):
    source = Counted(fail_at=fail_at)
    batches = prefetched(source.batches())
    taken = []
    with pytest.raises(KeyError, match="broken in the making") as caught:
        taken.extend(batch.y.item() for batch in batches)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].line == 'raise KeyError("broken in the making")'
    assert source.made == fail_at
    assert source.closed
    assert list(batches) == []


def test_random_numbers_of_the_consumer_are_its_own():
    def trained(batches):
        sums = []
        for step, batch in enumerate(batches):
            with isolated("cpu", 0, "step", step):
                sums += [dropout(batch.x).sum() for _ in range(20)]
        return torch.stack(sums)

    source = Loader(DATA, 2, augment=BOTH)
    before = torch.get_rng_state()
    assert torch.equal(trained(source.batches(0)), trained(prefetched(source.batches(0))))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_computes_on_finished_batches(resident):
    pixels = torch.randint(0, 256, (512, 3, 64, 64)).to(torch.uint8)
    big = Images(pixels, DATA.labels[:1].expand(512), DATA.classes, "big")
    source = Loader(big, 32, augment=BOTH, device="cuda", resident=resident)
    expected = [batch.x.cpu() for batch in source.batches(0)]
    a = torch.rand(2048, 2048, device="cuda")
    for _ in range(5):
        for batch, x in zip(prefetched(source.batches(0), "cuda"), expected, strict=True):
            a = (a @ a).clamp_(0, 1)  # keeps the consumer's stream behind the copies
            total = batch.x.double().sum()
            assert torch.equal(batch.x.cpu(), x)
            torch.testing.assert_close(total.cpu(), x.double().sum())
            del batch
