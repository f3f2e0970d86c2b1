"""The gate without synchronisation: the ordinary gate's decisions, and nothing read on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from astkit.gating import DeviceGate, Gate, LogIntegral, Selection, TopK
from astkit.gating.device import DeviceLogIntegral, quantile, rank
from tests.gating.streams import decaying, gamma2, jumping, through_json
from tests.gating.syncs import Syncs

RULES: list[Any] = ["fixed_k", "capacity"]
SYNC_FREE = ["loss", "contrast", "confidence", "entropy", "margin"]
RISING = torch.arange(1.0, 17.0)
single_rows = pytest.mark.filterwarnings("ignore:a batch of 1 row")
rates = st.floats(1e-3, 1)
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=40)
seeds = st.integers(0, 2**32 - 1)


def trained(chosen: Selection) -> list[int]:
    """The rows with a weight above 0, in order."""
    return sorted(chosen.index[chosen.weight > 0].tolist())


def network(dtype: torch.dtype = torch.float32, batch_norm: bool = False) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(16)] if batch_norm else []
        return nn.Sequential(nn.Linear(6, 16), *middle, nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def batches(steps: int, rows: int = 48, device: str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(rows, 6, generator=random)
        yield x.to(device), torch.randint(4, (rows,), generator=random).to(device)


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


# --- fixed k: the decisions of top-k ---------------------------------------------------------


@single_rows
@settings(deadline=None, max_examples=50)
@given(rates, sizes, st.integers(0, 5), seeds)
def test_fixed_k_takes_the_rows_of_top_k(
    target: float, sizes: list[int], fallback: int, seed: int
) -> None:
    gate = DeviceGate(target, "fixed_k", fallback=fallback)
    reference = Gate(target, controller="top_k", fallback=fallback)
    random = torch.Generator().manual_seed(seed)
    for size in sizes:
        scores = torch.randperm(size, generator=random).float() - size / 2  # no ties, some negative
        chosen, expected = gate.select(scores), reference.select(scores)
        assert chosen.weight.tolist() == [1.0] * len(expected)
        assert (float(chosen.rate), float(chosen.threshold)) == (expected.rate, expected.threshold)
        assert bool(chosen.fallback) == expected.fallback
        active = len(expected) if expected.active is None else int(expected.active.sum())
        assert int(chosen.active.sum()) == active
        best = scores.argsort(descending=True)[: len(expected)]
        assert trained(chosen) == sorted(best.tolist())
        if not expected.fallback:
            assert trained(chosen) == expected.index.tolist()
    for name in ("seen", "active", "fallback_rows", "nonfinite", "carry", "batches"):
        assert getattr(gate, name) == getattr(reference, name), name
    assert gate.rate == reference.rate
    assert gate.overflow == 0


@settings(deadline=None, max_examples=30)
@given(rates, sizes, seeds)
def test_fixed_k_gives_the_exact_rate_whatever_ties(
    target: float, sizes: list[int], seed: int
) -> None:
    gate = DeviceGate(target, fallback=0)
    random = torch.Generator().manual_seed(seed)
    for size in sizes:
        gate.select(torch.randint(2, (size,), generator=random).float())
    assert abs(gate.active - target * sum(sizes)) < 1


def test_ties() -> None:
    chosen = DeviceGate(0.5).select(torch.tensor([1.0, 2.0, 1.0, 1.0]))
    assert chosen.index.tolist() == [1, 0]
    chosen = DeviceGate(0.25, "capacity").select(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert float(chosen.threshold) == 4.0  # the quantile at 0.75
    assert trained(chosen) == [4]


# --- capacity: the threshold of the log-integral law -----------------------------------------

STREAMS = {
    "steady": lambda: gamma2(0, 200),
    "decaying": lambda: decaying(1)[:200],
    "jumping": lambda: jumping(2, 100, 100, 30.0),
    "zeros first": lambda: torch.cat([torch.zeros(3, 128).double(), gamma2(3, 100)]),
    "mostly zero": lambda: gamma2(4, 200) * (gamma2(5, 200) > 4),
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("target", "dtype"),
    [(0.02, torch.float32), (0.25, torch.float64), (1 / 3, torch.float32), (0.9, torch.float64)],
)
def test_the_law_on_tensors_is_log_integrals(
    stream: str, dtype: torch.dtype, target: float
) -> None:
    ours, theirs = DeviceLogIntegral(target, 0.7), LogIntegral(target, 0.7)
    assert ours.value is None
    for number, batch in enumerate(STREAMS[stream]().to(dtype)):
        expected = theirs.threshold(batch, 0)
        assert ours.threshold(batch, 0) == pytest.approx(expected, rel=1e-12), number
        drawn = 0.5 * (not batch.any())  # rows drawn among ties count as active
        rate = float((batch > expected).double().mean()) or drawn
        ours.update(rate, batch)
        theirs.update(rate, batch)
        assert ours.value == pytest.approx(theirs.value, rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(rates, st.integers(1, 60), seeds, st.sampled_from([torch.float32, torch.float64]))
def test_the_quantile_is_torchs(target: float, rows: int, seed: int, dtype: torch.dtype) -> None:
    scores = gamma2(seed, 1, rows)[0].to(dtype)
    spoilt = torch.cat([scores, scores.new_tensor([math.nan, math.inf, -math.inf])])
    expected = torch.quantile(scores.double(), 1 - target)
    assert float(quantile(rank(spoilt), target)) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("stream", "target"),
    [("steady", 0.05), ("decaying", 0.25), ("jumping", 0.05), ("jumping", 0.25)],  # no ties
)
def test_capacity_decides_as_the_gate_with_log_integral(stream: str, target: float) -> None:
    gate = DeviceGate(target, "capacity", headroom=1e3)  # room for all: no overflow
    reference = Gate(target, controller="log_integral")
    compared, thresholds = 0, []
    for scores in STREAMS[stream]():
        spoilt = torch.cat([scores, scores.new_tensor([math.nan, math.inf])])
        chosen, expected = gate.select(spoilt), reference.select(spoilt)
        thresholds.append((chosen.threshold, pytest.approx(expected.threshold, rel=1e-9)))
        assert float(chosen.rate) == pytest.approx(expected.rate, abs=0)
        if not expected.fallback:
            assert trained(chosen) == expected.index.tolist()
            assert sorted(chosen.index[chosen.active].tolist()) == trained(chosen)
            compared += 1
    assert compared > 50
    assert all(float(found) == expected for found, expected in thresholds)  # they stay as they were
    assert (gate.nonfinite, gate.seen) == (reference.nonfinite, reference.seen)


def test_capacity_is_fixed_by_batch_size_and_rate() -> None:
    gate = DeviceGate(0.1, "capacity")
    found = {len(gate.select(scores)) for scores in jumping(0, 50, 50, 10.0)}
    assert found == {math.ceil(12.8 + 3 * math.sqrt(128 * 0.1 * 0.9))}
    assert len(gate.select(gamma2(1, 1, 5)[0])) == math.ceil(0.5 + 3 * math.sqrt(0.45))
    gate.target_rate = 0.9
    assert len(gate.select(gamma2(1, 1, 5)[0])) == 5
    bare = DeviceGate(0.07, "capacity", headroom=0.0, fallback=3)
    assert len(bare.select(gamma2(1, 1, 100)[0])) == 7  # 0.07 * 100 is a little above 7 in floats
    assert len(bare.select(gamma2(1, 1, 10)[0])) == 3  # room for the fallback


def test_overflow_is_counted_and_the_best_rows_are_kept() -> None:
    gate = DeviceGate(0.25, "capacity", headroom=0.0)
    gate.select(RISING)
    assert gate.overflow == 0
    chosen = gate.select(RISING + 100)  # all 16 exceed the threshold, 4 are taken
    assert trained(chosen) == [12, 13, 14, 15]
    assert float(chosen.rate) == 1.0
    assert (gate.overflow, gate.active) == (12, 4 + 16)


@pytest.mark.full
def test_headroom_of_three_deviations_overflows_once_in_hundreds_of_steps() -> None:
    gate, before, over = DeviceGate(0.1, "capacity"), 0, 0
    for scores in gamma2(7, 1000):
        gate.select(scores)
        over, before = over + (gate.overflow > before), gate.overflow
    assert 0 < over < 20  # a binomial count is above 3 deviations in 2 to 3 steps of 1000
    assert gate.rate == pytest.approx(0.1, abs=0.005)


# --- padding, fallback, scores that are not finite or negative -------------------------------


def test_padding_and_fallback_are_not_active() -> None:
    gate = DeviceGate(0.25, "capacity", fallback=3)
    chosen = gate.select(RISING)  # the quantile at 0.75 is 12.25
    assert chosen.active.dtype == torch.bool
    assert len(chosen) == 10  # 4 + 3 deviations of 1.73
    assert chosen.active.tolist() == (chosen.weight > 0).tolist() == [True] * 4 + [False] * 6
    chosen = gate.select(RISING / 1000)
    assert trained(chosen) == [13, 14, 15]
    assert not bool(chosen.active.any())
    assert float(chosen.rate) == 0
    assert bool(chosen.fallback)
    assert (gate.fallback_rows, gate.active) == (3, 4)


def test_few_active_rows_are_filled_up_to_the_fallback() -> None:
    gate = DeviceGate(0.25, "capacity", fallback=3, min_active=2)
    gate.select(RISING)
    scores = torch.full((16,), 0.1)
    scores[5] = 100.0
    chosen = gate.select(scores)
    assert len(trained(chosen)) == 3
    assert chosen.index[chosen.active].tolist() == [5]
    assert (gate.active, gate.fallback_rows) == (5, 2)


@pytest.mark.parametrize("rule", RULES)
def test_rows_without_a_finite_score_weigh_nothing_and_cannot_spoil_the_mean(rule: Any) -> None:
    gate = DeviceGate(0.9, rule)
    chosen = gate.select(torch.tensor([1.0, math.nan, 3.0, math.inf, -math.inf, 2.0]))
    assert set(trained(chosen)) <= {0, 2, 5}
    assert (gate.nonfinite, gate.seen) == (3, 3)
    losses = torch.tensor([1.0, math.nan, 3.0, math.inf, math.inf, 2.0])
    expected = losses[trained(chosen)].mean().item()
    assert float(chosen.mean(chosen.take(losses))) == pytest.approx(expected)


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_without_any_score_gives_nan_and_leaves_the_threshold(rule: Any) -> None:
    gate, clean = DeviceGate(0.25, rule), DeviceGate(0.25, rule)
    good = gamma2(0, 2, 8)
    for scores in (torch.full((8,), math.nan), good[0], torch.full((8,), math.inf), good[1]):
        chosen = gate.select(scores)
        finite = bool(scores.isfinite().any())
        assert math.isfinite(float(chosen.mean(chosen.take(scores)))) == finite
    assert (gate.seen, gate.nonfinite) == (16, 16)
    for scores in good:
        clean.select(scores)
    assert clean.controller.state_dict() == gate.controller.state_dict()


def test_negative_scores_under_capacity_are_counted_and_warned_of_once(
    recwarn: pytest.WarningsRecorder,
) -> None:
    scores = torch.cat([torch.arange(16.0) - 4, torch.tensor([math.nan, -math.inf])])
    for rule in RULES:
        gate = DeviceGate(0.25, rule)
        chosen = gate.select(scores)
        assert min(trained(chosen)) > 4  # those above 0
        assert (gate.negative, gate.counters()["negative"]) == (4, 4)
    told = [str(warning.message) for warning in recwarn]
    assert len(told) == 1
    assert told[0].startswith("4 scores were negative, so their rows are never active")


# --- gradients -------------------------------------------------------------------------------


def difference(model: nn.Module, chosen: Selection, x: Tensor, y: Tensor) -> float:
    """Of the weighted mean's gradient to that of the exact subset, over the norm of the latter."""
    found = []
    exact = torch.tensor(trained(chosen))
    few, labels = chosen.take((x, y))
    for mean in (
        lambda: chosen.mean(F.cross_entropy(model(few), labels, reduction="none")),
        lambda: F.cross_entropy(model(x[exact]), y[exact]),
    ):
        model.zero_grad()
        mean().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return float((found[0] - found[1]).norm() / found[1].norm())


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_padding_leaves_the_gradient_of_the_exact_subset(dtype: torch.dtype, within: float) -> None:
    model, gate = network(dtype), DeviceGate(0.2, "capacity")
    padded = 0
    for x, y in batches(20):
        chosen = gate(model, x.to(dtype), y)
        padded += len(chosen) - len(trained(chosen))
        assert difference(model, chosen, x.to(dtype), y) < within
    assert padded > 20


