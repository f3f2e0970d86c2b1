"""`astkit explain` and `astkit forecast`: the answer, then the table, of files as they come."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from astkit import explain, forecast
from astkit.cli import main
from tests import build
from tests.cli.refusals import refused

DAYS = pd.date_range("2024-01-01", periods=400).strftime("%d.%m.%Y")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Old rows of another law, new ones, and the same without the label."""
    folder = tmp_path_factory.mktemp("tables")
    old = build.table(300, law=-2.0, day=DAYS[:300], who=["a", "b", "c"] * 100)
    new = build.table(100, 1, day=DAYS[300:], who=["d", "e"] * 50)
    paths = [folder / f"{name}.csv" for name in ("old", "new", "unlabelled")]
    for path, frame in zip(paths, (old, new, new.drop(columns="y")), strict=True):
        frame.to_csv(path, index=False, encoding="utf-16")
    return paths


def test_what_differs_needs_no_label(files: list[Path], capsys, monkeypatch) -> None:
    old, _, unlabelled = files
    expected = explain(old, unlabelled)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["explain", str(old), str(unlabelled)]) == 0
    answer, rest = repr(expected).split("\n", 1)
    bold, end, others = capsys.readouterr().out.partition("\033[0m\n")
    assert bold.startswith("\033[1m")
    assert " ".join(bold[4:].split()) == answer  # wrapped
    assert (end, others) == ("\033[0m\n", f"{rest}\n")
    assert "- columns that the target lacks are not compared: y" in rest
    assert "y" not in expected.table["column"].tolist()


def test_options_decide_how_both_are_read(files: list[Path], capsys, tmp_path: Path) -> None:
    old, new, _ = files
    words = [str(old), str(new), "--drop", "noise", "--keep", "place", "--groups", "who"]
    words += ["--encoding", "utf-16", "--task", "regression", "--dtypes", "day=%d.%m.%Y"]
    options = {"drop": ["noise"], "keep": ["place"], "groups": "who", "task": "regression"}
    reading = {**options, "encoding": "utf-16", "dtypes": {"day": "%d.%m.%Y"}}
    picture = tmp_path / "gains.png"
    call = ["forecast", *words, "--label", "y", "--date", "day", "--plot", str(picture)]
    assert main(call) == 0
    said = capsys.readouterr().out.splitlines()
    expected = repr(forecast(old, new, "y", date="day", **reading)).splitlines()
    assert said[0].rpartition("; ")[0] == expected[0].rpartition("; ")[0]  # but for the seconds
    assert said[1:] == [*expected[1:], str(picture)]
    assert picture.read_bytes()[1:4] == b"PNG"
    assert main(["explain", *words, "--label", "y"]) == 0
    assert capsys.readouterr().out == f"{explain(old, new, 'y', **reading)!r}\n"


def test_mistakes_are_one_line(files: list[Path], capsys) -> None:
    old, new, unlabelled = files
    for words, sentence in (
        (["forecast", old, unlabelled, "--label", "y"], "the target has no 'y', so no gain"),
        (["forecast", old, new, "--label", "z"], f"{old} cannot be read: there is no column 'z'"),
        (["explain", old, "nowhere.csv"], "target: nowhere.csv is no file"),
        (["explain", old, new, "--dtypes", "words"], "--dtypes words: give a column and how"),
    ):
        assert refused(capsys, *words).startswith(sentence)
