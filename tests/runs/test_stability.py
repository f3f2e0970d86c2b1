"""Where loops turn unstable: predicted in closed form, measured by running them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from astkit.gating import LogIntegral, OriginPI
from astkit.runs import response, stability, streams

FAMILIES = list(streams.FAMILIES)


def density(name: str, target: float) -> float:
    family = streams.FAMILIES[name]
    return family.density(family.threshold(target))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("target", [0.1, 0.4])
@pytest.mark.parametrize(
    ("batch", "within"), [(None, 0.01), (4096, 0.05), (128, 0.2)], ids=["exact", "4096", "128"]
)
def test_the_loop_turns_unstable_where_predicted(
    name: str, target: float, batch: int | None, within: float
) -> None:
    predicted, measured = stability.critical_gain(name, target, batch, steps=2000)
    # the prediction once more, from the slope of the survival function alone
    family, h = streams.FAMILIES[name], 1e-5
    at = math.log(family.threshold(target))
    slope = (family.survival(math.exp(at - h)) - family.survival(math.exp(at + h))) / (2 * h)
    assert predicted == pytest.approx(2 / slope, rel=1e-4)
    assert measured == pytest.approx(predicted, rel=within)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("target", [0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_loop_turns_unstable_where_predicted_for_other_draws(
    name: str, target: float, seed: int
) -> None:
    for batch in (512, 4096):
        predicted, measured = stability.critical_gain(name, target, batch, seed=seed)
        assert measured == pytest.approx(predicted, rel=0.2)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("share", [0.3, 1.7, 2.3])
def test_the_exact_loop_is_the_law(name: str, share: float) -> None:
    family, gain = streams.FAMILIES[name], share / density(name, 0.2)
    logarithm = math.log(family.threshold(0.2)) + stability.NUDGE
    for rate in stability.loop(name, 0.2, gain, steps=60):
        expected = family.survival(math.exp(logarithm))
        assert rate == pytest.approx(expected, rel=1e-6)
        logarithm += gain * (expected - 0.2)


def test_the_exact_loop_shrinks_an_error_by_one_minus_gain_times_density() -> None:
    for share in (0.5, 1.5, 1.9, 2.1):
        errors = stability.loop("gamma2", 0.3, share / density("gamma2", 0.3), steps=6) - 0.3
        assert errors[1:] / errors[:-1] == pytest.approx(1 - share, abs=0.01)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("share", [0.3, 1.0, 1.7, 2.5])
def test_binomial_rates_are_those_of_a_gate_on_scores(name: str, share: float) -> None:
    gain = share / density(name, 0.3)
    run = response.respond(
        lambda rate: LogIntegral(rate, gain), streams.stationary(name), 0.3, 2000
    )
    drawn = stability.loop(name, 0.3, gain, batch=128, steps=2000)
    slow, fast = (np.asarray(r)[100:] - 0.3 for r in (run["rate"], drawn))
    assert fast.std() == pytest.approx(slow.std(), rel=0.12)
    turns = [np.corrcoef(errors[1:], errors[:-1])[0, 1] for errors in (slow, fast)]
    assert turns[0] == pytest.approx(turns[1], abs=0.1)


def test_the_loop_adds_the_predicted_noise_below_the_bound() -> None:
    found = stability.stability("lognormal", 0.3, batches=(4096,))
    assert found["gain x f"].tolist() == pytest.approx(list(stability.SHARES))
    calm = found[found["gain x f"] <= 1.8]
    assert calm["RMSE / floor"].to_numpy() == pytest.approx(calm["predicted"].to_numpy(), rel=0.08)
    assert calm["predicted"].iloc[2] == pytest.approx(math.sqrt(2))  # at gain f = 1
    assert found["stable"].tolist() == [share < 2 for share in stability.SHARES]
    beyond = found[found["gain x f"] > 2]
    assert (beyond["predicted"] == math.inf).all()
    assert (beyond["RMSE / floor"] > 5).all()


def test_gains_may_be_given_and_the_default_gain_is_far_from_the_bound() -> None:
    found = stability.stability("gamma2", 0.4, gains=[LogIntegral(0.4).gain], batches=(64, 128))
    assert found["batch"].tolist() == [64, 128]
    assert found["gain"].tolist() == [0.5, 0.5]
    assert (found["gain x f"] < 0.3).all()  # 0.4 is where gamma scores are densest
    assert found["stable"].all()


# --- the origin's PI -------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0.5, 1.0, 3.0])
def test_the_rhythm_of_the_origins_loop(density: float) -> None:
    # scores spread evenly, so that the rate is a straight line in the threshold
    controller = OriginPI(0.3, start=0.51)
    thresholds = []
    for _ in range(12_000):
        thresholds.append(controller.threshold(torch.rand(2), 0) - 0.5)
        controller.update(0.3 - density * thresholds[-1], torch.rand(2))
    swing = np.array(thresholds)
    upward = np.flatnonzero((swing[:-1] < 0) & (swing[1:] >= 0))
    crests = [swing[a:b].max() for a, b in pairwise(upward)]
    found = stability.origin_rhythm(density)
    assert np.diff(upward).mean() == pytest.approx(found.period, rel=0.01)
    decay = -found.period / np.log(crests[1] / crests[0])
    assert decay == pytest.approx(found.decay, rel=0.03)
    assert found.period == pytest.approx(2 * math.pi / math.sqrt(5e-5 * density), rel=0.02)


def test_a_pi_without_its_proportional_part_swings_ever_wider() -> None:
    assert stability.origin_rhythm(1.0, kp=0.0).decay < 0
    assert stability.origin_rhythm(1.0).decay > 0


def test_the_origins_pi_holds_its_own_score_in_the_end_and_raw_losses_not() -> None:
    rows = stability.origin_on_both_scores(steps=4000)
    runs = dict(iter(rows.groupby(["controller", "stream"])))
    own, raw = streams.relative(tau=2000).name, streams.ramp(tau=2000).name

    def rates(controller: str, stream: str) -> np.ndarray:
        return runs[controller, stream]["rate"].to_numpy()

    # on its own score: right in the mean of all, far off for hundreds of steps at a time
    assert rates("origin_pi", own).mean() == pytest.approx(0.1, abs=0.02)
    hundreds = rates("origin_pi", own).reshape(-1, 100).mean(1)
    assert np.abs(hundreds - 0.1).max() > 0.1
    assert np.abs(hundreds[-10:] - 0.1).max() < np.abs(hundreds[:10] - 0.1).max() / 2
    # which is its doing: a held threshold would not be there
    assert rates("held at its start", own).mean() > 0.3
    # on raw losses above 1 its threshold stands at its upper bound
    assert rates("origin_pi", raw).mean() > 0.3
    assert runs["origin_pi", raw]["threshold"].median() == 1.0
    for stream in (own, raw):
        hundreds = rates("log_integral", stream).reshape(-1, 100).mean(1)
        assert np.abs(hundreds - 0.1).max() < 0.02
    assert len(runs) == 3 * 4
    assert {len(run) for run in runs.values()} == {4000, streams.recorded().length}
