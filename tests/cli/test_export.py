"""`astkit export kaggle`: what its options do, and how it says no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from astkit.cli import main


@pytest.fixture
def small(tmp_path: Path) -> Path:
    parameters = "rate = 0.1  # a share\nname = ''  # a word"
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), new_code_cell("rate")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "01_small.ipynb")
    return tmp_path / "01_small.ipynb"


def run(notebook: Path, *options: str) -> int:
    return main(["export", "kaggle", str(notebook), "-o", str(notebook.parent / "out"), *options])


NAMES = ("rate", "name", "time_budget_h")


def settings(notebook: Path, names: tuple[str, ...] = NAMES) -> dict[str, object]:
    """What the parameters are once the first cell of the export has run."""
    book = nbformat.read(notebook.parent / "out" / notebook.name, 4)
    space: dict[str, object] = {}
    exec(next(c.source for c in book.cells if c.cell_type == "code"), space)
    return {name: space[name] for name in names}


def add(notebook: Path, lines: str) -> None:
    """Add parameters to the notebook."""
    book = nbformat.read(notebook, 4)
    book.cells[0].source += f"\n{lines}"
    nbformat.write(book, notebook)


def test_a_plain_call_keeps_the_notebooks_own_parameters(small: Path, capsys) -> None:
    assert run(small) == 0
    assert settings(small) == {"rate": 0.1, "name": "", "time_budget_h": 0}
    said = capsys.readouterr().out
    assert f"kaggle kernels push -p {small.parent / 'out'}" in said
    assert "YOUR-KAGGLE-NAME" in said


def test_two_calls_write_the_same_bytes(small: Path) -> None:
    folder = small.parent / "out"
    run(small, "-p", "rate=0.5")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run(small, "-p", "rate=0.5")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_parameters_are_written_into_the_notebook(small: Path) -> None:
    run(small, "-p", "rate=0.3", "-t", "8.5")
    assert settings(small) == {"rate": 0.3, "name": "", "time_budget_h": 8.5}
    run(small, "-p", "name=word", "-p", "rate=1e-3")
    assert settings(small) == {"rate": 0.001, "name": "word", "time_budget_h": 0}


def test_values_are_read_as_by_run(small: Path) -> None:
    add(small, "live = True\nseeds = [0, 1]\nout = ''")
    run(small, *(f"-p{option}" for option in ("live=false", "seeds=0", "out=1", "name=null")))
    expected = {"live": False, "seeds": [0], "out": "1", "name": "null"}
    assert settings(small, tuple(expected)) == expected


def test_a_time_budget_comes_with_a_place_to_save_in(small: Path) -> None:
    add(small, "out = ''  # a folder")
    run(small, "-t", "8")
    assert settings(small, ("out", "time_budget_h")) == {"out": "run", "time_budget_h": 8.0}


def test_kaggles_options_go_into_the_metadata(small: Path, monkeypatch) -> None:
    options = ["--title", "My title", "--dataset", "a/b", "--dataset", "c/d", "--gpu", "--public"]
    add(small, "dataset = 'digits'")
    monkeypatch.setenv("KAGGLE_USERNAME", "somebody")
    run(small, *options)
    values = json.loads((small.parent / "out" / "kernel-metadata.json").read_text())
    assert (values["id"], values["dataset_sources"]) == ("somebody/my-title", ["a/b", "c/d"])
    assert (values["enable_gpu"], values["is_private"]) == (True, False)
    assert "dataset = 'cifar10'" in (small.parent / "out" / small.name).read_text()
    run(small, "--user", "me")
    values = json.loads((small.parent / "out" / "kernel-metadata.json").read_text())
    assert values["id"] == "me/astkit-01-small"


def test_wrong_options_are_refused(small: Path, capsys) -> None:
    for options, message in (
        (["-p", "rat=1"], "01_small.ipynb has no parameter 'rat': did you mean rate?"),
        (["-p", "rate"], "-p got 'rate': give name=value"),
        (["--title", "abc"], "title is 'abc'"),
        (["--dataset", "a/b"], "dataset is 'a/b', but 01_small reads no dataset"),
        (["--wheel", "none.whl"], "there is no wheel none.whl"),
        (["--dataset", "a/b", "-p", "dataset=digits"], "dataset=digits needs no attached dataset"),
    ):
        if "dataset=digits" in options:
            add(small, "dataset = 'digits'")
        with pytest.raises(SystemExit) as caught:
            run(small, *options)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
        assert not (small.parent / "out").exists()


def test_an_import_that_kaggle_does_not_have_is_refused(small: Path, capsys) -> None:
    book = nbformat.read(small, 4)
    book.cells.append(new_code_cell("from astkit.runs import notebook"))
    nbformat.write(book, small)
    with pytest.raises(SystemExit) as caught:
        run(small)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "astkit.runs.notebook imports nbformat" in said
    assert "Kaggle's image does not have" in said


def test_an_absent_notebook_is_refused(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        run(tmp_path / "none.ipynb")
    assert caught.value.code == 2
    assert "there is no notebook" in capsys.readouterr().err


def test_the_export_imports_nothing_heavy() -> None:
    code = "import sys, astkit.export.kaggle\n"
    code += "heavy = {'torch', 'pandas', 'matplotlib', 'papermill', 'sklearn', 'ipywidgets'}\n"
    code += "print(sorted(heavy & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr
