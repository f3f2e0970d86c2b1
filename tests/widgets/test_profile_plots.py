"""Bars of phases and curves of throughput hold the sums and means of the rows they were given."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba

from astkit.widgets import plots
from astkit.widgets.profile_plots import PHASES

ARMS = ("dense", "batched gate")


@pytest.fixture
def results():
    """Ten batches a run; seconds of the dense arm as below, of the other 0.1 more to score."""
    phases = {"log": 0.01, "load": 0.02, "forward": 0.05, "backward": 0.1, "optimizer": 0.02}
    return [
        {
            "arm": arm,
            "seed": seed,
            "training_steps": 10,
            "phases": {**phases, "score": 0.1} if arm == ARMS[1] else phases,
            "seconds": 0.25 + 0.1 * (arm == ARMS[1]) + 0.02 * seed,
        }
        for arm in ARMS
        for seed in (0, 1)
    ]


@pytest.fixture
def series():
    rows = []
    for arm in ARMS:
        for seed in (0, 1):
            for step in (21, 41, 61):
                speed = 1000.0 + step + 10 * seed + 500 * (arm == "dense")
                rows.append(
                    {
                        "arm": arm,
                        "seed": seed,
                        "step": step,
                        "seen_per_second": speed,
                        "trained_per_second": speed / 2,
                        "utilisation": 0.9,
                        "cpu_utilisation": 0.5,
                        "gpu_utilisation": None,
                        "memory_bytes": 10**8,
                    }
                )
    return rows


def bars(picture):
    """Phase to [(left end, width) of each arm]."""
    axis = picture.axes[0]
    return {
        part.get_label(): [(bar.get_x(), bar.get_width()) for bar in part]
        for part in axis.containers
    }


def widths(picture, arm):
    return {phase: pair[arm][1] for phase, pair in bars(picture).items()}


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def test_a_bar_holds_the_milliseconds_of_each_phase(results):
    picture = plots.phase_breakdown(results)
    plain = {"load": 2, "forward": 5, "backward": 10, "optimizer": 2, "log": 1, "other": 6}
    assert widths(picture, 0) == pytest.approx({**plain, "score": 0})
    assert widths(picture, 1) == pytest.approx({**plain, "score": 10})
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == list(ARMS)
    assert [text.get_text() for text in picture.axes[0].texts] == [" 26 ms", " 36 ms"]
    assert picture.get_suptitle() == "mean of 2 seeds"


def test_parts_follow_one_another_in_the_order_of_a_batch(results):
    picture = plots.phase_breakdown(results)
    expected = ["load", "score", "forward", "backward", "optimizer", "log", "other"]
    assert legend(picture) == list(bars(picture)) == expected
    for arm in range(2):
        ends = 0.0
        for pairs in bars(picture).values():
            assert pairs[arm][0] == pytest.approx(ends)
            ends += pairs[arm][1]


def test_shares_add_up_to_one(results):
    picture = plots.phase_breakdown(results, by="share")
    for arm, total in enumerate((26, 36)):
        assert sum(widths(picture, arm).values()) == pytest.approx(1)
        assert widths(picture, arm)["backward"] == pytest.approx(10 / total)
    assert [text.get_text() for text in picture.axes[0].texts] == [" 26 ms", " 36 ms"]


def test_what_lies_outside_of_every_clock_is_drawn_where_it_is_known(results):
    for row in results:
        row |= {"wall_seconds": row["seconds"] + 0.5 + 0.04, "evaluation_seconds": 0.5}
    picture = plots.phase_breakdown(results)
    assert widths(picture, 0)["draw"] == pytest.approx(4)
    assert legend(picture)[-2:] == ["other", "draw"]


def test_windows_of_a_run_are_added_up(results):
    (row,) = [row for row in results if (row["arm"], row["seed"]) == ("dense", 0)]
    whole = plots.phase_breakdown([row])
    late = {**row, "training_steps": 30, "phases": {"load": 0.3}, "seconds": 0.3}
    both = widths(plots.phase_breakdown([row, late]), 0)
    assert widths(whole, 0)["load"] == pytest.approx(2)
    assert both["load"] == pytest.approx((20 + 300) / 40)
    assert both["backward"] == pytest.approx(100 / 40)


def test_a_phase_of_ones_own_comes_before_what_is_left(results):
    results[0]["phases"] = {**results[0]["phases"], "distil": 0.004}
    assert legend(plots.phase_breakdown(results))[-2:] == ["distil", "other"]


def test_neighbours_differ_in_grey():
    rows = [{"phases": dict.fromkeys(PHASES[:-2], 0.1), "seconds": 1.0, "training_steps": 1}]
    parts = plots.phase_breakdown(rows).axes[0].containers
    looks = [(bar.get_facecolor(), bar.get_hatch()) for part in parts for bar in part]
    assert len(set(looks)) == len(looks) == len(PHASES) - 1
    grey = [float(np.dot(to_rgba(colour)[:3], [0.2126, 0.7152, 0.0722])) for colour, _ in looks]
    hatches = [hatch for _, hatch in looks]
    for place in range(1, len(looks)):
        told = abs(grey[place] - grey[place - 1]) > 0.1 or hatches[place] != hatches[place - 1]
        assert told


def test_arms_are_chosen_and_ordered(results):
    picture = plots.phase_breakdown(results, arms=["batched gate"])
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["batched gate"]
    with pytest.raises(ValueError, match="no arm 'random'"):
        plots.phase_breakdown(results, arms=["random"])
    with pytest.raises(ValueError, match="by is 'step': choose batch or share"):
        plots.phase_breakdown(results, by="step")
    with pytest.raises(ValueError, match="needs the column training_steps"):
        plots.phase_breakdown([{"phases": {}, "seconds": 1.0}])


# --- curves


def lines(axis):
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines
    }


def test_curves_hold_the_mean_over_seeds(series):
    picture = plots.throughput_curves(series)
    seen, trained, clock, cpu, memory = picture.axes[:5]
    assert lines(seen) == {
        "dense": ([21, 41, 61], [1526, 1546, 1566]),
        "batched gate": ([21, 41, 61], [1026, 1046, 1066]),
    }
    assert lines(trained)["dense"][1] == [763, 773, 783]
    assert lines(clock)["dense"][1] == [0.9] * 3
    assert lines(cpu)["batched gate"][1] == [0.5] * 3
    assert lines(memory)["dense"][1] == [1e8] * 3
    assert legend(picture) == list(ARMS)
    assert picture.get_suptitle() == "mean of 2 seeds"


def test_what_was_not_measured_is_not_drawn(series):
    titles = [axis.get_title() for axis in plots.throughput_curves(series).axes if axis.axison]
    assert "GPU utilisation" not in titles
    assert len(titles) == 5
    for row in series:
        row["gpu_utilisation"] = 0.7
    titles = [axis.get_title() for axis in plots.throughput_curves(series).axes if axis.axison]
    assert titles[4:] == ["GPU utilisation", "peak memory"]


def test_curves_stay_within_their_axes(series):
    for axis in plots.throughput_curves(series).axes[:5]:
        low, high = axis.get_ylim()
        assert low == 0
        assert high > max(max(y) for _, y in lines(axis).values())


def test_one_arm_keeps_its_place_and_needs_no_legend(series):
    one = [row for row in series if row["arm"] == "batched gate"]
    assert not plots.throughput_curves(one).legends
    picture = plots.throughput_curves(series, arms=["batched gate"])
    both = plots.throughput_curves(series)
    assert picture.axes[0].lines[0].get_color() == both.axes[0].lines[1].get_color()


def test_a_file_will_do(series, results, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in series))
    assert lines(plots.throughput_curves(path).axes[0])["dense"][1] == [1526, 1546, 1566]
    path.write_text("\n".join(json.dumps(row) for row in results))
    assert widths(plots.phase_breakdown(path), 0)["load"] == pytest.approx(2)


def test_tables_that_will_not_do(series):
    with pytest.raises(ValueError, match="same arm and step twice"):
        plots.throughput_curves([*series, series[0]])
    with pytest.raises(ValueError, match="needs the column utilisation"):
        plots.throughput_curves(pd.DataFrame(series).drop(columns="utilisation"))


# --- speed of arms


SPEEDS = [
    {"arm": "plain", "speed": 1.0, "low": 1.0, "high": 1.0, "n": 7},
    {"arm": "faster", "speed": 2.0, "low": 1.8, "high": 2.5, "n": 7},
    {"arm": "slower", "speed": 0.5, "low": 0.4, "high": 0.55, "n": 7},
]


def test_speeds_are_bars_with_their_intervals_in_the_order_given():
    figure = plots.speed_bars(SPEEDS)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["plain", "faster", "slower"]
    assert [bar.get_width() for bar in axis.patches] == [1.0, 2.0, 0.5]
    (ends,) = axis.collections
    spans = [tuple(segment[:, 0]) for segment in ends.get_segments()]
    assert spans == [(1.0, 1.0), pytest.approx((1.8, 2.5)), pytest.approx((0.4, 0.55))]
    assert axis.patches[2].get_hatch() != axis.patches[1].get_hatch()  # losing shows without colour


def test_speeds_need_an_arm_each():
    with pytest.raises(ValueError, match="same arm twice"):
        plots.speed_bars([*SPEEDS, SPEEDS[1]])
    with pytest.raises(ValueError, match="column low"):
        plots.speed_bars([{"arm": "a", "speed": 1, "high": 1, "n": 2}])
