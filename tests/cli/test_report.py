"""`astkit report`: what it prints and what it refuses."""

from __future__ import annotations

from pathlib import Path

from astkit.cli import main
from astkit.runs import report, tables
from astkit.runs.record import Record
from tests.cli.refusals import refused
from tests.runs.test_tables import root  # noqa: F401 (a fixture)

# ruff: noqa: F811


def test_counts_and_the_table_are_printed(root: Path, capsys) -> None:
    failed = Record.create(root, "01_gate", {"rate": 0.9}, 0)
    failed.write("error.json", {"type": "ValueError", "message": "no data"})
    assert main(["report", str(root)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("8 complete, 1 failed")
    assert "ValueError: no data" in text
    assert "minus dense" in text
    name = failed.folder.name
    assert main(["report", str(root), "--stale", name, "--why", "never mind"]) == 0
    assert failed.status == "stale"
    assert main(["report", str(root), "--compare", name, tables.records(root)[0].folder.name]) == 0
    assert "config: parameters.rate" in capsys.readouterr().out


def test_a_page_is_written_with_the_same_groups(root: Path, tmp_path, capsys, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(report, "write", lambda *given, **more: asked.append((given, more)))
    monkeypatch.chdir(tmp_path)
    main(["report", str(root), "--format", "html", "--by", "arm", "--metric", "flops"])
    main(["report", str(root), "-o", "page.ipynb"])
    (first, more), (second, _) = asked
    assert first == (root, Path("report.html"), "html")
    assert more == {"name": None, "metric": "flops", "by": ["arm"], "control": None}
    assert second == (root, Path("page.ipynb"), "notebook")


def test_it_refuses_in_one_sentence(root: Path, capsys) -> None:
    for arguments, sentence in (
        (["nowhere"], "nowhere is no folder of runs"),
        ([root, "--metric", "speed"], "metric is 'speed'"),
        ([root, "--stale", "it"], "holds no run it"),
        ([root, "--format", "html", "--control", "it"], "control is 'it'"),
    ):
        assert sentence in refused(capsys, "report", *arguments)
