"""A snapshot is what the state was, whatever training does to it afterwards."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict, defaultdict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from astkit import models
from astkit.background import BackgroundWriter
from astkit.trainers.snapshot import snapshot

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
)


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def trained(device="cpu"):
    """A model with BatchNorm and an AdamW that has moments."""
    model = models.build("digits_cnn", (1, 8, 8), 10, 0, batch_norm=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 1, 8, 8, device=device)).logsumexp(1).sum().backward()
        optimizer.step()

    step()
    return model, optimizer, step


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_training_goes_on_and_the_snapshot_stays(device):
    model, optimizer, step = trained(device)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    before = copy.deepcopy(state)
    taken = snapshot(state)
    for _ in range(3):
        step()
    assert equal(taken.state(), before)
    assert not equal(taken.state(), {**before, "model": model.state_dict()})
    assert {value.device.type for value in taken.state()["model"].values()} == {"cpu"}


def test_a_background_job_can_write_it_and_a_model_can_load_it():
    model, optimizer, step = trained()
    before = copy.deepcopy(model.state_dict())
    file = io.BytesIO()
    with BackgroundWriter() as writer:
        taken = snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        writer.put(lambda: torch.save(taken.state(), file))
        step()
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert equal(dict(model.state_dict()), dict(before))


def test_no_memory_is_shared_with_the_state():
    base = torch.arange(12.0).view(3, 4)
    state = {"a": [base, base.t(), base[1:]], "b": (nn.Parameter(base.clone()), {"c": base[0, 0]})}
    before = copy.deepcopy(state)
    taken = snapshot(state)
    base.fill_(-1)
    with torch.no_grad():
        state["b"][0].fill_(-1)
    assert equal(taken.state(), before)
    assert taken.state()["a"][1].stride() == (1, 4)
    assert not taken.state()["b"][0].requires_grad


def test_tied_weights_are_copied_once():
    weight = torch.ones(5, 5)
    taken = snapshot({"one": weight, "two": weight.detach(), "other": weight[:2]}).state()
    assert taken["one"].data_ptr() == taken["two"].data_ptr()
    assert taken["one"].data_ptr() != taken["other"].data_ptr()
    same_place = weight.view(torch.int32)
    kinds = snapshot([weight, same_place, weight.view(25)]).state()
    assert [part.dtype for part in kinds] == [torch.float32, torch.int32, torch.float32]
    assert kinds[2].shape == (25,)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.tensor(3, dtype=torch.int64),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.ones(1).expand(4),
        torch.eye(3).to_sparse(),
        torch.tensor([float("nan"), 1.0]),
    ],
    ids=["empty", "scalar", "bfloat16", "channels_last", "expanded", "sparse", "nan"],
)
def test_every_kind_of_tensor(tensor):
    copied = snapshot(tensor).state()
    assert copied.dtype == tensor.dtype
    assert copied.layout == tensor.layout
    same = torch.equal(copied.to_dense().nan_to_num(7), tensor.to_dense().nan_to_num(7))
    assert same
    if tensor.layout == torch.strided and tensor.numel() > 1 and 0 not in tensor.stride():
        assert copied.stride() == tensor.stride()


def test_containers_keep_their_kind_and_what_rides_on_them():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = model.state_dict()
    copied = snapshot(state).state()
    assert type(copied) is OrderedDict
    assert copied._metadata == state._metadata
    assert list(copied) == list(state)
    counts = defaultdict(list, a=[1])
    mixed = {"pair": Pair(torch.ones(1), 2), "counts": counts, "array": np.ones(2), "none": None}
    taken = snapshot(mixed).state()
    counts["a"].append(2)
    mixed["array"][:] = 5
    assert type(taken["pair"]) is Pair
    assert taken["counts"] == {"a": [1]}
    assert taken["counts"]["new"] == []
    assert taken["array"].tolist() == [1, 1]
    assert taken["none"] is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_nothing_waits_for_the_device():
    weights = [torch.randn(1000, 1000, device="cuda") for _ in range(8)]
    before = [weight.cpu() for weight in weights]
    snapshot(weights).state()  # the pinned memory is there now
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        taken = snapshot(weights)
        for weight in weights:
            weight.zero_()  # later on the stream, so after the copies
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(part.is_pinned() for part in taken.state())
    assert equal(taken.state(), before)
