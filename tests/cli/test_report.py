"""`astkit report`: what it prints and what it refuses."""

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


def test_it_refuses_in_one_sentence(root: Path, capsys) -> None:
    for arguments, sentence in (
        (["nowhere"], "nowhere contains no runs"),
        ([root, "--metric", "speed"], "metric is 'speed'"),
    ):
        assert sentence in refused(capsys, "report", *arguments)
