"""The report: what it says, and that names cannot break it."""

import copy
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from astkit import Comparison
from astkit.comparison.report import results
from astkit.comparison.verdict import judge
from tests.comparison.test_verdict import CLEAR, NOISY, entries

HOSTILE = "gate(<b>|*a*|$x$</b>)"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    gaps = {"infobatch": NOISY, HOSTILE: CLEAR, "random at 0.30": NOISY[::-1]}
    return [{**row, "rate": 0.3} if row["policy"] != "dense" else row for row in entries(gaps)]


def report(
    entries: Rows, notes: tuple[str, ...] = (), metric: str = "accuracy", **others: Any
) -> Comparison:
    """A comparison of which no results by row are kept."""
    found = [{**entry, "visits": "none"} for entry in entries]
    contents = {"entries": found, "metric": metric, "higher": metric == "accuracy", "notes": notes}
    return Comparison({**contents, **others}, Path("nowhere"))


class Tags(HTMLParser):
    """Tags, texts and addresses of a page; fails on tags that do not nest."""

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


def row_of(shown: Comparison, policy: str) -> str:
    """The row of this policy in the first table."""
    table = results(shown.entries, shown.verdicts, shown.metric)
    (row,) = table[table["policy"] == policy].to_numpy().tolist()
    return " | ".join(row)


def test_the_tables_hold_every_method_and_its_numbers(rows: Rows) -> None:
    shown = report(rows, ("one note",), baseline=["<untuned> baseline"])
    equal = " | 1.00 | 1.00"
    assert row_of(shown, "dense") == "dense | 5 | 85.00 % | – | – | 1.00" + equal
    gaps = "0.9 points higher [-1.2, 3.0] | 0.0 points higher [-1.0, 1.0]"
    assert row_of(shown, "infobatch") == f"infobatch | 5 | 85.90 % | {gaps} | 0.30" + equal
    assert row_of(shown, "random at 0.30") == "random at 0.30 | 5 | 85.90 % | – | – | 0.30" + equal
    assert " | 1.2 points higher [-" in row_of(shown, HOSTILE)
    said = Tags(shown._repr_html_()).text
    assert all(f"{each.sentence}." in said for each in judge(rows))
    assert "Outcomes are corrected for the 2 policies compared (Holm)" in said
    assert "over seeds only, so they hold for these test rows alone" in said
    assert said.strip().endswith("one note")
    assert said.index("infobatch: ") < said.index("untuned") < said.index("one note")
    assert shown.to_json()["baseline"] == shown.baseline


def test_names_cannot_break_the_page(rows: Rows) -> None:
    hostile = report(rows, ("<i>a note",))
    page = Tags(hostile._repr_html_())
    assert not {"b", "i"} & {*page.seen}
    assert page.text.count(HOSTILE) == 5  # title, heading, a sentence, what to do next and a row
    assert "<i>a note" in page.text
    assert page.seen.count("img") == 1
    assert all(link.startswith("data:image/png;base64,") for link in page.links)


def test_what_is_not_known_is_a_dash_and_has_no_figure() -> None:
    lost = {"seconds": None, "flops": None, "curve": []}
    rows = [{**row, **lost, "value": 1.2} for row in entries({"x": NOISY})]
    rows[-1]["value"] = math.nan
    lossy = report(rows, metric="loss")
    assert row_of(lossy, "x") == "x | 4 of 5 | 1.2 | 0.0 % higher | – | 1.00 | – | –"
    assert lossy.plot().get_suptitle().startswith("x: cannot tell yet: loss ")
    assert Tags(report(rows[:5], metric="loss")._repr_html_()).seen.count("table") == 1
    assert "Holm" not in lossy._repr_html_()


def test_failed_runs_are_in_no_figure(rows: Rows) -> None:
    lost = [{**row, "value": None} if row["policy"] == "infobatch" else row for row in rows]
    bad = {**rows[0], "policy": "infobatch", "seed": 5, "value": None}
    for each in ([*rows, bad], rows):
        runs = [line for line in report(each).plot().axes[0].lines if line.get_marker() == "o"]
        assert [len(line.get_xdata()) for line in runs] == [5, 5, 5, 5]
    alone = report([row for row in lost if row["policy"] in ("dense", "infobatch")])
    assert Tags(alone._repr_html_()).seen.count("table") == 1
    with pytest.raises(ValueError, match="no method has a finite value beside dense training"):
        alone.plot()


def test_the_json_is_the_whole_report_in_plain_values(rows: Rows) -> None:
    rows = copy.deepcopy(rows)
    rows[5] |= {"value": None, "trained": 9000}  # of "infobatch"
    found = json.loads(json.dumps(report(rows, ("a note",)).to_json(), allow_nan=False))
    assert found["entries"][5]["value"] is None
    verdicts = judge(rows)
    for each, verdict in zip(found["verdicts"], verdicts, strict=True):
        assert (each["outcome"], each["sentence"]) == (verdict.outcome, verdict.sentence)
        assert each["difference"] == pytest.approx(verdict.difference._asdict())


def test_the_figures_show_what_the_verdicts_say(rows: Rows) -> None:
    rows = copy.deepcopy(rows)
    for row in rows[5:10]:
        row["flops"] = 85.0
    figure = report(rows).plot()
    (axis,) = figure.axes
    assert figure.get_suptitle() == f"{HOSTILE} brings the accuracy from 85.0 % to 87.1 %"
    assert axis.get_title(loc="left") == "better than dense training in 5 of 5 seeds, same FLOPs"
    assert axis.get_xlabel() == "test accuracy (%), higher is better"
    names = [text.get_text().replace("\n", " ") for text in axis.get_yticklabels()]
    assert names == ["dense training", "infobatch", HOSTILE, "random at 0.3"]
    texts = [text.get_text().replace("\n", " ") for text in axis.texts if text.get_text()]
    assert texts == [
        "85.0",
        *("85.9", "0.9 points higher [-1.2, 3.0]", "cannot tell yet, 0.85 x the FLOPs"),
        *("87.1", "2.1 points higher [1.8, 2.4]", "better, not shown to beat random"),
        *("85.9", "0.9 points higher [-1.2, 3.0]"),
    ]
    lines = [line.get_xdata() for line in axis.lines if line.get_linewidth() == 1.2]
    thin = [ends for ends in lines if len(ends)]  # dense training has none
    assert thin[1] == pytest.approx([86.8, 87.4], abs=0.05)  # of the difference, around the mean
    curves = report(rows).curves().axes[0]
    drawn = {line.get_label(): line.get_xdata() for line in curves.lines}
    assert list(drawn["dense training"])[:: len(drawn["dense training"]) - 1] == pytest.approx(
        [0.25, 1.0]
    )
