"""A report over run folders: one page that needs nothing else, whatever the runs are called."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from astkit.runs import report, tables
from astkit.runs.record import Record
from tests.runs.test_tables import made, make, root  # noqa: F401 (fixtures)

# ruff: noqa: F811
SCRIPT = "<script>alert(1)</script>"


def test_the_page_holds_tables_and_the_picture_itself(root: Path) -> None:
    page = report.page(root)
    assert "minus dense" in page
    assert page.count("<table") == 2
    assert "8 complete" not in page
    assert page.count("<td>complete</td>") == 8
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)|<script|@import|url\(", page)  # offline
    with pytest.raises(ValueError, match="metric is 'speed'"):
        report.page(root, metric="speed")


def test_runs_of_several_notebooks_and_without_curves_make_a_page(root: Path) -> None:
    for seed in (0, 1):
        run = Record.create(root, "02_other", {"width": 3, "seed": seed}, seed)
        rows = [{"arm": arm, "seed": seed, "test_accuracy": 0.5} for arm in ("dense", "gate")]
        run.finish(rows, [{**row, "epoch": 1, "val_loss": 1, "val_accuracy": 0.5} for row in rows])
    arms = set(tables.labelled(tables.collect(root))["arm"])
    assert {"rate –, epochs –, width 3, gate", "rate 0.1, epochs 2, width –, dense"} <= arms
    assert "width" in report.page(root)
    table = tables.table(tables.collect(root))
    assert table.loc[("–", "–", 3, "gate"), "minus dense"] == 0
    Record.create(root.parent / "bare", "x", {}).finish([{"seed": 0, "loss": 1.0}])
    assert "recorded no validation curves" in report.page(root.parent / "bare")


def test_names_are_text_and_never_markup_or_mathematics(tmp_path: Path) -> None:
    folder = tmp_path / f"runs {SCRIPT.replace('/', '')}"
    run = Record.create(folder, "x", {"mode": SCRIPT}, 0)
    rows = [{"arm": arm, "seed": 0, "loss": 1.0} for arm in (SCRIPT, r"$\frac{$", "$")]
    run.finish(rows, [{**row, "epoch": 1, "val_loss": 1, "val_accuracy": 0.5} for row in rows])
    Record.create(folder, "x", {"mode": SCRIPT}, 1).write("error.json", {"message": SCRIPT})
    page = report.page(folder)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_damaged_folders_are_listed_and_cost_no_other(root: Path) -> None:
    sound = tables.table(tables.collect(root))
    rows = ("[1]", "{", "[" * 100_000, '{"rows": 3}', '{"rows": [3]}', '{"curves": {"a": 1}}')
    files = {
        **{("result.json", content): None for content in rows},
        **{("config.json", content): None for content in (*rows[:3], "{}", '{"name": 3}')},
        ("config.json", '{"name": "a", "seed": "b", "parameters": {}}'): None,
        ("error.json", "[3]"): None,
        ("stale.json", "3"): None,
    }
    for number, (name, content) in enumerate(files):
        damaged = make(root, 0.1, 100 + number)
        (damaged.folder / name).write_text(content)
    found = tables.collect(root)
    listed = found.runs[found.runs["status"] == "damaged"]
    assert len(listed) == len(files)
    assert listed["why"].str.contains(r"\.json is damaged \(").all()
    assert tables.table(found).equals(sound)


def test_rows_of_odd_values_are_reported_or_refused(tmp_path: Path) -> None:
    run = Record.create(tmp_path, "x", {})
    for rows in ([{"arm": "a"}], [{}], [{"loss": [1]}], [{"loss": "high"}]):
        run.write("result.json", {"rows": rows})
        with pytest.raises(ValueError, match=r"no complete run has (rows|a column of numbers)"):
            tables.table(tables.collect(tmp_path))
    run.write("result.json", {"rows": [{"arm": {"a": 1}, "loss": 1.0}, {"loss": 2.0}]})
    assert tables.table(tables.collect(tmp_path))["loss"].tolist() == [1.5]
