"""Pictures hold the means, bands and parts of the table they were given, or say what it lacks."""

import numpy as np
import pandas as pd
import pytest

from astkit.widgets import plots

ARMS = ("dense", "batched gate", "random")


@pytest.fixture
def results():
    costs = {"dense": (0, 10, 20), "batched gate": (8, 1, 2), "random": (0, 4, 38)}
    rows = [(arm, seed, *(part + seed for part in costs[arm])) for arm in ARMS for seed in (0, 2)]
    columns = ["arm", "seed", "flops_scoring", "flops_forward", "flops_backward"]
    return pd.DataFrame(rows, columns=columns)


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def rows_of(axis):
    return [tick.get_text() for tick in axis.get_yticklabels()]


def stacks(picture):
    """Per label of the legend: (left, width) of each row's bar."""
    return {
        group.get_label(): [(bar.get_x(), bar.get_width()) for bar in group]
        for group in picture.axes[0].containers
    }


def test_bars_stack_the_parts_and_name_their_ratio_to_dense_training(results):
    picture = plots.cost_breakdown(results)
    (axis,) = picture.axes
    assert stacks(picture) == {
        "score": [(0, 1), (0, 9), (0, 1)],
        "forward": [(1, 11), (9, 2), (1, 5)],
        "backward": [(12, 21), (11, 3), (6, 39)],
    }
    assert rows_of(axis) == list(ARMS)
    ratios = [text.get_text().strip() for text in axis.texts]
    assert ratios == ["1.00 × dense", "0.42 × dense", "1.36 × dense"]
    assert legend(picture) == list(stacks(picture))
    assert axis.get_xlim()[1] > 45  # room for the ratio behind the longest bar
    looks = {(bars[0].get_facecolor(), bars[0].get_hatch()) for bars in axis.containers}
    assert len(looks) == 3
    alone = plots.cost_breakdown(results[results["arm"] == "random"])
    assert set(stacks(alone)) == {"score", "forward", "backward"}
    assert not alone.axes[0].texts


def test_seconds_of_an_epoch_stand_in_a_panel_of_their_own_with_the_range_of_the_seeds(results):
    table = results.assign(seconds=[1.0, 3.0, 0.5, 0.7, 4.0, 4.0])
    flops, time = plots.cost_breakdown(table).axes
    assert rows_of(flops) == list(ARMS)
    assert [bar.get_width() for bar in time.patches] == pytest.approx([2.0, 0.6, 4.0])
    (whiskers,) = time.collections
    assert np.allclose(
        [line[:, 0] for line in whiskers.get_segments()], [[1, 3], [0.5, 0.7], [4, 4]]
    )
    assert [text.get_text().strip() for text in time.texts] == [
        "1.00 × dense",
        "0.30 × dense",
        "2.00 × dense",
    ]


@pytest.fixture
def timed():
    """Ten batches a run; seconds of the dense arm as below, of the other 0.1 more to score."""
    phases = {"log": 0.01, "load": 0.02, "forward": 0.05, "backward": 0.1, "optimizer": 0.02}
    return [
        {
            "arm": arm,
            "training_steps": 10,
            "phases": {**phases, "score": 0.1} if arm == ARMS[1] else phases,
            "seconds": 0.26 + 0.1 * (arm == ARMS[1]),
        }
        for arm in ARMS[:2]
    ]


def widths(picture, arm):
    return {phase: pair[arm][1] for phase, pair in stacks(picture).items()}


def test_a_bar_holds_the_milliseconds_of_each_phase_in_the_order_of_a_batch(timed):
    picture = plots.phase_breakdown(timed)
    plain = {"load": 2, "forward": 5, "backward": 10, "optimizer": 2, "log": 1, "other": 6}
    assert widths(picture, 0) == pytest.approx({**plain, "score": 0})
    assert widths(picture, 1) == pytest.approx({**plain, "score": 10})
    assert rows_of(picture.axes[0]) == list(ARMS[:2])
    assert [text.get_text() for text in picture.axes[0].texts] == [" 26 ms", " 36 ms"]
    expected = ["load", "score", "forward", "backward", "optimizer", "log", "other"]
    assert legend(picture) == list(stacks(picture)) == expected
    for arm in range(2):
        lefts, sizes = np.transpose([pairs[arm] for pairs in stacks(picture).values()])
        assert lefts == pytest.approx(np.cumsum(sizes) - sizes)


def test_speeds_are_bars_and_their_interval_decides_what_they_are_called():
    rows = [("plain", 1, 1, 1), ("fast", 2, 1.8, 2.5), ("slow", 0.5, 0.4, 0.55), ("?", 2.1, 0.9, 3)]
    table = [dict(zip(("arm", "speed", "low", "high"), row, strict=True), n=7) for row in rows]
    picture = plots.speed_bars(table)
    (axis,) = picture.axes
    assert rows_of(axis) == ["?", "fast", "slow"]
    groups = {
        bars.get_label(): [(round(bar.get_y() + bar.get_height() / 2), bar.get_width())
                           for bar in bars]
        for bars in axis.containers if hasattr(bars, "patches")
    }  # fmt: skip
    assert groups == {
        "faster": [(1, 2.0)],
        "slower": [(2, 0.5)],
        "cannot tell: the interval contains 1": [(0, 2.1)],
    }
    assert set(legend(picture)) == {*groups, "plain"}
    spans = [tuple(segment[:, 0]) for segment in axis.collections[0].get_segments()]
    assert np.allclose(spans, [rows[place][2:] for place in (3, 1, 2)])
    assert len({bar.get_hatch() for bar in axis.patches}) == 2  # losing shows without colour
    assert axis.get_xlabel() == "times as fast as plain (n = 7)"
