"""The figures beside the notebooks: what is drawn where."""

import importlib.util
import io
import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from astkit.systems.automaton import AutomatonTrainer, game_of_life
from tests.notebooks.conftest import FOLDER


def beside(name):
    """A module beside the notebooks."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures, pictures = beside("figures"), beside("pictures")


def test_gains_have_a_panel_a_unit_and_one_row_alone_joins_the_others():
    rows = [
        {"condition": "drift", "unit": "%", "gain": 12.0, "gain_low": 3.0, "gain_high": 21.0},
        {"condition": "same", "unit": "%", "gain": -0.01, "gain_low": -1.0, "gain_high": 1.0},
        {"condition": "late", "unit": "points", "gain": 0.5, "gain_low": -1.0, "gain_high": 2.0},
    ]
    table = pd.DataFrame(rows).assign(other=5.0)
    (axis,) = pictures.gains(table, "both").axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["drift", "same", "late"]
    assert [text.get_text() for text in axis.texts] == ["+12.0 %", "0.0 %", "+0.5 points"]
    assert axis.get_xscale() == "linear"
    assert axis.get_xlabel() == "gain over dense training, % of the error"
    green, grey = axis.texts[0].get_color(), axis.texts[1].get_color()
    assert (green, grey) == (pictures.line("aim")["color"], pictures.SOFT)
    both = pictures.gains(pd.concat([table, table]), "both").axes
    assert [axis.get_xlabel() for axis in both] == [
        "gain over dense training, % of the error",
        "gain over dense training, points of accuracy",
    ]


def test_predictions_far_off_have_the_name_of_their_kind():
    rows = [
        {"kind": "web", "unit": "points", "gain": 7.0, "forecast": 14.0},
        {"kind": "clean", "unit": "points", "gain": 1.0, "forecast": 2.0},
        {"kind": "drift", "unit": "%", "gain": 90.0, "forecast": 89.0},
    ]
    table = pd.DataFrame(rows).assign(gain_low=0.5, gain_high=95.0, forecast_error=1.0)
    figure = pictures.forecasts(table)
    points, percent = figure.axes
    assert [text.get_text() for text in points.texts] == ["web"]
    assert percent.texts[:] == []
    assert figure.get_suptitle() == "2 of 3 predictions were within 5 points or percent"


def a_history(seeds, steps):
    rows = [
        {"seed": seed, "step": step, "val_loss": 0.1 / step, "val_wrong": 250 * (step <= seed)}
        for seed in seeds
        for step in steps
    ]
    return pd.DataFrame(rows).assign(val_accuracy=lambda table: 1 - table["val_wrong"] / 1000)


def test_seeds_that_end_with_wrong_cells_are_red_and_counted():
    figure = figures.soft_and_hard(a_history((0, 9), (1, 2, 3)))
    losses, wrong = figure.axes
    assert [line.get_color() for line in losses.lines] == [figures.SELECTED, figures.COLOURS[0]]
    assert wrong.lines[0].get_ydata().tolist() == [0, 0, 0]
    assert figure.get_suptitle().startswith("1 of 2 end all right")


def test_a_circuit_is_seen_after_some_updates_beside_the_truth():
    trainer = AutomatonTrainer(game_of_life(), iterations=50, device="cpu")
    seen = figures.Learning(trainer)
    trainer.run(progress=False)
    assert list(seen) == [0, 25, 50]
    history = a_history((0, 1), (25, 50))
    figure = figures.circuit_learns(seen, history)
    titles = [axis.get_title() for axis in figure.axes[:4]]
    assert titles == ["0 updates", "25 updates", "50 updates", "Life itself"]
    wrong = int((seen[50] != seen.true).any(-1).sum())
    assert figure.axes[2].get_xlabel() == f"{wrong:,} wrong"
    assert figure.axes[-1].lines[-1].get_color() == figures.INK  # the seed that is seen
    seen[50] = seen.true
    assert figures.circuit_learns(seen, history).axes[2].get_xlabel() == "all right"
    film = figures.film_of_learning(seen, history)
    with Image.open(io.BytesIO(film.png)) as frames:
        assert frames.n_frames == 3


def test_learning_shows_the_mean_over_seeds_and_names_every_end():
    curves = pd.DataFrame(
        {"model": "lattice", "seed": [0, 1], "step": [10, 10], "val_mrr": [0.2, 0.4]}
    )
    axis = pictures.learning(curves, {"ridge": 0.31, "copy input": 0.6}).axes[0]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([0.3])
    assert [line.get_ydata()[0] for line in axis.lines[1:]] == [0.31, 0.6]
    names = [text.get_text() for text in axis.texts]
    assert names == ["lattice 0.30", "ridge 0.31", "copy input 0.60"]
    first, second, third = (text.xy[1] for text in axis.texts)
    assert (first, third) == pytest.approx((0.3, 0.6))
    assert second >= first + 0.03  # names of near ends lie apart


def test_each_controller_has_a_panel_with_its_share_and_the_one_asked_for():
    rows = [
        {"controller": name, "seed": seed, "step": step, "measured_rate": share, "rate": 0.1}
        for name, share in (("log_integral", 0.08), ("origin_pi", 0.9))
        for seed in range(3)
        for step in range(20)
    ]
    figure = pictures.controllers(pd.DataFrame(rows), "It holds", end=15)
    held, off = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["log_integral", "origin_pi"]
    share, asked = held.lines
    assert set(share.get_ydata()) == {0.08}
    assert set(asked.get_ydata()) == {0.1}
    assert held.get_xlim() == (0, 15)
    assert [text.get_text() for text in off.texts] == ["up to 90 %"]
    assert not held.texts


def test_the_threshold_runs_through_the_losses_of_its_batch():
    steps = [([0.5, 2.0, 3.0, 4.0], 1.0), ([0.1, 0.2, 0.3, 9.0], 0.5)]
    cloud, share = pictures.threshold(steps, 0.5).axes
    trained, skipped, limit = cloud.lines
    assert trained.get_xydata().tolist() == [[0, 2], [0, 3], [0, 4], [1, 9]]
    assert skipped.get_xydata().tolist() == [[0, 0.5], [1, 0.1], [1, 0.2], [1, 0.3]]
    assert limit.get_ydata().tolist() == [1.0, 0.5]
    assert share.lines[0].get_ydata().tolist() == [0.75, 0.25]
    words = [text.get_text() for text in share.texts]
    assert words == ["asked for: 50 %", "trained on: 50 %"]


def test_bars_of_speeds_tell_by_their_colour_what_the_interval_decides():
    rows = [("fast", 2, 1.8, 2.5), ("slow", 0.5, 0.4, 0.55), ("?", 2.1, 0.9, 3)]
    table = pd.DataFrame(rows, columns=["arm", "speedup", "speedup_low", "speedup_high"])
    here, there = pictures.speeds({"here": table, "there": table[:1]}, "plain").axes
    assert [tick.get_text() for tick in here.get_yticklabels()] == ["slow", "fast", "?"]
    looks = [to_hex(bar.get_facecolor()).lower() for bar in here.patches]
    expected = (pictures.SLOWER, pictures.FASTER, pictures.UNKNOWN)
    assert looks == [colour.lower() for colour in expected]
    spans = [tuple(segment[:, 0]) for segment in here.collections[0].get_segments()]
    assert np.allclose(spans, [rows[place][2:] for place in (1, 0, 2)])
    assert [text.get_text().strip() for text in here.texts] == ["0.50", "2.0", "2.1"]
    assert (there.get_title("left"), len(there.patches)) == ("there", 1)


def test_ratios_of_a_gpu_become_speeds_whichever_was_divided(tmp_path):
    ratio = {"median": 4.0, "low": 2.0, "high": 5.0, "n": 15}
    parts = {"steps, cnn, 128": {"ratios": {"a / b": ratio}}, "joules, cnn, 128": {}}
    (tmp_path / "gpu.json").write_text(json.dumps({"parts": parts}))
    for slow, fast, speeds in (("a", "b", [4, 2, 5]), ("b", "a", [0.25, 0.2, 0.5])):
        (row,) = pictures.on_gpu(tmp_path / "gpu.json", slow, fast).to_numpy().tolist()
        assert row == ["cnn, 128 rows", *speeds]
