"""The committed forecasts on natural shifts: what they keep, and what the docs say they miss."""

from __future__ import annotations

import json

from benchmarks import bench, marks, natural, natural_tables, natural_training
from benchmarks.natural_new import EXPECTED

CONTENT = json.loads(natural.RESULTS.read_text())


def test_forecasts_that_exclude_0_have_the_right_sign() -> None:
    """Of rows of the same period; what later rows miss is on the page."""
    assert CONTENT["stamp"]["dirty"] is False
    assert {each["split"] for each in CONTENT["entries"]} == set(range(natural.SPLITS))
    for new in (False, True):
        mine = [each for each in CONTENT["entries"] if (each["shift"] in EXPECTED) == new]
        found = natural.record(mine)
        same = found.loc["the same period"]
        assert same["of these with the right sign"] >= 0.95 * same["exclude 0"]
        if not new:
            assert found.loc["later rows", "significantly on the other side"] == 0
    missed = {line[0] for line in marks.of_forecasts(CONTENT["entries"]) if not line[3]}
    page = (bench.ROOT / "docs" / "policies.md").read_text()
    assert missed
    assert all(f"| {what} |" in page for what in missed)


def test_a_record_counts_what_was_foretold() -> None:
    line = {"decision": "both", "gain": 5.0, "low": 1.0, "high": 9.0}
    measured = [(6.0, 1.0), (-6.0, 1.0), (-0.5, 1.0)]
    rows = [{**line, "measured": each, "measured_error": error} for each, error in measured]
    rows.append({**line, "low": -1.0, "high": 11.0, "measured": -9.0, "measured_error": 0.1})
    found = natural.record([{"later": True, "decisions": rows}]).loc["later rows"]
    assert found["forecasts"] == 4
    assert found["exclude 0"] == 3
    assert found["of these with the right sign"] == 1
    assert found["significantly on the other side"] == 1
    assert found["within 1.96 combined errors"] == 0.25


def test_tables_are_of_the_committed_results() -> None:
    said = natural_tables.text()
    assert "| bikes, last three months | the same period |" in said
    assert "Mean regret against the best of these three" in said


def test_each_shift_was_trained_on_all_splits_later_rows_first() -> None:
    content = json.loads(natural_training.RESULTS.read_text())
    assert content["stamp"]["dirty"] is False
    found = natural_training.gains(content["entries"])
    assert {line["splits"] for line in found} == {natural_training.SPLITS}
    shifts: dict[bool, set[str]] = {True: set(), False: set()}
    for line in found:
        shifts[line["later"]].add(line["shift"])
    without_time = {"flights, another airport", "wages, 1985 after 1978"}
    assert shifts[False] == shifts[True] | without_time
    table = natural_tables.text().partition("### Was it foretold?")[0]
    assert table.rindex("| later rows |") < table.index("| the same period |")
