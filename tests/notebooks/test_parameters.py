"""Each notebook can be re-run with other parameters, and a misspelt one does not pass unnoticed."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import nbformat
import papermill
from nbformat.v4 import new_code_cell, new_notebook

HERE = Path(__file__).resolve().parent
PYTHON = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def unknown(notebook: Path, names: set[str]) -> set[str]:
    """Names that are no parameters of the notebook; papermill itself only warns of them."""
    return names - papermill.inspect_notebook(notebook).keys()


def faults(notebook: Path) -> Iterator[str]:
    """What is wrong with the parameters cell."""
    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0] is not cells[0]:
        yield "the first code cell, and only that, needs the tag 'parameters'"
        return
    source = tagged[0].source
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    names = set()
    for statement in ast.parse(source).body:
        line = f"line {statement.lineno}"
        if not is_literal_assignment(statement):
            yield f"{line} is not of the form: name = literal  # comment"
        elif statement.lineno != statement.end_lineno or statement.lineno not in commented:
            yield f"{line} must end in a comment and be the only line of its parameter"
        else:
            names.add(ast.unparse(target_of(statement)))
    # papermill reads by regular expression: it loses a line with a second equals sign
    for name in unknown(notebook, names):
        yield f"papermill cannot read {name}: is there an equals sign in its value or comment?"


def target_of(statement: ast.Assign | ast.AnnAssign) -> ast.expr:
    return statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]


def is_literal_assignment(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    try:
        ast.literal_eval(statement.value)
    except ValueError:
        return False
    single = isinstance(statement, ast.AnnAssign) or len(statement.targets) == 1
    return single and isinstance(target_of(statement), ast.Name)


def test_notebooks_and_parameter_files_come_in_pairs() -> None:
    notebooks = {f"{path.stem}.yaml" for path in (HERE.parents[1] / "notebooks").glob("*.ipynb")}
    assert notebooks == {path.name for path in (HERE / "params").iterdir()}


def test_the_parameters_cell_is_in_order(notebook: Path) -> None:
    assert list(faults(notebook)) == []


def test_reduced_parameters_are_known_to_the_notebook(notebook: Path, reduced: dict) -> None:
    assert unknown(notebook, set(reduced)) == set()


def test_a_parameter_has_the_same_type_in_all_notebooks() -> None:
    types: dict[str, set[type]] = {"seeds": {list}}
    for path in (HERE.parents[1] / "notebooks").glob("*.ipynb"):
        for name, found in papermill.inspect_notebook(path).items():
            types.setdefault(name, set()).add(type(ast.literal_eval(found["default"])))
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_a_bad_parameters_cell_is_caught(tmp_path: Path) -> None:
    complaints = {
        "epochs = 2": "must end in a comment",
        "name = '# no comment'": "must end in a comment",
        "seeds = [  # one\n    0]  # two": "only line",
        "root = str(1)  # called": "literal",
        "a = b = 1  # twice": "literal",
        "rate = 0.1  # rate=1 trains on all": "papermill cannot read rate",
    }
    for source, complaint in complaints.items():
        cell = new_code_cell(source, metadata={"tags": ["parameters"]})
        nbformat.write(new_notebook(cells=[cell], metadata=PYTHON), tmp_path / "bad.ipynb")
        (found,) = faults(tmp_path / "bad.ipynb")
        assert complaint in found
