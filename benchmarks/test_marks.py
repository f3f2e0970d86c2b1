"""Bounds are judged by what the entries say, and none is left out."""

from __future__ import annotations

from typing import Any

import pytest

from astkit.files import read_json
from benchmarks import marks, policies, policy_tables


def entry(
    chosen: str, both: float, other: float, low: float = 1.0, shift: str = "made"
) -> dict[str, Any]:
    """One split: what was foretold of two decisions, 5 of each, and what they measured."""
    line = {"gain": 5.0, "low": low, "high": 9.0, "measured_error": 1.0}
    measured = {"old": 0.0, "both": both, "target": other}
    return {
        "shift": shift,
        "split": 0,
        "later": True,
        "sentence": "",
        "chosen": chosen,
        "decisions": [
            {**line, "decision": name, "measured": measured[name]} for name in ("both", "target")
        ],
        "measured": {name: [value, 1.0] for name, value in measured.items()},
    }


def test_a_regret_is_that_against_the_best_constant_answer() -> None:
    entries = [entry("both", 5.0, 6.0), entry("target", 5.0, 2.0, shift="other")]
    found = marks.regrets(entries)
    assert found == {"chosen": [1, 3], "old": [6, 5], "both": [1, 0], "target": [0, 3]}
    regret, below, other = marks.of_choices(entries)
    assert regret[1:] == (
        "below that of always `both`",
        "2.00 against 0.50: +1.50 [-17.56, +20.56], n = 2 cases",
        False,
    )
    assert below[2:] == ("3.0: other, split 0, target; more than 2 in 1 of 2", False)
    assert other[0].startswith("an answer other than `both` (1 of 2)")


@pytest.mark.parametrize(("high", "wrong"), [(-0.5, 1), (0.5, 0)])
def test_a_network_is_wrong_where_its_interval_lies_on_the_other_side(
    high: float, wrong: int
) -> None:
    trained = [{"shift": "made", "later": True, "both": [1, 0, 2], "target alone": [-1, -2, high]}]
    entries = [entry("both", 5.0, 5.0), entry("both", 5.0, 5.0, low=-1.0)]  # the second is unsure
    sides, _ = marks.of_networks(entries, trained)
    assert sides[2:] == (f"{wrong} of 2", not wrong)


def test_every_bound_has_a_row_on_the_page() -> None:
    content = read_json(policy_tables.SHARED)
    assert content["marks"] == marks.marks(content), "run: python -m benchmarks.shares"
    rows = policies.reached().splitlines()
    for line in content["marks"]:
        end = "yes |" if line["kept"] else "missed |"
        assert any(line["what"] in row and row.endswith(end) for row in rows)
