"""The page on a comparison: what it says, and that names cannot break it."""

from __future__ import annotations

import copy
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from astkit.runs import comparison_page
from astkit.runs.comparison import Comparison
from astkit.runs.record import read_json, write_json
from astkit.runs.verdict import judge
from tests.runs.test_verdict import CLEAR, NOISY, entries

HOSTILE = "gate(<b>|*a*|$x$</b>)"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    gaps = {"infobatch": NOISY, HOSTILE: CLEAR, "random at 0.30": NOISY[::-1]}
    return [{**row, "rate": 0.3} if row["policy"] != "dense" else row for row in entries(gaps)]


def report(
    rows: list[dict[str, Any]], notes: list[str], metric: str = "accuracy", higher: bool = True
) -> Comparison:
    """A comparison with these entries."""
    found = {"entries": rows, "notes": notes, "metric": metric, "higher": higher}
    return Comparison({**found, "pilot": None, "settings": {}, "stamp": {}}, Path())


class Tags(HTMLParser):
    """Open tags, texts and addresses of a page; fails on tags that do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def row_of(markdown: str, policy: str) -> str:
    """The first row of this policy."""
    return next(line for line in markdown.splitlines() if line.startswith(f"| {policy} |"))


def test_the_tables_hold_every_arm_and_its_numbers(rows) -> None:
    verdicts = judge(rows)
    said = report(rows, ["one note"]).to_markdown()
    assert [f"- {each.sentence}." in said for each in verdicts] == [True, False]  # one is escaped
    assert (
        row_of(said, "dense") == "| dense | 5 | 85.00% | – | 1.00 | 1.00 | 1,000 | 1.00 | 75.00% |"
    )
    assert row_of(said, "infobatch") == (
        "| infobatch | 5 | 85.90% | +0.9 points [-1.7, +3.5] | 1.00 | 1.00 | 1,000 | 0.30"
        " | 75.90% |"
    )
    assert row_of(said, "random at 0.30").startswith("| random at 0.30 | 5 | 85.90% | – | 1.00 |")
    second = comparison_page.reaching(verdicts).set_index("policy").loc[HOSTILE]
    assert second["reached by"] == "5 of 5"
    assert second["FLOPs"] == "0.85 [0.84, 0.87]"
    assert second["accuracy minus random at the same rate"].startswith("+1.2 points [-")
    assert "jointly for all 2 policies" in said
    assert "an interval that ends at 0 was cut off there" in said
    assert said.endswith("one note\n")


def test_names_cannot_break_the_page(rows) -> None:
    hostile = report(rows, ["<i>a note"])
    page = Tags(hostile._repr_html_())
    assert "b" not in page.seen
    assert "i" not in page.seen
    assert page.text.count(HOSTILE) == 3  # a sentence and two rows
    assert "<i>a note" in page.text
    assert page.seen.count("img") == 2
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    lines = hostile.to_markdown().splitlines()
    tables = [line.replace("\\|", "") for line in lines if line.startswith("|")]
    assert [line.count("|") for line in tables] == [10] * 6 + [8] * 4
    assert r"gate(\<b>\|\*a\*\|$x$\</b>)" in "\n".join(lines)


def test_what_is_not_known_is_a_dash_and_has_no_figure() -> None:
    lost = {"seconds": None, "flops": None, "worst_class": None, "curve": []}
    rows = [{**row, **lost, "value": 1.2} for row in entries({"x": NOISY})]
    rows[-1]["value"] = math.nan
    lossy = report(rows, [], "loss", higher=False)
    said = lossy.to_markdown()
    assert row_of(said, "x") == "| x | 4 of 5 | 1.2 | +0.0 in loss | – | – | 1,000 | 1.00 | – |"
    assert "jointly" not in said
    assert list(comparison_page.pictures(rows, lossy.verdicts)) == ["differences to dense"]
    nothing = report(rows[:5], [], "loss", higher=False)
    assert Tags(nothing._repr_html_()).seen.count("table") == 1
    assert isinstance(comparison_page.results([], [], "loss"), pd.DataFrame)


def test_means_leave_out_seeds_that_failed_and_smaller_numbers_of_seeds_are_shown(rows) -> None:
    rows = copy.deepcopy(rows)
    rows[5] |= {"value": None, "rate": 0.9, "trained": 9000}  # of "infobatch"
    rows[6]["rate"] = 0.9  # without a random control
    found = report(rows, [])
    assert row_of(found.to_markdown(), "infobatch").startswith("| infobatch | 4 of 5 | 85.62% |")
    assert "| 1,000 | 0.45 |" in row_of(found.to_markdown(), "infobatch")
    shown = comparison_page.reaching(found.verdicts).iloc[0]
    assert shown["accuracy minus random at the same rate"].endswith("], n = 3")
    table = found.table()
    assert table.loc[["dense", "infobatch"], ["n", "failed"]].to_numpy().tolist() == [
        [5, 0],
        [4, 1],
    ]
    assert table.loc["infobatch", "accuracy"] == pytest.approx(0.85 + sum(NOISY[1:]) / 4)
    assert table.loc["infobatch", "trained"] == 1000
    assert "failed" not in report(rows[:5], []).table()


def test_a_policy_without_a_random_control_has_a_dash_and_no_second_bar(rows) -> None:
    rows = [{**row, "rate": 0.6} if row["policy"] == HOSTILE else row for row in rows]
    verdicts = judge(rows)
    shown = comparison_page.reaching(verdicts).set_index("policy")
    assert shown.loc[HOSTILE, "accuracy minus random at the same rate"] == "–"
    forest, _ = comparison_page.pictures(rows, verdicts).values()
    assert len(forest.axes[0].containers) == 3


def test_a_lost_validation_value_leaves_the_page_whole(rows, tmp_path) -> None:
    rows = copy.deepcopy(rows)
    for row in rows[7:9]:  # of "infobatch"
        row["curve"] = [[*point[:2], math.nan] for point in row["curve"]]
    rows[1]["curve"][-1][2] = math.inf  # of dense
    path = write_json(tmp_path / "rows.json", {"rows": rows})  # NaN becomes null
    found = report(read_json(path)["rows"], [])
    assert [each.reached for each in found.verdicts] == [2, 4]
    assert Tags(found._repr_html_()).seen.count("img") == 2


def test_seconds_alone_are_drawn_alone(rows) -> None:
    timed = [
        {**row, "flops": None, "curve": [[None, *p[1:]] for p in row["curve"]]} for row in rows
    ]
    drawn = comparison_page.pictures(timed, judge(timed))["validation value by cost"]
    assert [axis.get_title() for axis in drawn.axes] == ["validation accuracy against seconds"]


def test_the_figures_show_what_the_verdicts_say(rows) -> None:
    forest, costs = comparison_page.pictures(rows, judge(rows)).values()
    assert forest.axes[0].get_xlabel() == "difference of accuracy (points), better to the right"
    means = {round(bar.lines[0].get_xdata()[0], 6) for bar in forest.axes[0].containers}
    assert means == {0.9, 2.1, 0.0, 1.2}  # in points, to dense and to random samples
    drawn = {line.get_label(): line for line in costs.axes[0].lines}
    assert drawn["dense's final value"].get_ydata() == pytest.approx([0.85, 0.85])
    assert drawn["dense"].get_xdata()[[0, -1]] == pytest.approx([0.25, 1.0])
    assert drawn["dense"].get_ydata()[[0, -1]] == pytest.approx([0.4, 0.85])
