"""The figures beside the notebooks: what is drawn where."""

import importlib.util

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from astkit.widgets.style import SOFT, line
from tests.notebooks.conftest import FOLDER

SPEC = importlib.util.spec_from_file_location("pictures", FOLDER / "pictures.py")
pictures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pictures)


def test_shares_have_a_row_for_each_condition_and_the_possible_gain_beside_it():
    undefined = {"share": None, "share_low": None, "share_high": None}
    rows = [
        {"policy": "aim", "share": 0.5, "share_low": 0.4, "share_high": 0.6, "gain": 2.5},
        {"policy": "random", "share": -3.0, "share_low": -4.0, "share_high": -2.0, "gain": -15.0},
        {"policy": "oracle", **undefined, "gain": 5.0},
    ]
    table = [{"condition": "drift", "unit": "points", "n": 5, **row} for row in rows]
    figure = pictures.shares(pd.DataFrame(table))
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["drift"]
    right = axis.child_axes[0]
    assert [label.get_text() for label in right.get_yticklabels()] == ["5.0 points higher"]
    assert [text.get_text() for text in axis.texts] == ["◀ -3"]  # outside of the axis
    assert [each.get_text() for each in figure.legends[0].get_texts()] == ["aim", "random"]


def test_gains_have_a_row_each_with_its_interval_and_words():
    table = [
        {"condition": "bikes", "gain": 20.0, "gain_low": 12.0, "gain_high": 28.0, "both": 15.0},
        {"condition": "flights", "gain": -0.04, "gain_low": -1.0, "gain_high": 1.0, "both": 0.0},
        {"condition": "late flights", "gain": 0, "gain_low": np.nan, "gain_high": np.nan},
    ]
    (axis,) = pictures.gains(pd.DataFrame(table).assign(unit="%")).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "bikes",
        "flights",
        "late flights",
    ]
    right = [label.get_text() for label in axis.child_axes[0].get_yticklabels()]
    assert right == ["+20.0 %", "+0.0 %", "+0.0 %"]
    assert axis.containers[0].lines[2][0].get_segments()[0][:, 0].tolist() == [12, 28]
    colours = [to_hex(bar.lines[0].get_color()) for bar in axis.containers]
    assert colours == [line("aim")["color"].lower(), SOFT, SOFT]


def test_a_forecast_that_came_true_lies_on_the_diagonal():
    gains = {"gain": 4.0, "gain_low": 3.0, "gain_high": 6.0}
    table = [{"condition": "drift", "forecast": 4.0, "forecast_error": 1.0, **gains}]
    table[0]["kind"] = "tables"
    axis = pictures.forecasts(pd.DataFrame(table)).axes[0]
    point, (horizontal, vertical) = axis.containers[0].lines[0], axis.containers[0].lines[2]
    assert point.get_xydata().tolist() == [[4.0, 4.0]]
    assert horizontal.get_segments()[0][:, 0].tolist() == [3.0, 5.0]  # two standard errors
    assert vertical.get_segments()[0][:, 1].tolist() == [3.0, 6.0]
