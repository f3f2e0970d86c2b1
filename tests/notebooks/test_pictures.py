"""The figures beside the notebooks: what is drawn where."""

import importlib.util

import pandas as pd

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
