"""Tables against figures worked out by hand."""

import math

import pandas as pd
import pytest

from astkit.runs import claims, tables
from astkit.runs.compare import condensed


def result(arm, seed, accuracy, flops, seconds, **more):
    base = {
        "arm": arm,
        "seed": seed,
        "test_accuracy": accuracy,
        "rate": None,
        "samples_scored": 0,
        "samples_trained": 100,
        "flops": flops,
        "seconds": seconds,
        "origin_energy_units": 1000.0,
        "training_steps": 2,
        "steps": [{"step": 1, "epoch": 0, "rate": 0.1}, {"step": 2, "epoch": 0, "rate": 0.3}],
        "epochs": [{"epoch": 1, "val_accuracy": accuracy}],
    }
    return {**base, **more}


@pytest.fixture
def results():
    return [
        result("dense", 0, 0.9, 100.0, 4.0),
        result("batched gate", 0, 0.8, 50.0, 3.0, rate=0.1, origin_energy_units=110.0),
        result("dense, equal seconds", 0, 0.7, 75.0, 3.0),
        result("dense", 1, 0.8, 100.0, 2.0),
        result("batched gate", 1, 0.9, 25.0, 1.0, rate=0.2, origin_energy_units=90.0),
        result("dense, equal seconds", 1, 0.6, 50.0, 1.0),
    ]


def test_what_was_done_is_the_mean_over_seeds_of_what_repeats(results):
    done = tables.what_was_done(results)
    assert list(done.index) == ["dense", "batched gate"]  # an arm timed by the clock never repeats
    gate = done.loc["batched gate"]
    assert gate["n"] == 2
    assert gate["test accuracy"] == pytest.approx(0.85)
    assert gate["spread"] == pytest.approx(0.1 / 2**0.5)  # of two values 0.1 apart
    assert gate["activation rate"] == pytest.approx(0.15)
    assert gate["FLOPs / dense"] == pytest.approx((0.5 + 0.25) / 2)


def test_seconds_are_compared_within_a_seed(results):
    took = tables.how_long_it_took(results)
    assert took.loc["batched gate", "seconds / dense"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert took.loc["dense, equal seconds", "seconds"] == pytest.approx(2.0)
    assert took.loc["dense", "ms / trained sample"] == pytest.approx(6.0 / 200 * 1e3)


def test_differences_are_paired_by_seed(results):
    gap = tables.difference(results, "batched gate", "dense")
    assert tuple(gap) == pytest.approx((0.0, -0.1, 0.1, 2))
    assert str(gap) == "+0.00% [-10.00%, +10.00%], n = 2"


def test_one_seed_has_a_difference_and_no_interval(results):
    first = [result for result in results if result["seed"] == results[0]["seed"]]
    gap = tables.difference(first, "batched gate", "dense")
    assert abs(gap.mean) == pytest.approx(0.1)
    assert math.isnan(gap.low)
    assert str(gap).endswith("n = 1, so without an interval")


def test_tidy_keeps_arm_and_seed_with_every_entry(results):
    steps = tables.tidy(results, "steps")
    assert len(steps) == 12
    assert set(steps["arm"]) == {"dense", "batched gate", "dense, equal seconds"}
    assert steps.groupby(["arm", "seed"])["rate"].mean().to_numpy() == pytest.approx([0.2] * 6)


def test_shown_writes_shares_as_percent_and_absence_as_a_dash(results):
    shown = tables.shown(tables.what_was_done(results))
    assert shown.loc["dense", "activation rate"] == "–"
    assert shown.loc["batched gate", "test accuracy"] == "85.00%"
    assert shown.loc["dense", "n"] == "2"


def test_condensing_keeps_means_over_each_pass(results):
    kept = condensed({"results": results, "stamp": {}})["results"][0]
    assert kept["steps"] == [{"step": 1.5, "epoch": 0.0, "rate": pytest.approx(0.2)}]
    assert kept["training_steps"] == 2
    assert len(results[0]["steps"]) == 2  # what was condensed is as it was


def test_claims_stand_beside_the_means_measured(results):
    batch = {"arm": "batched gate", "speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6}
    table = claims.table({"results": results, "batches": [{**batch, "rounds": 9}]})
    measured = table["measured"]
    assert measured["accuracy of the gate"] == "85.0%"
    assert measured["speed over dense, whole run"] == "1.50 x"
    assert measured["speed over dense, a batch, interleaved"] == "1.50 x [1.40, 1.60]"
    assert measured["FLOPs, dense over gate"] == "2.67 x"
    assert measured["energy saved"] == "joules not measured (90.0% of its units)"
    assert set(table["n"]) == {2, 9}


def test_claims_without_a_run_say_so():
    assert set(claims.table({"results": []})["measured"]) == {"not run"}
    assert claims.full_length([], 40).iloc[0, -1] == "not run"


def test_a_short_run_has_no_full_length_accuracy(results):
    assert set(claims.full_length(results, 40).iloc[:, -1]) == {"not run"}
    assert claims.full_length(results[:1], 1).iloc[0, -1] == "90.0%"


def test_steered_runs_are_left_out_of_means(results):
    steered = [{**result, "seed": 9, "test_accuracy": 0.0, "steered": True} for result in results]
    for table in (tables.what_was_done, tables.how_long_it_took):
        pd.testing.assert_frame_equal(table([*results, *steered]), table(results))
    difference = tables.difference([*results, *steered], "batched gate", "dense")
    assert difference == tables.difference(results, "batched gate", "dense")
