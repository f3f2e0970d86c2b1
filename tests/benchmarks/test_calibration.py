"""The calibration of verdicts: it runs, and what is committed keeps its bounds."""

from __future__ import annotations

import json

from tests.benchmarks import calibration
from tests.benchmarks.calibration import EDGE, MIXED, NOTHING, ROWS, SEEDS, SHAPES


def test_a_few_trials_are_wrong_as_rarely_as_promised() -> None:
    nothing = calibration.cell(NOTHING, "normal", n=5, rows=300, trials=200)
    assert nothing["wrong"] <= 0.09  # 5 %, and 2.6 standard errors of 200 trials
    assert nothing["seeds_only"] > nothing["wrong"]
    clear = calibration.cell((0.05, -0.05), "normal", n=10, rows=2000, trials=20)
    assert clear["wrong"] == 0
    assert clear["decided"] > 0.95


def test_the_committed_calibration_keeps_its_bounds() -> None:
    report = json.loads(calibration.RESULTS.read_text())
    assert report["stamp"]["dirty"] is False
    assert report["command"].startswith("python -m tests.benchmarks.calibration")
    found = {(*c["effects"], c["shape"], c["n"], c["rows"]): c for c in report["cells"]}
    tables = {(*each, "normal", n, r) for each in (EDGE, MIXED) for n in SEEDS for r in ROWS}
    tables |= {(*NOTHING, shape, n, r) for shape in SHAPES for n in SEEDS for r in ROWS}
    assert found.keys() >= tables
    for each in found.values():
        assert each["trials"] >= 2000
        if each["shape"] == "normal":  # 5 %, and two standard errors of 2000 trials
            assert each["wrong"] <= 0.06, each
            assert each["covered"] >= 0.94, each
            assert each.get("once_more", 0) <= 0.08, each
    few = [each for key, each in found.items() if key[-3:] == ("normal", 10, 300)]
    assert max(each["seeds_only"] for each in few) > 0.15  # what the test rows are regarded for
