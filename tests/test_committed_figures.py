"""Committed figures keep their bounds, and pages say what they say: promises 3 and 4, README."""

import json

import pytest

from astkit.files import read_json
from astkit.trainers.evaluation import wilson_interval
from benchmarks import bench, calibration, example, policies, readme
from benchmarks.calibration import EDGE, MIXED, NOTHING, ROWS, SEEDS, SHAPES
from benchmarks.policy_tables import STATIC

TEXTS = {name: (bench.ROOT / name).read_text() for name in readme.FILES}


def test_the_committed_calibration_keeps_its_bounds() -> None:
    report = json.loads(calibration.RESULTS.read_text())["seeds"]
    assert report["stamp"]["dirty"] is False
    assert "benchmarks.calibration" in report["command"]
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


def test_committed_intervals_cover_where_rows_depend_on_each_other() -> None:
    report = json.loads(calibration.RESULTS.read_text())
    cells = report["groups"]["cells"] + report["series"]["cells"]
    assert len(cells) == len(calibration.GROUPED) + len(calibration.FOLLOWING)
    for each in cells:
        assert each["trials"] >= 1000
        assert each["low"] >= 0.92, each  # of Wilson's interval


def test_committed_verdicts_of_aim_on_fresh_data_cover() -> None:
    (cell,) = json.loads(calibration.RESULTS.read_text())["fresh"]["cells"]
    assert cell["trials"] >= 200
    assert cell["covered"] >= 0.92


def test_committed_false_alarms_of_windows_of_a_stationary_process() -> None:
    cells = json.loads(calibration.RESULTS.read_text())["recordings"]["cells"]
    assert len(cells) == len(calibration.RECORDED)
    for each in cells:
        assert each["trials"] >= 1000
        assert each["alarms"] <= 0.01, each
        assert each["high"] <= 0.02, each  # of Wilson's interval


def test_aim_abstains_on_tables_without_a_shift_in_99_of_100_draws() -> None:
    cells = json.loads(calibration.RESULTS.read_text())["tables"]["cells"]
    assert len(cells) == len(calibration.NULLS)
    trials = sum(cell["trials"] for cell in cells)
    alarms = sum(cell["trials"] * cell["alarms"] for cell in cells)
    assert trials >= 1000
    assert alarms <= 0.01 * trials
    assert wilson_interval(round(alarms), trials)[1] <= 0.02
    assert all(cell["drawn"] <= cell["alarms"] for cell in cells)


@pytest.mark.parametrize("name", TEXTS)
def test_the_tables_are_what_the_committed_results_make_of_them(name: str) -> None:
    text = TEXTS[name]
    assert readme.fill(name, text) == text, "run: python -m benchmarks.readme"
    assert text.count("<!-- end -->") == len(readme.FILES[name])


def test_the_page_of_policies_is_up_to_date() -> None:
    entries = read_json(policies.ENTRIES)
    page = policies.page(entries)
    assert policies.PAGE.read_text("utf-8") == page, "run: python -m benchmarks.policies"
    for name, text in policies.files(entries).items():
        assert (STATIC / name).read_text("utf-8") == text, "run: python -m benchmarks.policies"


def test_the_output_of_the_example_is_that_of_its_code() -> None:
    for page, path in example.PAGES.items():
        assert read_json(path)["code"] == example.code(page), "python -m benchmarks.example"


def test_only_named_results_have_local_changes() -> None:
    for name in readme.CHANGED:
        (path,) = [*readme.RESULTS.glob(name), *bench.HERE.glob(name)]
        changes = [stamp["dirty"] for stamp in readme._stamps(json.loads(path.read_text()))]
        assert any(changes), f"take {name} out of CHANGED: it was measured without"
        assert readme.read(path)
