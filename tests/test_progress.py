"""Bars: what is shown where, and sentences beside them."""

import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astkit import progress
from astkit.progress import Bar, announce, duration, warn


class Notebook:
    """A notebook's outputs: the lines that were shown in each."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        shown = [data["text/plain"]]
        self.outputs.append(shown)
        return SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """As in a notebook's kernel."""
    found, shell = Notebook(), SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=found.display))
    return found


def test_a_notebook_shows_one_line_which_ends_as_a_sentence(notebook, clock):
    with Bar(total=20, desc="run") as bar:
        clock.now += 54.5
        bar.update(10)
        announce("a sentence")
        clock.now += 54.5
        bar.finish(20, "run")
    (shown,) = notebook.outputs
    assert shown[0].startswith("run:   0%|")
    assert "50%" in shown[1]
    assert "10/20 [00:54<00:54, " in shown[1]
    assert shown[-1] == "20 runs in 1:49"


def test_a_terminal_shows_the_bar_and_then_the_sentence(terminal, clock):
    shown = terminal()
    with Bar(total=2) as bar:
        clock.now += 61
        bar.update()
        bar.finish(1, "epoch")
    *bars, last = shown.getvalue().split("\r")
    assert "50%|" in bars[-2]
    assert last.rstrip(" ") == "1 epoch in 1:01\n"


def test_what_is_said_stands_on_a_line_of_its_own(terminal, monkeypatch):
    shown = terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    with Bar(total=2, desc="bar"):
        announce("a sentence")
        with pytest.warns(UserWarning, match="another"):
            warn("another")
    lines = [line.split("\r")[-1] for line in shown.getvalue().split("\n")]
    assert lines[0] == "a sentence"
    assert shown.getvalue().count("\rbar:   0%|") == 4  # at first, after each, and at the end


@pytest.mark.parametrize("shown", [None, False, True])
def test_nothing_is_shown_in_a_pipe_unless_it_is_asked_for(shown: bool | None, capsys: Any) -> None:
    threads = threading.active_count()
    with Bar(shown, total=2) as bar:
        bar.update()
        assert threading.active_count() == threads
        bar.finish(2, "run")
    assert ("2 runs in 0:00" in capsys.readouterr().err) is bool(shown)


def test_only_one_of_several_processes_shows_a_bar(notebook, monkeypatch):
    assert progress.in_notebook()
    monkeypatch.setattr(progress.distributed, "rank", lambda: 1)
    Bar(total=2).finish(2, "run")
    assert notebook.outputs == []


def test_a_warning_is_its_sentence_and_is_said_once(capsys: Any) -> None:
    for _ in range(2):
        with warnings.catch_warnings(record=True) as seen:
            for _ in range(3):
                warn("rows are missing")
                with warnings.catch_warnings():  # as pandas does
                    pass
        (one,) = seen
        assert (str(one.message), one.filename) == ("rows are missing", __file__)
        assert "rows are missing" in Path(one.filename).read_text().splitlines()[one.lineno - 1]


def test_durations() -> None:
    words = {0.4: "0:00", 90: "1:30", 754: "12:34", 3700: "1:01:40"}
    assert {seconds: duration(seconds) for seconds in words} == words


def test_what_was_printed_is_not_a_warning_too(capsys: Any) -> None:
    announce("the forecast says so")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn("the forecast says so")
        warn("something else")
    assert [str(each.message) for each in told] == ["something else"]
    assert capsys.readouterr().out == "the forecast says so\n"


def test_lines_are_wrapped_and_bold_in_a_terminal_only(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    line = "aim: better: loss 88.9 % lower [83.8, 94.0], 3 seeds"
    announce(line, bold=True)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    announce(line, bold=True)
    shown = capsys.readouterr().out
    assert shown.startswith("\033[1m")
    assert shown.endswith("\033[0m\n")
    lines = shown[4:-5].splitlines()
    assert " ".join(each.strip() for each in lines) == line
    assert max(map(len, lines)) <= 30
