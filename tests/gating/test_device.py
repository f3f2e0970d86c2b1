"""The gate without synchronisation: the decisions of top-k, and nothing read on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from astkit.gating import DeviceGate, Gate, Selection
from tests.gating.streams import gamma2, jumping, through_json
from tests.gating.syncs import Syncs
from tests.gating.without_float64 import WithoutFloat64

SYNC_FREE = ["loss", "contrast", "confidence", "entropy", "margin"]
COUNTERS = ("seen", "active", "fallback_rows", "nonfinite", "carry", "batches")
rates = st.floats(1e-3, 1)
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=30)
seeds = st.integers(0, 2**32 - 1)


def trained(chosen: Selection) -> list[int]:
    """The rows with a weight above 0, in order."""
    return sorted(chosen.index[chosen.weight > 0].tolist())


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(steps: int, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(steps, 48, 6, generator=random).to(device)
    return list(zip(x, torch.randint(4, (steps, 48), generator=random).to(device), strict=True))


def train(gate: Gate, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> list[Selection]:
    """A plain gated loop with SGD."""
    choices = []
    for x, y in data:
        chosen = gate(model, x, y)
        few, labels = chosen.take((x, y))
        model.zero_grad()
        chosen.mean(F.cross_entropy(model(few), labels, reduction="none")).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        choices.append(chosen)
    return choices


# --- the decisions of top-k ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:a batch of 1 row")
@settings(deadline=None, max_examples=30)
@given(rates, sizes, st.integers(0, 5), seeds)
def test_it_takes_the_rows_of_top_k(
    target: float, sizes: list[int], fallback: int, seed: int
) -> None:
    gate = DeviceGate(target, fallback=fallback)
    reference = Gate(target, controller="top_k", fallback=fallback)
    random = torch.Generator().manual_seed(seed)
    for size in sizes:
        scores = torch.randperm(size, generator=random).float() - size / 2  # no ties, some negative
        chosen, expected = gate.select(scores), reference.select(scores)
        assert chosen.weight.tolist() == [1.0] * len(expected)
        rate = float(torch.tensor(expected.rate))  # rounded to float32
        assert (float(chosen.rate), float(chosen.threshold)) == (rate, expected.threshold)
        assert bool(chosen.fallback) == expected.fallback
        active = len(expected) if expected.active is None else int(expected.active.sum())
        assert int(chosen.active.sum()) == active
        assert trained(chosen) == sorted(scores.argsort(descending=True)[: len(expected)].tolist())
        if not expected.fallback:
            assert trained(chosen) == expected.index.tolist()
    assert [getattr(gate, name) for name in COUNTERS] == [getattr(reference, n) for n in COUNTERS]
    assert gate.rate == reference.rate


@settings(deadline=None, max_examples=20)
@given(rates, sizes, seeds)
def test_the_rate_is_exact_whatever_ties(target: float, sizes: list[int], seed: int) -> None:
    gate = DeviceGate(target, fallback=0)
    random = torch.Generator().manual_seed(seed)
    for size in sizes:
        gate.select(torch.randint(2, (size,), generator=random).float())
    assert abs(gate.active - target * sum(sizes)) < 1


def test_ties_fallback_and_a_rate_of_1() -> None:
    chosen = DeviceGate(0.5).select(torch.tensor([1.0, 2.0, 1.0, 1.0]))
    assert chosen.index.tolist() == [1, 0]
    gate = DeviceGate(0.05, fallback=3)
    chosen = gate.select(torch.arange(16.0))
    assert trained(chosen) == [13, 14, 15]
    assert (chosen.active.tolist(), float(chosen.rate)) == ([False] * 3, 0)
    assert (bool(chosen.fallback), int(gate.fallback_rows), int(gate.active)) == (True, 3, 0)
    chosen = DeviceGate(1.0).select(gamma2(0, 1, 9)[0])
    assert trained(chosen) == list(range(9))
    assert (float(chosen.rate), float(chosen.threshold)) == (1, -math.inf)


def test_rows_without_a_finite_score_weigh_nothing_and_cannot_spoil_the_mean() -> None:
    gate = DeviceGate(0.9)
    chosen = gate.select(torch.tensor([1.0, math.nan, 3.0, math.inf, -math.inf, 2.0]))
    assert trained(chosen) == [0, 2, 5]
    assert (gate.nonfinite, gate.seen) == (3, 3)
    losses = torch.tensor([1.0, math.nan, 3.0, math.inf, math.inf, 2.0])
    assert float(chosen.mean(chosen.take(losses))) == 2.0
    lost = gate.select(torch.full((8,), math.nan))
    assert math.isnan(float(lost.mean(lost.take(torch.full((8,), math.nan)))))
    assert (gate.nonfinite, gate.seen) == (11, 3)


def test_training_follows_the_ordinary_gate() -> None:
    ours, theirs = network().double(), network().double()
    data = [(x.double(), y) for x, y in batches(40)]
    device, plain = DeviceGate(0.5), Gate(0.5, controller="top_k")
    train(device, ours, data)
    train(plain, theirs, data)
    assert device.active == plain.active
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_a_device_without_float64_is_enough() -> None:
    gate = DeviceGate(0.5)
    for scores in (torch.arange(8), torch.arange(8.0), torch.full((8,), math.nan)):
        chosen = gate.select(WithoutFloat64.on(scores))
        assert type(chosen.threshold) is type(chosen.rate) is WithoutFloat64
    assert int(gate.active) == 8
    with pytest.raises(TypeError, match="no float64"):
        WithoutFloat64.on(torch.arange(8)).double()


# --- nothing waits ---------------------------------------------------------------------------

READERS = ("item", "__bool__", "__float__", "__int__", "__index__", "tolist", "nonzero", "cpu")


@contextmanager
def nothing_is_read(patch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read on the host")

    with patch.context() as context:
        for name in (*READERS, "numpy"):
            context.setattr(torch.Tensor, name, refuse)
        yield


@pytest.mark.parametrize("score", SYNC_FREE)
def test_steps_read_nothing(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 50 if score == "loss" else 5
    gate, model, data = DeviceGate(0.25, score), network(), batches(steps)
    with nothing_is_read(monkeypatch), Syncs() as syncs:
        choices = train(gate, model, data)
    assert syncs.names == []
    together = torch.stack([chosen.rate for chosen in choices])  # all rates in one reading
    assert together.mean().item() == pytest.approx(gate.rate) == 0.25


def test_the_ordinary_gate_copies_its_scores_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    with Syncs() as syncs:
        train(Gate(0.25), network(), batches(5))
    assert {"_local_scalar_dense", "nonzero"} <= set(syncs.names)  # all of them on the host
    copies = []
    monkeypatch.setattr(Tensor, "cpu", lambda self: copies.append(self) or self)
    train(Gate(0.25), network(), batches(5))
    assert len(copies) == 5
    with nothing_is_read(monkeypatch), pytest.raises(AssertionError, match="on the host"):
        train(Gate(0.25), network(), batches(5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")
@pytest.mark.parametrize("score", SYNC_FREE)
def test_fifty_steps_on_a_gpu_do_not_synchronise(score: str) -> None:
    gate, model = DeviceGate(0.25, score), network().cuda()
    data = batches(50, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(gate, model, data)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert gate.rate == pytest.approx(0.25)


# --- steering and state ----------------------------------------------------------------------


def test_the_target_is_followed_when_it_is_steered_and_nothing_else_can_be() -> None:
    gate = DeviceGate(0.1)
    for target, seed in ((0.1, 0), (0.5, 1)):
        gate.steer("target_rate", target)
        before = int(gate.active)
        for scores in gamma2(seed, 100):
            gate.select(scores)
        assert (int(gate.active) - before) / (100 * 128) == pytest.approx(target, abs=1e-3)
    with pytest.raises(ValueError, match="controller cannot become 'top_k'"):
        gate.steer("controller", "top_k")
    with pytest.raises(ValueError, match="there is no setting 'gain' to steer"):
        gate.steer("gain", 0.25)


def test_a_resumed_gate_decides_as_the_one_saved() -> None:
    stream = jumping(3, 15, 15, 8.0)
    for at in (0, 1, 13):
        whole, first, second = (DeviceGate(0.13) for _ in range(3))
        expected = [whole.select(scores) for scores in stream]
        for scores in stream[:at]:
            first.select(scores)
        second.load_state_dict(through_json(first.state_dict()))
        for scores, other in zip(stream[at:], expected[at:], strict=True):
            assert torch.equal(second.select(scores).index, other.index)
        assert second.state_dict() == whole.state_dict()


def test_what_cannot_be_is_refused() -> None:
    for options, sentence in (
        ({"target_rate": 0}, "target_rate is 0"),
        ({"score": "nonsense"}, "unknown score"),
    ):
        with pytest.raises(ValueError, match=sentence):
            DeviceGate(**options)  # type: ignore[arg-type]
    for scores in (torch.zeros(3, 1), torch.zeros(0), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="give one score a row"):
            DeviceGate().select(scores)
