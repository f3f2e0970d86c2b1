"""The calibration of verdicts: it runs, and what is committed keeps its bounds."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import calibration


def test_a_few_trials_are_wrong_as_rarely_as_promised() -> None:
    nothing = calibration.cell((0.0,) * 3, n=5, trials=200)
    assert nothing["wrong"] <= 0.09  # 5 %, and 2.6 standard errors of 200 trials
    assert nothing["asked"] is None
    clear = calibration.cell((-2.0,) * 3, n=10, trials=40)
    assert clear["wrong"] == 0
    assert clear["decided"] > 0.95
    assert clear["right"] / 2 <= clear["asked"] <= 2 * clear["right"]


def test_the_committed_calibration_keeps_its_bounds() -> None:
    report = json.loads(calibration.RESULTS.read_text())
    assert report["stamp"]["dirty"] is False
    cells = {(tuple(cell["effects"]), cell["n"]): cell for cell in report["cells"]}
    plain = [(effect,) * m for effect in calibration.EFFECTS for m in calibration.POLICIES]
    assert cells.keys() >= {(effects, n) for effects in plain for n in calibration.SEEDS}
    for (effects, n), cell in cells.items():
        assert cell["trials"] >= 2000
        assert cell["wrong"] <= 0.06, cell
        asked = abs(effects[-1]) == 2 and (n == 10 or cell["asking"] >= 200)
        if asked and len(set(effects)) == 1:
            assert cell["right"] / 2 <= cell["asked"] <= 2 * cell["right"], cell
        if abs(effects[-1]) == 2 and n == 10:
            assert cell["decided"] > 0.95


@pytest.mark.full
def test_a_report_is_written(tmp_path) -> None:
    calibration.main(["--trials", "3", "--out", str(tmp_path / "small.json")])
    report = json.loads((tmp_path / "small.json").read_text())
    assert len(report["cells"]) == 5 * 3 * 3 + 3 * 2
