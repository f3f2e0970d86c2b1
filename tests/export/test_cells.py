"""A notebook is taken apart where its parameters are, and read as plain Python."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from astkit.export import cells

TAGGED = {"tags": ["parameters"]}


def book(folder: Path, *written: nbformat.NotebookNode) -> Path:
    nbformat.write(new_notebook(cells=list(written)), folder / "book.ipynb")
    return folder / "book.ipynb"


def test_the_parameters_part_the_notebook(tmp_path: Path) -> None:
    written = [
        new_markdown_cell("# Why?"),
        new_code_cell("rate: float = 0.1  # a share", metadata=TAGGED),
        new_code_cell("rate"),
    ]
    parts = cells.open_notebook(book(tmp_path, *written))
    assert [[cell.source for cell in part] for part in (parts.head, parts.body)] == [
        ["# Why?"],
        ["rate"],
    ]
    assert cells.literals(parts.parameters.source) == {"rate": 0.1, "time_budget_h": 0}
    assert cells.plain(parts.body, parts.first) == {"code cell 2": "rate\n"}


def test_a_budget_of_the_notebooks_own_is_kept(tmp_path: Path) -> None:
    parameters = new_code_cell("time_budget_h = 3  # hours", metadata=TAGGED)
    parts = cells.open_notebook(book(tmp_path, parameters))
    assert parts.parameters.source == "time_budget_h = 3  # hours"


def test_without_parameters_there_is_the_budget(tmp_path: Path) -> None:
    parts = cells.open_notebook(book(tmp_path, new_markdown_cell("# Why?"), new_code_cell("1")))
    assert cells.literals(parts.parameters.source) == {"time_budget_h": 0}
    assert list(cells.plain(parts.body, parts.first)) == ["code cell 1"]


def test_parameters_below_code_are_refused(tmp_path: Path) -> None:
    path = book(tmp_path, new_code_cell("1"), new_code_cell("rate = 1", metadata=TAGGED))
    with pytest.raises(ValueError, match="must be the first code cell"):
        cells.open_notebook(path)


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no notebook .*book.ipynb"):
        cells.open_notebook(tmp_path / "book.ipynb")
    (tmp_path / "book.ipynb").write_text("print(1)")
    with pytest.raises(ValueError, match="is not a notebook"):
        cells.open_notebook(tmp_path / "book.ipynb")


def test_cells_are_read_as_plain_python() -> None:
    for source, calls in (
        ("x = 5\n% 3", True),
        ("x = (5\n% 3)", False),
        ("%matplotlib inline\nx = 1", True),
        ("text = '''\n!ls\n'''", False),
        ("await x", False),
    ):
        plain = cells.plain([new_code_cell(source)], 1)["code cell 1"]
        assert ("get_ipython()" in plain, plain.strip() == source) == (calls, not calls)


def test_what_is_not_python_is_refused() -> None:
    for source, message in (
        ("%%bash\nls", "^code cell 1 is a %%bash cell"),
        ("x = 1\n!pip install y", "^code cell 1 runs a shell command"),
        ("found = !ls", "^code cell 1 runs a shell command"),
        ("x = = 1", r"^code cell 1 is not Python: invalid syntax \(line 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            cells.plain([new_code_cell(source)], 1)


def test_values_replace_parameters_and_comments_stay() -> None:
    source = "epochs: int = 1  # passés\nname = 'ä'; root = ''\n"
    source += "seeds = [\n    0,  # one\n]  # runs\na = b = 1"
    values = {"epochs": 40, "name": "it's", "seeds": [0, 1], "root": None}
    assert cells.literals("x = {[]: 1}") == {"x": None}
    assert cells.literals(source) == {"epochs": 1, "name": "ä", "root": "", "seeds": [0]}
    cells.check_values(values, set(cells.literals(source)))
    assert cells.replaced(source, {}) == source
    assert cells.replaced(source, values).splitlines() == [
        "epochs: int = 40  # passés",
        'name = "it\'s"; root = None',
        "seeds = [0, 1]  # runs",
        "a = b = 1",
    ]


def test_impossible_values_are_refused() -> None:
    for values, message in (
        ({"epoch": 1}, "^'epoch' is not a parameter of the notebook: choose from epochs"),
        ({"epochs": float("nan")}, "epochs is nan: pass a number"),
        ({"epochs": Path()}, "epochs is .*: pass a number"),
    ):
        with pytest.raises(ValueError, match=message):
            cells.check_values(values, {"epochs"})
