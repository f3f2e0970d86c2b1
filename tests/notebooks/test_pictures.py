"""The figures beside the notebooks: what is drawn where."""

import importlib.util
import io

import pandas as pd
import pytest
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
        assert frames.n_frames == 2  # the picture after 25 updates is that of 0


def test_learning_shows_the_mean_over_seeds_and_the_marks():
    curves = pd.DataFrame(
        {"model": "lattice", "seed": [0, 1], "step": [10, 10], "val_mrr": [0.2, 0.4]}
    )
    axis = figures.learning(curves, {"ridge": 0.39}).axes[0]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([0.3])
    assert axis.lines[1].get_ydata() == [0.39, 0.39]
    assert [text.get_text() for text in axis.texts] == ["ridge"]
    assert axis.get_title() == "MRR on validation data: mean of 2 seeds and their range"


def test_a_line_by_size_for_each_method_on_logarithmic_axes():
    rows = [
        {"method": name, "samples": size, "speed": speed * size}
        for name, speed in (("batch", 0.9), ("loop", 1.0))
        for size in (1, 20)
    ]
    (axis,) = figures.by_size(pd.DataFrame(rows), "samples", "speed", "times as fast").axes
    assert [each.get_label() for each in axis.lines] == ["batch", "loop"]
    assert axis.lines[0].get_xydata().tolist() == [[1, 0.9], [20, 18]]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "20"]
    assert axis.get_ylabel() == "times as fast"
