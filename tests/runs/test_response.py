"""How controllers answer: figures with known answers, and what the default one has to reach."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.gating import LogIntegral, OriginPI, TopK
from astkit.names import REGISTRIES
from astkit.profiling import bootstrap_interval
from astkit.runs import arms, response, streams
from astkit.runs.response import overshoot, respond, settling_time, table

TARGETS = [0.05, 0.10, 0.25, 0.50]
SEEDS = [6, pytest.param(20, marks=pytest.mark.full)]
TAU = 200
rates = st.lists(st.floats(0, 1), min_size=8, max_size=40)


# --- runs ------------------------------------------------------------------------------------


def test_a_gate_is_driven_as_in_training() -> None:
    """A training run's scores, played back to the same gate, give that run's own decisions."""
    recorder = streams.Recorder(("loss",))
    gate = {"score": recorder, "controller": "log_integral"}
    task = arms.task("digits", 0.2, device="cpu", epochs=2, gate=gate)
    steps = arms.trainer(task, "batched gate", 3).run().steps
    played = streams.Stream("played back", lambda step, seed: recorder.noted["loss"][step])
    run = respond("log_integral", played, 0.2, len(steps), seed=3)
    assert run["rate"].tolist() == [step["rate"] for step in steps]
    assert run["threshold"].tolist() == [step["threshold"] for step in steps]
    assert run["rows"].tolist() == [step["seen"] for step in steps]
    assert len(set(run["rows"])) == 2  # the last batch of a pass is small


def test_the_set_point_is_told_once_and_in_time() -> None:
    told: list[tuple[float, float]] = []

    class Told(TopK):
        def update(self, rate: float, scores: torch.Tensor) -> None:
            told.append((self.target_rate, rate))

    stream = streams.set_point("exponential", 0.5, change=3, batch=100)
    run = respond(Told, stream, 0.2, 6)
    assert run["target"].tolist() == [0.2] * 3 + [0.1] * 3
    assert told == [(0.2, 0.2)] * 3 + [(0.1, 0.1)] * 3
    assert run["rate"].tolist() == [0.2] * 3 + [0.1] * 3
    assert run["step"].tolist() == list(range(6))


def test_a_stream_that_is_too_short_is_refused_or_played_to_its_end() -> None:
    stream = streams.Stream("short", streams.stationary().scores, length=5)
    with pytest.raises(ValueError, match="steps is 6, but stream 'short' ends after 5"):
        respond("top_k", stream, 0.1, 6)
    rows = response.responses({"a": "top_k"}, [stream, streams.stationary()], 0.1, [0, 1], 8)
    assert rows.groupby(["stream", "seed"]).size().tolist() == [8, 8, 5, 5]


def test_responses_hold_every_run() -> None:
    two = [streams.stationary(), streams.ramp()]
    kinds = {"one": "log_integral", "two": OriginPI}
    rows = response.responses(kinds, two, 0.1, [3, 4], 5)
    assert rows.groupby(["controller", "stream", "seed"]).size().tolist() == [5] * 8
    part = rows[(rows.controller == "two") & (rows.stream == two[1].name) & (rows.seed == 4)]
    expected = respond(OriginPI, two[1], 0.1, 5, 4)
    pd.testing.assert_frame_equal(part[expected.columns], expected)


# --- figures of merit ------------------------------------------------------------------------


def test_settling_by_hand() -> None:
    # target 0.5: settled is a mean of two within 0.1, for three means in a row
    by_hand = {"window": 2, "hold": 3}
    wild, still = [1.0, 0.0, 1.0, 1.0], [0.5] * 6
    assert settling_time([*wild, *still], 0.5, **by_hand) == 4
    assert settling_time([*wild, *still], 0.5, change=3, **by_hand) == 1
    assert settling_time([*still, *wild, *still], 0.5, **by_hand) == 0
    assert settling_time([*still, *wild, *still], 0.5, change=6, **by_hand) == 4
    # means 1, .75, .5, .5, then .6 and .4 on the edge of the band, each held
    assert settling_time([1, 1, 0.5, 0.5, 0.5, 0.7, 0.1], 0.5, **by_hand) == 2
    # 1 and 0 in turn have a mean of 0.5: only the window's mean is looked at
    assert settling_time([1.0, 0.0] * 3, 0.5, **by_hand) == 0
    # back for two means only, then gone
    assert settling_time([1, 1, 0.5, 0.5, 0.5, 1, 1, 1], 0.5, **by_hand) == math.inf
    # back at the very end, too late to hold
    assert settling_time([1, 1, 1, 0.5, 0.5, 0.5], 0.5, **by_hand) == math.inf
    assert settling_time([0.5, 0.5, 0.5], 0.5, **by_hand) == math.inf


@settings(deadline=None)
@given(rates, st.floats(0.05, 1), st.integers(0, 3), st.integers(1, 5), st.integers(1, 6))
def test_settling_is_what_the_docstring_says(
    found: list[float], target: float, change: int, window: int, hold: int
) -> None:
    def mean(first: int) -> float:
        return sum(found[first : first + window]) / window

    expected = math.inf
    for start in range(change, len(found)):
        last = start + hold - 1  # where the last of the means begins
        if last + window > len(found):
            break
        errors = [abs(mean(first) - target) for first in range(start, last + 1)]
        if any(abs(error - 0.2 * target) < 1e-9 for error in errors):
            return  # rounding decides
        if all(error < 0.2 * target for error in errors):
            expected = start - change
            break
    assert settling_time(found, target, change, window=window, hold=hold) == expected


def test_overshoot_by_hand() -> None:
    def swing(found: list[float], change: int = 0) -> float:
        return overshoot(found, 0.5, change, window=2)

    # the step is 0.4; beyond the target the mean of two reaches 0.45 and 0.4 -> 0.1 / 0.4
    assert swing([0.9, 0.5, 0.4, 0.5, 0.4, 0.4, 0.5]) == pytest.approx(0.25)
    assert swing([0.1, 0.5, 0.6, 0.5, 0.6, 0.6, 0.5]) == pytest.approx(0.25)
    assert swing([0.9, 0.8, 0.7, 0.6, 0.5]) == 0  # it crept back from one side
    # before the change it does not count, and the step is the error at the change
    assert swing([0.0, 0.0, 0.9, 0.5, 0.3, 0.3], change=2) == pytest.approx(0.5)
    assert math.isnan(swing([0.55, 0.1, 0.9, 0.1]))
    assert not math.isnan(swing([0.61, 0.1, 0.9, 0.1]))


def test_too_few_steps_for_a_mean_are_refused() -> None:
    for measure in (settling_time, overshoot):
        with pytest.raises(ValueError, match="only 3 steps follow step 7, fewer than the window"):
            measure([1.0] * 10, 0.1, 7)


def test_errors_and_floor_by_hand() -> None:
    assert response.rmse([0.1, 0.5], [0.4, 0.1]) == pytest.approx(math.sqrt((0.09 + 0.16) / 2))
    assert response.rmse([0.1, 0.5], 0.3) == pytest.approx(0.2)
    assert response.binomial_floor(0.5, 100) == pytest.approx(0.05)
    # one batch of 100 rows, one of 4: variances 0.0025 and 0.0625
    assert response.binomial_floor(0.5, [100, 4]) == pytest.approx(math.sqrt(0.0325))
    assert response.ramp_bias(200, 0.5) == pytest.approx(-0.01)


def test_a_held_exact_threshold_has_the_floor_as_its_rmse() -> None:
    threshold = streams.FAMILIES["gamma2"].threshold(0.1)

    class Exact(TopK):
        def threshold(self, scores: torch.Tensor, quota: int) -> float:
            return threshold

    run = respond(Exact, streams.stationary(), 0.1, 2000)
    floor = response.binomial_floor(run["target"], run["rows"])
    assert response.rmse(run["rate"], run["target"]) == pytest.approx(floor, rel=0.06)


# --- the table -------------------------------------------------------------------------------


def test_the_table_holds_what_its_columns_say() -> None:
    kinds = {"slow": lambda rate: LogIntegral(rate, gain=0.1), "pi": "origin_pi"}
    shapes = [streams.ramp(tau=100), streams.shock(scale=0.25, change=20)]
    found = table(kinds, shapes, [0.2, 0.3], range(4), steps=120, skip=40)
    assert found[["stream", "target", "controller"]].to_numpy().tolist() == [
        [shape.name, target, name] for shape in shapes for target in (0.2, 0.3) for name in kinds
    ]
    row = found.iloc[6]  # the shock at 0.3 for the first of the controllers
    runs = [respond(kinds["slow"], shapes[1], 0.3, 120, seed) for seed in range(4)]
    mean = np.mean([run["rate"] for run in runs], axis=0)
    steady = [run[run["step"] >= 60] for run in runs]
    errors = [run["rate"].mean() - 0.3 for run in steady]
    assert (row["n"], row["steps"]) == (4, 120)
    assert row["settling"] == settling_time(mean, 0.3, 20)
    assert row["overshoot"] == pytest.approx(overshoot(mean, 0.3, 20))
    assert row["error"] == pytest.approx(np.mean(errors))
    assert (row["error low"], row["error high"]) == pytest.approx(
        bootstrap_interval(errors, "mean")
    )
    rmses = [math.sqrt(((run["rate"] - 0.3) ** 2).mean()) for run in steady]
    assert row["RMSE"] == pytest.approx(np.mean(rmses))
    assert row["floor"] == pytest.approx(math.sqrt(0.3 * 0.7 / 128))
    assert row["RMSE / floor"] == pytest.approx(row["RMSE"] / row["floor"])
    predicted = found["predicted error"].tolist()
    assert predicted[0] == pytest.approx(-0.1)  # tau 100, gain 0.1
    assert predicted[4] == 0
    assert all(math.isnan(value) for value in predicted[1::2])


def test_one_seed_has_no_interval_and_a_moved_target_counts() -> None:
    stream = streams.set_point(factor=3, change=10)
    row = table({"k": "top_k"}, [stream], [0.1], [0], steps=60, skip=20).iloc[0]
    assert math.isnan(row["error low"])
    assert math.isnan(row["error high"])
    assert row["settling"] == 0
    assert row["error"] == pytest.approx(0, abs=1e-3)
    assert row["floor"] == pytest.approx(math.sqrt(0.3 * 0.7 / 128))


def test_a_run_without_a_steady_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"steps is 150, but the error is taken from step 200 on"):
        table({"k": "top_k"}, [streams.shock()], [0.1], [0], steps=150)


def test_no_prediction_for_recorded_scores_nor_for_a_gain_that_moves() -> None:
    kinds = {"fixed": LogIntegral, "auto": lambda rate: LogIntegral(rate, gain="auto")}
    moving = table(kinds, [streams.ramp()], [0.1], [0], steps=20, skip=5)
    assert moving["predicted error"].isna().tolist() == [False, True]
    found = table(kinds, [streams.recorded(epochs=2)], [0.1], [0], skip=5)
    assert found["predicted error"].isna().all()
    assert found["steps"].iloc[0] == streams.recorded(epochs=2).length


# --- what the default controller has to reach ------------------------------------------------


# log-scores of the lognormal family are spread widest: there the noise-free loop itself takes 76
LATE = ("lognormal", 0.25, 0.05)


@pytest.mark.parametrize(
    "name",
    ["gamma2", *(pytest.param(n, marks=pytest.mark.full) for n in ("lognormal", "exponential"))],
)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [4.0, 0.25], ids=["up", "down"])
def test_the_default_settles_after_a_fourfold_shock(scale: float, target: float, name: str) -> None:
    stream = streams.shock(name, scale, change=40)
    runs = [respond("log_integral", stream, target, 160, seed) for seed in range(20)]
    mean = np.mean([run["rate"] for run in runs], axis=0)
    assert mean[30:40].mean() == pytest.approx(target, rel=0.2)  # it was there
    assert abs(mean[40] - target) > 0.5 * target  # it was thrown out
    # it came back, and stayed
    assert settling_time(mean, target, 40) <= (90 if (name, scale, target) == LATE else 75)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_default_has_no_steady_error(target: float, seeds: int) -> None:
    shapes = [streams.stationary(name) for name in streams.FAMILIES]
    found = table({"default": "log_integral"}, shapes, [target], range(seeds), 300)
    assert (found["error"].abs() < 0.005).all()
    # the worst end of each interval, too
    assert (found[["error low", "error high"]].abs() < 0.005).all(axis=None)
    assert (found["RMSE / floor"] < 1.15).all()


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("gain", [0.1, 0.25, 0.5, 1.0])
def test_the_bias_on_a_ramp_is_the_predicted_one(gain: float, seeds: int) -> None:
    ramps = [streams.ramp(name, TAU) for name in streams.FAMILIES]
    found = table({"i": lambda rate: LogIntegral(rate, gain)}, ramps, [0.25], range(seeds), 600)
    assert (found["predicted error"] == -1 / (TAU * gain)).all()
    assert found["error"].to_numpy() == pytest.approx(-1 / (TAU * gain), rel=0.1, abs=2e-4)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("target", [0.05, 0.10, 0.25, 0.40])
def test_the_rate_is_held_while_scores_decay(target: float, seeds: int) -> None:
    ramp = streams.ramp(tau=TAU)
    row = table({"default": "log_integral"}, [ramp], [target], range(seeds), 800, skip=0).iloc[0]
    assert row["predicted error"] - 0.005 <= row["error"] < 0
    assert row["RMSE / floor"] <= 1.15


@pytest.mark.parametrize("name", ["log_integral", "top_k"])
def test_a_new_set_point_is_reached(name: str) -> None:
    for factor in (0.4, 2.5):
        stream = streams.set_point("lognormal", factor, change=50)
        found = table({name: name}, [stream], [0.2], range(5), 250, skip=50).iloc[0]
        assert found["settling"] <= 40
        assert abs(found["error"]) < 0.005


def test_recorded_scores_are_followed() -> None:
    # losses fall by a factor of hundreds within 165 steps; the origin's PI cannot follow
    kinds = {"log_integral": "log_integral", "origin_pi": "origin_pi"}
    found = table(kinds, [streams.recorded("loss")], [0.25], [0], skip=50).set_index("controller")
    assert abs(found["error"]["log_integral"]) < 0.05
    assert found["RMSE / floor"]["log_integral"] < 2 < 3 < found["RMSE / floor"]["origin_pi"]


def test_gates_of_any_registered_controller_are_driven() -> None:
    for name in REGISTRIES["controller"]:
        run = respond(name, streams.stationary(batch=32), 0.25, 10)
        assert run["rate"].between(0, 1).all()
        assert run["threshold"].notna().all()
