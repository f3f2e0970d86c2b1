"""`astkit tune`: what reaches the search, what it prints, and what it refuses."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from astkit.cli import main
from astkit.runs import tuning
from astkit.runs.tuning import DENSE, GATE, RANDOM, Tuning
from tests.cli.refusals import refused


def test_it_searches_and_shows_all_arms(tmp_path, capsys):
    storage = tmp_path / "new" / "search"
    options = ["--storage", str(storage), "--epochs", "0.3", "--confirm", "1", "--seed", "5"]
    assert main(["tune", *options, "--trials", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"{GATE}, trial 1:") for line in lines)
    assert [line.split("  ")[0] for line in lines[-3:]] == [DENSE, GATE, RANDOM]
    assert main(["tune", *options, "--trials", "2"]) == 0
    assert "trial 0" not in capsys.readouterr().out


def test_options_reach_the_search(tmp_path, monkeypatch):
    made = []

    class Noted(Tuning):
        def run(self, trials):
            made.append((self, trials))

        def best(self, seeds):
            made.append(seeds)
            return SimpleNamespace(to_string=lambda float_format: "")

    monkeypatch.setattr(tuning, "Tuning", Noted)
    options = ["--storage", str(tmp_path / "s"), "--model", "simple_cnn", "--epochs", "2"]
    main(["tune", *options, "--tune-lr", "--trials", "7", "--seed", "3", "--confirm", "4"])
    (search, count), seeds = made
    assert type(search.task.make_model()).__name__ == "SimpleCNN"
    assert (search.epochs, search.lr, search.seed) == (2, True, 3)
    assert (search.storage, count, seeds) == (tmp_path / "s", 7, 4)


def test_bad_values_and_an_absent_optuna_are_refused_in_one_line(tmp_path, capsys, monkeypatch):
    storage = tmp_path / "s"
    for options, sentence in (
        (["--trials", "0"], "trials is 0"),
        (["--epochs", "0"], "budget epochs is 0.0"),
        (["--confirm", "0"], "--confirm is 0"),
    ):
        assert refused(capsys, "tune", "--storage", storage, *options).startswith(sentence)
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "astkit.runs.tuning")
    monkeypatch.delattr("astkit.runs.tuning")
    said = refused(capsys, "tune", "--storage", storage)
    assert said.startswith("tuning needs optuna, which is not installed: pip install")
    assert not storage.exists()
