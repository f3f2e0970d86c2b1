"""`astkit report`: what it prints and what it refuses."""

from __future__ import annotations

from pathlib import Path

from astkit.cli import main
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
    ):
        assert sentence in refused(capsys, "report", *arguments)
