"""`astkit run` and `astkit demo`: what they print, what they refuse, and their exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from astkit import cli
from astkit.cli import demo, main
from astkit.runs.record import Record, write_json
from tests.cli.refusals import refused
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811


def run(toy, *options):
    return main(["run", str(toy), "--runs", str(toy.parent / "runs"), *options])


def folders(root):
    return [path for path in root.iterdir() if path.is_dir()]


def test_a_run_shows_what_the_notebook_prints(tmp_path, root, capfd):
    toy = sweeping.write(tmp_path / "toy.ipynb", "print('rate', rate, 'of', names)")
    assert run(toy, "-p", "rate=1", "-p", "names=z") == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed[0] == "rate 1.0 of ['z']"
    (folder,) = folders(root)
    assert printed[-1] == f"folder    {folder}"
    assert json.loads((folder / "config.json").read_text())["parameters"]["names"] == ["z"]


def test_a_complete_run_is_run_again_on_demand_only(toy, process, capsys):
    seen = process("complete")
    assert run(toy, "--threads", "3") == 0
    assert seen[0][1]["OMP_NUM_THREADS"] == "3"
    assert "complete  in " in capsys.readouterr().out
    sweeping.write(toy, "1")
    assert run(toy) == 0
    said = capsys.readouterr().out
    assert "complete  before, so not run again (--again does)" in said
    assert "note      toy.ipynb has changed since" in said
    assert len(seen) == 1
    assert run(toy, "--again") == 0
    assert len({env["ASTKIT_RUN"] for _, env in seen}) == 2


def test_other_ends_are_told(toy, process, capsys):
    process(error("no\nluck"), "left")
    assert run(toy) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "failed    ValueError: no luck in cell [3]"
    assert second.startswith("folder    ")
    assert run(toy) == 0
    assert "incomplete  in" in (said := capsys.readouterr().out)
    assert "the time limit was reached" in said


def test_bad_arguments_are_refused_before_anything_starts(toy, root, capsys):
    for options, sentence in (
        (["-p", "rates=1"], "toy.ipynb has no parameter 'rates': did you mean rate"),
        (["-p", "rate=high"], "rate is 'high', but its default in toy.ipynb is 0.1: give a number"),
        (["-p", "rate=0.1,0.2"], "rate is (0.1, 0.2), but its default"),
        (["-p", "rate"], "-p got 'rate': give name=value"),
        (["-p", "seed=1", "-p", "seed=2"], "-p gives seed twice"),
        (["--threads", "0"], "--threads is 0: give 1 or more"),
    ):
        assert refused(capsys, "run", toy, "--runs", root, *options).startswith(sentence)
    absent = toy.with_name("none.ipynb")
    assert refused(capsys, "run", absent) == f"there is no notebook {absent}\n"
    assert not root.exists()


def test_an_interrupt_while_the_command_is_imported_is_told_in_a_line(capsys, monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupted)
    assert main(["run", "toy.ipynb"]) == 130
    assert capsys.readouterr().err == "astkit: interrupted; started again, it resumes\n"


def test_a_path_with_umlauts_is_printed_in_any_locale(tmp_path, process, monkeypatch):
    process("complete")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run(sweeping.write(tmp_path / "bücher" / "toy.ipynb")) == 0
    stream.flush()
    assert rb"b\xfccher" in stream.buffer.getvalue()


def test_files_in_the_current_folder_are_not_imported(tmp_path):
    for name in ("json", "random", "textwrap", "argparse"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} of the folder')")
    done = subprocess.run(
        [sys.executable, "-m", "astkit", "demo", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_locked_run_is_refused(toy, root, process, capsys):
    process(error())
    run(toy)
    (folder,) = folders(root)
    with FileLock(folder / ".lock"):
        assert "is locked by another process" in refused(capsys, "run", toy, "--runs", root)


BARE = """
import sys
from astkit.cli import main

sys.modules |= dict.fromkeys(["filelock", "nbformat", "pandas"])
export = ["export", "kaggle", "toy.ipynb", "-o", "out"]
for arguments in (["run", "a"], ["sweep", "a"], ["demo"], export, ["report"], ["compare"]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert ended.code == 2
"""


def test_an_absent_package_is_named_by_every_command(tmp_path):
    (tmp_path / "toy.ipynb").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    absent = ["nbformat"] * 4 + ["pandas", "filelock"]
    said = "astkit: {} is not installed: install it, or the extra 'notebooks' of astkit (pip"
    lines = done.stderr.splitlines()
    assert [line.partition(" install -e")[0] for line in lines] == list(map(said.format, absent))


def test_a_package_that_says_itself_what_it_needs_is_quoted(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert refused(capsys, "compare").startswith("The digits are part of scikit-learn: install")


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_help_fits_and_has_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 80
    assert f"  astkit {command} notebooks/01_baseline_vs_gated.ipynb -p " in text


def test_the_demo_is_a_run_of_notebook_01_from_its_beginning(process, root, capsys, monkeypatch):
    entry = {"policy": "dense", "value": 0.75, "flops": 2.0, "seconds": 4.0, "trained": 9}
    entry |= {"seed": 0, "scored": 0, "rate": 1.0, "worst_class": None, "curve": [], "visits": "v"}
    found = {"entries": [entry], "metric": "accuracy", "higher": True, "settings": {}}

    def act(record: Record, given):
        write_json(record.folder / "comparison" / "comparison.json", found)
        record.finish()
        return "complete"

    seen = process(act)
    assert main(["demo", "--out", str(root)]) == main(["demo", "--out", str(root)]) == 0
    assert [given for given, _ in seen] == [{}, {}]
    said = capsys.readouterr().out
    assert "accuracy" in said
    assert "0.75" in said
    monkeypatch.setattr(demo, "NOTEBOOK", root / "01.ipynb")
    assert "install astkit from a wheel, or run the demo in a clone" in refused(capsys, "demo")
