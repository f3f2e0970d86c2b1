"""`astkit report`: what it prints and what it refuses."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from astkit.cli import main
from astkit.runs import report
from astkit.runs.record import Record
from tests.cli.refusals import refused
from tests.runs.test_tables import made, root  # noqa: F401 (fixtures)

# ruff: noqa: F811


def test_counts_and_the_table_are_printed(root: Path, capsys) -> None:
    failed = Record.create(root, "01_gate", {"rate": 0.9}, 0)
    failed.write("error.json", {"type": "ValueError", "message": "no data"})
    assert main(["report", str(root)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("8 complete, 1 failed")
    assert "ValueError: no data" in text
    assert "minus dense" in text


def test_a_page_is_written_with_the_same_groups(root: Path, tmp_path, capsys, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(report, "page", lambda *given, **more: asked.append((given, more)) or "<p>")
    monkeypatch.chdir(tmp_path)
    main(["report", str(root), "--format", "html", "--by", "arm", "--metric", "flops"])
    main(["report", str(root), "-o", "page.html"])
    assert capsys.readouterr().out == "report.html\npage.html\n"
    assert Path("report.html").read_text() == Path("page.html").read_text() == "<p>"
    assert asked[0] == ((root,), {"name": None, "metric": "flops", "by": ["arm"], "control": None})


def test_a_page_goes_through_pipes_and_replaces_no_device_or_link(
    root: Path, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(report, "page", lambda *given, **more: "<p>")
    for name in ("-", "/dev/stdout"):
        main(["report", str(root), "-o", name])
        assert capsys.readouterr().out == "<p>\n"
    main(["report", str(root), "-o", "/dev/null"])
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "pipe")
    read = ThreadPoolExecutor(1).submit((tmp_path / "pipe").read_text)
    main(["report", str(root), "-o", str(tmp_path / "pipe")])
    assert read.result(10) == "<p>"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("link", "."):
        said = refused(capsys, "report", root, "-o", tmp_path / name)
        assert "not a regular file, so it is not overwritten: choose another" in said
    assert not (tmp_path / "elsewhere").exists()


def test_escape_sequences_do_not_reach_the_terminal(tmp_path: Path, capsys) -> None:
    run = Record.create(tmp_path, "x", {"mode": "\x1b]0;title\x07"}, 0)
    run.finish([{"arm": "\x1b[2J", "seed": 0, "loss": 1.0}, {"arm": "b\x9b", "loss": 2.0}])
    Record.create(tmp_path, "x", {"mode": "\u202e"}, 0).write("error.json", {"message": "\x1b[31m"})
    assert main(["report", str(tmp_path), "--metric", "loss"]) == 0
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\x07\x9b\u202e\r")
    assert r"\x1b[2J" in said
    assert r"'\x1b[2J'" in refused(capsys, "report", tmp_path, "--metric", "\x1b[2J")


def test_it_refuses_in_one_sentence(root: Path, capsys) -> None:
    for arguments, sentence in (
        (["nowhere"], "nowhere contains no runs"),
        ([root, "--metric", "speed"], "metric is 'speed'"),
        ([root, "--format", "html", "--control", "it"], "control is 'it'"),
    ):
        assert sentence in refused(capsys, "report", *arguments)
