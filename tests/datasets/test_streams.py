import gc
import multiprocessing
import os
import time

import pytest
import torch
from torch.utils.data import Dataset

from astkit.datasets import Loader

N = 6


class Awkward(Dataset):
    """Rows that come late, or never, or end the process, as long as ``cure`` is not there."""

    def __init__(self, cure, trouble):
        self.cure, self.trouble = cure, trouble

    def __len__(self):
        return N

    def __getitem__(self, row):
        if row == 3 and not self.cure.exists():
            self.trouble()
        return torch.tensor([row]), row


def hang():
    time.sleep(600)


def die():
    os._exit(7)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    # how long torch waits for a worker to leave before it terminates it
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


def rows(loader):
    return [row for batch in loader.batches(0) for row in batch.y.tolist()]


@pytest.mark.parametrize(
    ("trouble", "words", "workers"), [(hang, "timed out after 1", 1), (die, "exited unexp", 2)]
)
def test_a_failing_worker_is_one_clear_error(trouble, words, workers, tmp_path):
    gc.collect()  # workers held by the traceback that another test has looked at
    cure = tmp_path / "cure"
    options = {"num_workers": workers, "timeout_s": 1 if trouble is hang else 60}
    loader = Loader(Awkward(cure, trouble), 1, shuffle=False, **options)
    with pytest.raises(RuntimeError, match=rf"workers failed \(.*{words}.*num_workers=0") as caught:
        rows(loader)
    assert caught.value.__context__ is None  # torch's own words would be read first
    for child in multiprocessing.active_children():  # older torch terminates without waiting
        child.join(10)
    assert multiprocessing.active_children() == []
    # the next pass has new workers
    cure.touch()
    assert rows(loader) == list(range(N))


@pytest.mark.parametrize(
    ("workers", "kind"),
    [(0, EOFError), (1, RuntimeError), (1, FileNotFoundError)],
)
def test_errors_of_the_data_set_are_its_own(workers, kind, tmp_path):
    def fail():
        raise kind("row 3 is unlucky")

    loader = Loader(Awkward(tmp_path / "cure", fail), 2, num_workers=workers)
    with pytest.raises(kind, match="row 3 is unlucky"):
        rows(loader)


@pytest.mark.parametrize(
    "error", [EOFError(), ConnectionResetError(104, "Connection reset"), FileNotFoundError(2, "no")]
)
def test_a_torn_connection_is_a_dead_worker(error, monkeypatch, tmp_path):
    loader = Loader(Awkward(tmp_path, None), 2, num_workers=1)

    def torn(self):
        raise error

    monkeypatch.setattr("torch.utils.data.dataloader._BaseDataLoaderIter.__next__", torn)
    with pytest.raises(RuntimeError, match=r"workers failed \(a worker exited unexpected"):
        rows(loader)
