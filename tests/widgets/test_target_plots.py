"""Pictures of a target are drawn from the tables of `explain` and `forecast`."""

import pandas as pd
import pytest

from astkit.widgets import target_plots


@pytest.fixture
def table() -> pd.DataFrame:
    lines = [("old", 0.0, 0.0, 0.0, False), ("both", 5.0, 1.0, 9.0, True)]
    lines.append(("target", -90.0, -200.0, 20.0, False))
    columns = ["decision", "gain", "low", "high", "chosen"]
    return pd.DataFrame(lines, columns=columns).assign(unit="points")


def test_decisions_are_in_order_and_the_chosen_one_is_marked(table: pd.DataFrame) -> None:
    axis = target_plots.decisions(table).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["target", "both", "old"]
    (chosen,) = (line for line in axis.lines if line.get_label() == "chosen")
    assert (chosen.get_xdata()[0], chosen.get_ydata()[0]) == (5.0, 1)
    assert axis.get_xlim()[0] == target_plots.FAR
    assert "points" in axis.get_xlabel()
    assert target_plots.decisions(table.iloc[:0]).png()  # nothing was judged


def test_columns_stand_by_what_they_give_away() -> None:
    found = pd.DataFrame({"column": ["day", "x"], "auc": [1.0, 0.5], "new": ["later", ""]})
    figure = target_plots.separating_columns(found, "alike")
    axis = figure.axes[0]
    assert axis.get_title(loc="left") == "alike"
    assert [bar.get_width() for bar in axis.patches] == [0.0, 0.5]
    assert figure._repr_png_()
