"""Score streams: functions of step and seed, with the distribution and the shape they claim."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.gating import Gate, Loss, LossAndContrast
from astkit.runs import arms, streams

FAMILIES = list(streams.FAMILIES)
SHAPES = {
    "stationary": streams.stationary,
    "ramp": streams.ramp,
    "shock": streams.shock,
    "set point": streams.set_point,
    "relative": streams.relative,
}
targets = st.floats(0.001, 0.999)


# --- families --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_follow_the_survival_function(name: str) -> None:
    family, n = streams.FAMILIES[name], 200_000
    scores = family.draw(n, torch.Generator().manual_seed(0))
    assert scores.shape == (n,)
    for target in (0.01, 0.05, 0.1, 0.25, 0.5, 0.9):
        share = float((scores > family.threshold(target)).double().mean())
        assert abs(share - target) < 4 * math.sqrt(target * (1 - target) / n)


@pytest.mark.parametrize("name", FAMILIES)
@given(logarithm=st.floats(-6, 3))
def test_the_density_of_log_scores_is_the_slope_of_the_survival(
    name: str, logarithm: float
) -> None:
    family, h = streams.FAMILIES[name], 1e-5
    slope = family.survival(math.exp(logarithm - h)) - family.survival(math.exp(logarithm + h))
    assert family.density(math.exp(logarithm)) == pytest.approx(slope / (2 * h), abs=1e-8, rel=1e-4)


@settings(deadline=None)
@given(target=targets)
def test_the_threshold_is_the_quantile(target: float) -> None:
    normal = NormalDist()
    known = {
        "exponential": -math.log(target),
        "lognormal": math.exp(normal.inv_cdf(1 - target)),
    }
    for name, family in streams.FAMILIES.items():
        threshold = family.threshold(target)
        assert family.survival(threshold) == pytest.approx(target, rel=1e-9)
        assert threshold == pytest.approx(known.get(name, threshold), rel=1e-6)
    # two of the densities at the set point are known by heart
    exponential, lognormal = streams.FAMILIES["exponential"], streams.FAMILIES["lognormal"]
    found = exponential.density(exponential.threshold(target))
    assert found == pytest.approx(target * math.log(1 / target), rel=1e-6)
    found = lognormal.density(lognormal.threshold(target))
    assert found == pytest.approx(normal.pdf(normal.inv_cdf(1 - target)), rel=1e-6)


# --- shapes in time --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_is_a_function_of_step_and_seed(shape: str, name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    stream = SHAPES[shape](name, batch=32)
    scores = stream.scores(7, 3)
    assert scores.shape == (32,)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, SHAPES[shape](name, batch=32).scores(7, 3))
    assert not torch.equal(scores, stream.scores(8, 3))
    assert not torch.equal(scores, stream.scores(7, 4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_shapes_change_the_scale_and_nothing_else(name: str) -> None:
    plain = streams.stationary(name)
    ramp = streams.ramp(name, tau=50)
    up, down = streams.shock(name, 4, change=3), streams.shock(name, 0.25, change=3)
    moved = streams.set_point(name, 2, change=3)
    for step in (0, 1, 2, 3, 4, 99):
        scores = plain.scores(step, 1)
        torch.testing.assert_close(ramp.scores(step, 1), scores * math.exp(-step / 50))
        assert torch.equal(up.scores(step, 1), scores * (4 if step >= 3 else 1))
        assert torch.equal(down.scores(step, 1), scores / (4 if step >= 3 else 1))
        assert torch.equal(moved.scores(step, 1), scores)
        assert moved.target(step, 0.1) == (0.2 if step >= 3 else 0.1)
        assert all(stream.target(step, 0.1) == 0.1 for stream in (plain, ramp, up, down))
    assert [s.change for s in (plain, ramp, up, moved)] == [0, 0, 3, 3]
    assert [s.drift for s in (plain, ramp, up, moved)] == [0, 1 / 50, 0, 0]


def test_names_tell_streams_apart() -> None:
    made = [shape(name) for shape in SHAPES.values() for name in FAMILIES]
    made += [streams.shock(scale=0.25), streams.set_point(factor=0.5)]
    assert len({stream.name for stream in made}) == len(made)


def test_the_origins_score_cancels_the_decay() -> None:
    fast, slow = streams.relative(tau=20), streams.relative(tau=1e9)
    for step in (0, 1, 50, 100):  # by then losses have fallen by a factor of 148
        scores = fast.scores(step, 2)
        torch.testing.assert_close(scores, slow.scores(step, 2), atol=1e-4, rtol=0)
        assert 0 <= float(scores.min()) <= float(scores.max()) <= 1
    losses = streams.ramp(tau=20).scores(9, 2)
    assert torch.equal(fast.scores(9, 2).argsort()[:20], losses.argsort()[:20]) is False  # contrast
    by_loss = torch.corrcoef(torch.stack([fast.scores(9, 2), losses]))[0, 1]
    assert by_loss > 0.9


def test_the_spread_of_contrast_is_that_of_the_digits() -> None:
    task = arms.task("digits", device="cpu")
    x = torch.cat([batch.x for batch in task.loader("train").batches(0)])
    assert float(x.flatten(1).std(1).log().std()) == pytest.approx(0.06, abs=0.005)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: streams.stationary("cauchy"), "unknown family 'cauchy': choose one of gamma2"),
        (lambda: streams.stationary(batch=0), "batch is 0: give the number of scores"),
        (lambda: streams.ramp(tau=0), "tau is 0: give the steps"),
        (lambda: streams.shock(scale=-4), "scale is -4: give a factor above 0"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


# --- recorded --------------------------------------------------------------------------------


def test_what_is_recorded_is_what_the_gate_saw(monkeypatch) -> None:
    seen, select = [], Gate.select

    def watched(self, scores, *rest):
        seen.append(scores.clone())
        return select(self, scores, *rest)

    monkeypatch.setattr(Gate, "select", watched)
    streams.record.cache_clear()
    stream = streams.recorded("loss", epochs=2)
    played = [stream.scores(step, 0) for step in range(stream.length)]
    assert stream.length == len(seen)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(played, seen, strict=True))
    # and it is the run that the task itself makes, undisturbed by being watched
    task = arms.task("digits", 0.1, device="cpu", epochs=2, gate={"controller": "top_k"})
    seen.clear()
    arms.trainer(task, "batched gate", 0).run()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(played, seen, strict=True))


def test_both_scores_are_recorded_from_one_pass() -> None:
    noted = streams.record(epochs=1, seed=1)
    assert list(noted) == ["loss", "loss_and_contrast"]
    outputs, targets, inputs = torch.randn(9, 3), torch.arange(9) % 3, torch.randn(9, 1, 4, 4)
    recorder = streams.Recorder(("loss_and_contrast", "loss"))
    given = recorder(outputs, targets, inputs)
    assert torch.equal(given, LossAndContrast()(outputs, targets, inputs))
    assert torch.equal(recorder.noted["loss_and_contrast"][0], given)
    assert torch.equal(recorder.noted["loss"][0], Loss()(outputs, targets, inputs))
    assert [len(batch) for batch in noted["loss"]] == [len(b) for b in noted["loss_and_contrast"]]


def test_each_seed_has_a_run_of_its_own_that_is_trained_once(monkeypatch) -> None:
    stream = streams.recorded("loss", epochs=1)
    first, other = stream.scores(3, 0), stream.scores(3, 1)
    assert not torch.equal(first, other)
    monkeypatch.setattr(arms, "trainer", None)
    assert torch.equal(stream.scores(3, 0), first)


def test_targets_move_by_a_factor_once() -> None:
    stream = replace(streams.stationary(), change=2, factor=0.5)
    assert [stream.target(step, 0.4) for step in range(4)] == [0.4, 0.4, 0.2, 0.2]
