"""Pictures take frames, rows and files, and say in a sentence what a table lacks."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from astkit.widgets import frames, plots

STEPS = [{"step": s, "threshold": 1.0, "rate": 0.1, "target_rate": 0.1} for s in (1, 2, 3)]
EPOCHS = [{"epoch": 1, "val_loss": 1.0, "val_accuracy": 0.5, "seconds": 1.0, "flops": 1.0}]
SCORES = [
    {"step": 1, "level": level, "score": 1 + level, "threshold": 1.5} for level in (0.0, 0.5, 1.0)
]
CLASSES = [{"step": 1, "class": 0, "seen": 4, "active": 1}]
COSTS = [{"arm": "dense", "flops_scoring": 0.0, "flops_forward": 1.0, "flops_backward": 2.0}]
RESPONSES = [{"controller": "a", "step": 1, "rate": 0.1, "threshold": 1.0, "target": 0.1}]

PICTURES = {
    "training_curves": (EPOCHS, ["val_loss", "val_accuracy"]),
    "accuracy_against_cost": (EPOCHS, ["seconds", "flops", "val_accuracy"]),
    "threshold_and_rate": (STEPS, ["step", "threshold", "rate"]),
    "step_response": (RESPONSES, ["controller", "step", "rate", "threshold", "target"]),
    "score_heatmap": (SCORES, ["step", "level", "score", "threshold"]),
    "class_activation": (CLASSES, ["step", "class", "seen", "active"]),
    "cost_breakdown": (COSTS, ["flops_scoring", "flops_forward", "flops_backward"]),
}


def numbers(picture):
    lines = [list(line.get_xydata().ravel()) for axis in picture.axes for line in axis.lines]
    bars = [(bar.get_x(), bar.get_width()) for axis in picture.axes for bar in axis.patches]
    meshes = [
        list(mesh.get_array().ravel())
        for axis in picture.axes
        for mesh in axis.collections
        if mesh.get_array() is not None
    ]
    return [value for part in (*lines, *bars, *meshes) for value in part]


@pytest.mark.parametrize("name", PICTURES)
def test_a_frame_its_rows_and_its_file_give_one_picture(name, tmp_path):
    rows, _ = PICTURES[name]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw = getattr(plots, name)
    shown = [numbers(draw(table)) for table in (pd.DataFrame(rows), rows, path, str(path))]
    assert shown[0]
    assert all(np.array_equal(values, shown[0], equal_nan=True) for values in shown)


@pytest.mark.parametrize("name", PICTURES)
def test_each_missing_column_is_named(name):
    rows, needed = PICTURES[name]
    for column in needed:
        table = pd.DataFrame(rows).drop(columns=column).assign(other=1)
        with pytest.raises(ValueError, match=f"^{name} needs the column {column}, but .*other"):
            getattr(plots, name)(table)


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("table", [[], pd.DataFrame({"step": []})], ids=["rows", "frame"])
def test_an_empty_table_is_called_that(name, table):
    with pytest.raises(ValueError, match=f"^{name} was given a table without .*rows"):
        getattr(plots, name)(table)


def test_two_missing_columns_are_both_named():
    with pytest.raises(ValueError, match="needs the columns threshold, rate, but"):
        plots.threshold_and_rate([{"step": 1}])


def test_the_callers_frame_stays_as_it_is():
    for name, (rows, _) in PICTURES.items():
        table = pd.DataFrame(rows)
        before = table.copy()
        getattr(plots, name)(table)
        pd.testing.assert_frame_equal(table, before)


def test_of_a_file_with_all_phases_the_right_one_is_taken(tmp_path):
    mixed = [{"phase": "train", **row} for row in STEPS]
    mixed += [{"phase": "validate", "step": 3}, {"phase": "epoch", "step": 3, **EPOCHS[0]}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in mixed) + "\n\n")
    assert list(plots.threshold_and_rate(path).axes[0].lines[0].get_xdata()) == [1, 2, 3]
    assert list(plots.training_curves(path).axes[0].lines[0].get_ydata()) == [1.0]
    path.write_text(json.dumps(mixed[0]) + "\n")
    with pytest.raises(ValueError, match="training_curves was given a table without 'epoch' rows"):
        plots.training_curves(path)


def test_numbers_that_python_writes_and_json_does_not_know_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1, "threshold": math.inf, "rate": math.nan}) + "\n")
    assert frames.read(path, "it", ["step"])["threshold"].iloc[0] == math.inf
    plots.threshold_and_rate(path, 0.1)._repr_png_()


@pytest.mark.parametrize("text", ['{"step": 1}\n{"st', '{"step": 1}\n3\n', "[1]\n"])
def test_a_broken_line_is_named(tmp_path, text):
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    number = 1 if text.startswith("[") else 2
    with pytest.raises(ValueError, match=rf"line {number} of .*broken\.jsonl is no JSON object"):
        plots.training_curves(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.jsonl"):
        plots.training_curves(tmp_path / "gone.jsonl")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("threshold_and_rate", "arm"),
        ("score_heatmap", "arm"),
        ("class_activation", "arm"),
        ("step_response", "stream"),
    ],
)
def test_what_one_picture_cannot_show_together_is_refused(name, column):
    rows, _ = PICTURES[name]
    table = [{**row, column: value, "seed": i} for i, value in enumerate("ab") for row in rows]
    with pytest.raises(ValueError, match=f"shows one {column} at a time.*'a', 'b'"):
        getattr(plots, name)(table)


@pytest.mark.parametrize("name", ["threshold_and_rate", "score_heatmap", "step_response"])
def test_runs_that_nothing_tells_apart_are_refused(name):
    rows, _ = PICTURES[name]
    with pytest.raises(ValueError, match=f"{name} was given the same .*step.* twice"):
        getattr(plots, name)(rows + rows)
    getattr(plots, name)([{**row, "seed": seed} for seed in (0, 1) for row in rows])


def test_unknown_arms_are_refused_with_those_there_are():
    for name in ("training_curves", "accuracy_against_cost"):
        with pytest.raises(ValueError, match="no arm 'gated': choose among 'run'"):
            getattr(plots, name)(EPOCHS, arms=["run", "gated"])
    with pytest.raises(ValueError, match="no controller 'b': choose among 'a'"):
        plots.step_response(RESPONSES, controllers=["b"])
    with pytest.raises(ValueError, match="no arm 'none'"):
        plots.cost_breakdown(COSTS, control="none")


@pytest.mark.parametrize(("steps", "count"), [(range(10, 20), 3), ([1, 11, 21, 31], 2), ([5], 4)])
def test_windows_hold_nearly_as_many_steps_each_and_begin_at_one_of_them(steps, count):
    steps = pd.Series(list(steps) * 2)  # two seeds
    window = frames.windows(steps, count)
    assert window.nunique() == min(count, steps.nunique())
    sizes = steps.groupby(window.to_numpy()).nunique()
    assert sizes.max() - sizes.min() <= 1
    assert (window <= steps).all()
    assert set(window) <= set(steps)
    firsts = steps.groupby(window.to_numpy()).min()
    assert list(firsts.index) == list(firsts)
