"""Each notebook can be run with other parameters, and a misspelt one does not pass unnoticed."""

import ast
from pathlib import Path

import nbformat
import papermill

from tests.notebooks.conftest import FOLDER, HERE

START = "from astkit import runs\n\nnb = runs.notebook()"


def test_notebooks_and_parameter_files_come_in_pairs() -> None:
    notebooks = {f"{path.stem}.yaml" for path in FOLDER.glob("*.ipynb")}
    assert notebooks == {path.name for path in (HERE / "params").iterdir()}


def test_papermill_finds_the_parameters(notebook: Path, reduced: dict) -> None:
    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    (place,) = [i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])]
    # above are the places of answer and picture alone
    assert [cell.source for cell in cells[:place]] == place * [START]
    # papermill reads by regular expression: it loses a line with a second equals sign
    set_here = {name.id for name in ast.walk(ast.parse(cells[place].source)) if is_set(name)}
    read = papermill.inspect_notebook(notebook)
    assert set_here == read.keys()
    assert reduced.keys() <= read.keys()  # of others it only warns


def is_set(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