def test_under_batch_norm_padding_is_another_algorithm() -> None:
    model = network(torch.float64, batch_norm=True).train()
    ((x, y),) = batches(1)
    x = x.double()
    assert difference(model, DeviceGate(0.2, "capacity")(model, x, y), x, y) > 0.01
    assert difference(model, DeviceGate(0.2, "fixed_k")(model, x, y), x, y) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_training_follows_the_ordinary_gate(rule: Any) -> None:
    ours, theirs = network(torch.float64), network(torch.float64)
    data = [(x.double(), y) for x, y in batches(40)]
    # the losses of a new network lie close together, so a large gain would swing to the fallback
    law = TopK(0.5) if rule == "fixed_k" else LogIntegral(0.5, gain=0.05)
    device, plain = DeviceGate(0.5, rule, gain=0.05, headroom=1e3), Gate(controller=law)
    train(device, ours, data)
    train(plain, theirs, data)
    assert device.fallback_rows == plain.fallback_rows == 0  # they differ there
    assert device.active == plain.active
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize(
    ("rule", "score"), [("fixed_k", "loss"), *(("capacity", score) for score in SYNC_FREE)]
)
def test_fifty_steps_read_nothing(rule: Any, score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, model, data = DeviceGate(0.25, rule, score), network(), list(batches(50))
    with nothing_is_read(monkeypatch), Syncs() as syncs:
        choices = train(gate, model, data)
    assert syncs.names == []
    assert gate.rate == pytest.approx(0.25, abs=0.08)
    together = torch.stack([chosen.rate for chosen in choices])  # all rates in one reading
    assert together.mean().item() == pytest.approx(gate.rate)


def test_the_test_finds_what_the_ordinary_gate_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    data = list(batches(5))
    with Syncs() as syncs:
        train(Gate(0.25), network(), data)
    assert len(syncs.names) > 25
    assert {"_local_scalar_dense", "nonzero"} <= set(syncs.names)
    with nothing_is_read(monkeypatch), pytest.raises(AssertionError, match="on the host"):
        train(Gate(0.25), network(), data)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("score", SYNC_FREE)
def test_fifty_steps_on_a_gpu_do_not_synchronise(rule: Any, score: str) -> None:
    gate, model = DeviceGate(0.25, rule, score), network().cuda()
    data = list(batches(50, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(gate, model, data)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    on_cpu = DeviceGate(0.25, rule, score)
    train(on_cpu, network(), list(batches(50)))
    assert gate.seen == on_cpu.seen
    assert gate.rate == pytest.approx(on_cpu.rate, abs=0.01)


# --- steering and state ----------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_target_is_followed_when_it_is_steered(rule: Any) -> None:
    gate = DeviceGate(0.1, rule)
    for scores in gamma2(0, 100):
        gate.select(scores)
    before = gate.active
    gate.steer("target_rate", 0.5)
    assert gate.target_rate == 0.5
    for scores in gamma2(1, 100):
        gate.select(scores)
    assert (gate.active - before) / (100 * 128) == pytest.approx(0.5, abs=0.02)


def test_gains_are_steered_and_controllers_are_not() -> None:
    gate = DeviceGate(0.1, "capacity")
    gate.steer("gain", 0.25)
    assert gate.controller.state_dict() == {"target_rate": 0.1, "gain": 0.25, "value": None}
    config = gate.config()  # identifies a run
    assert (config["rule"], config["headroom"], config["controller"]["gain"]) == (
        "capacity",
        3,
        0.25,
    )
    with pytest.raises(ValueError, match="controller cannot become 'top_k'"):
        gate.steer("controller", "top_k")
    with pytest.raises(ValueError, match="there is no setting 'gain' to steer"):
        DeviceGate(0.1).steer("gain", 0.25)
    with pytest.raises(ValueError, match="cannot decide row by row"):
        gate.admits(torch.tensor(1.0))


@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_gate_decides_as_the_one_saved(rule: Any) -> None:
    stream = jumping(3, 15, 15, 8.0)
    for at in (0, 1, 13):
        whole, first, second = (DeviceGate(0.13, rule, headroom=0.5) for _ in range(3))
        expected = [whole.select(scores) for scores in stream]
        for scores in stream[:at]:
            first.select(scores)
        second.load_state_dict(through_json(first.state_dict()))
        for scores, other in zip(stream[at:], expected[at:], strict=True):
            chosen = second.select(scores)
            assert torch.equal(chosen.index, other.index)
            assert torch.equal(chosen.weight, other.weight)
            assert float(chosen.threshold) == float(other.threshold)
        assert second.state_dict() == whole.state_dict()


@pytest.mark.parametrize("rule", RULES)
def test_at_rate_one_every_row_is_taken(rule: Any) -> None:
    gate = DeviceGate(1.0, rule)
    for scores in gamma2(0, 3, 9):
        chosen = gate.select(scores)
        assert trained(chosen) == list(range(9))
        assert (float(chosen.rate), float(chosen.threshold)) == (1, -math.inf)


def test_a_score_that_remembers_is_told_the_rows_that_count() -> None:
    gate, model = DeviceGate(0.25, "capacity", "loss_age"), network()
    ((x, y),) = batches(1)
    chosen = gate(model, x, y, torch.arange(len(y)))
    waiting = gate.state_dict()["score"]["age"]
    assert [row for row, age in enumerate(waiting) if age == 0] == trained(chosen)


def test_what_cannot_be_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"target_rate": 0}, "target_rate is 0"),
        ({"rule": "topk"}, "rule is 'topk': choose 'fixed_k' or 'capacity'"),
        ({"headroom": -1.0}, "headroom is -1.0"),
        ({"headroom": math.nan}, "headroom is nan"),
        ({"rule": "capacity", "fallback": 0}, "fallback is 0"),
        ({"rule": "capacity", "gain": 0}, "gain is 0"),
        ({"score": "nonsense"}, "unknown score"),
    ]
    for options, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            DeviceGate(**options)
    for scores in (torch.zeros(3, 1), torch.zeros(0), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="give one score a row"):
            DeviceGate().select(scores)
