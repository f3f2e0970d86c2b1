"""An exported notebook, run where there is no astkit, finds what the package finds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from astkit.datasets import load
from astkit.export import kaggle, notebook
from astkit.export.bundle import bundle

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parents[1] / "notebooks"
PARAMS = HERE.parent / "notebooks" / "params"
MOUNTS = ("made-up-slug", "owner/made-up-slug", "datasets/owner/made-up-slug")
SMALLER = {
    "01": {"dataset": "digits", "seeds": [0]},
    "02": {"seeds": [0], "live_epochs": 2},  # it takes the embedded digits only
    "03": {"dataset": "digits", "seeds": [0]},
    "04": {"texts": str(NOTEBOOKS.parent / "data" / "docs_pairs.jsonl.gz")},
    "05": {},
}
MEASURED = "nbval-ignore-output"

# what a notebook found, where its own tables also hold what was measured
FOUND = {"03": "print([r['test_accuracy'] for r in results if r['arm'].endswith('plain')])"}
WHERE = "import astkit, os; print(os.path.dirname(os.path.dirname(astkit.__file__)))"


def reduced(number: str) -> dict[str, Any]:
    """Parameters that make the notebook small, on the embedded digits."""
    (path,) = PARAMS.glob(f"{number}_*.yaml")
    values = yaml.safe_load(path.read_text())
    return {**values, **SMALLER[number]}


def prepared(number: str, folder: Path, measure: bool) -> Path:
    """The notebook in ``folder``; without ``measure``, without its cells that measure."""
    (original,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    book = nbformat.read(original, 4)
    if not measure:
        book.cells = [cell for cell in book.cells if MEASURED not in cell.metadata.get("tags", [])]
    if number in FOUND:
        book.cells.append(new_code_cell(FOUND[number]))
    nbformat.write(book, folder / original.name)
    return folder / original.name


def findings(book: NotebookNode, cells: int) -> list[tuple[str, list[Any]]]:
    """Source and outputs of those of the last ``cells`` that show the same in every run."""
    code = [cell for cell in book.cells[-cells:] if cell.cell_type == "code"]
    kept = [cell for cell in code if MEASURED not in cell.metadata.get("tags", [])]
    return [(cell.source, [_text(output) for output in cell.outputs]) for cell in kept]


def _text(output: NotebookNode) -> Any:
    if "data" not in output:
        return output.get("text", output)
    # as nbval does, pictures are left out: some draw seconds
    return {kind: content for kind, content in output.data.items() if kind != "image/png"}


@pytest.mark.parametrize(
    ("number", "mount", "measure"),
    [
        ("01", MOUNTS[2], True),
        ("02", "", True),
        ("03", "", False),  # what it measures takes a process an arm
        *(
            pytest.param(number, mount, True, marks=pytest.mark.full)
            for number in ("01", "02", "03")
            for mount in MOUNTS
        ),
        *(pytest.param(number, "", True, marks=pytest.mark.full) for number in ("04", "05")),
    ],
)
def test_an_export_finds_what_the_package_finds(
    number: str, mount: str, measure: bool, begin_in, make_input, tmp_path: Path
) -> None:
    data = make_input(tmp_path / "input", mount) if mount else tmp_path
    parameters = reduced(number)
    if mount and "dataset" in parameters:
        parameters["dataset"] = "cifar10"
    original = prepared(number, tmp_path, measure)
    bundled = bundle(original, parameters)
    book = notebook.build(bundled)
    book.cells.insert(-len(bundled.body), new_code_cell(WHERE))
    exported = tmp_path / "exported.ipynb"
    nbformat.write(book, exported)

    mounted = {"ASTKIT_INPUT": tmp_path / "input"}
    running = begin_in("bare", exported, tmp_path / "empty", {}, **mounted)
    twin = begin_in("package", original, tmp_path / "twin", parameters, ASTKIT_DATA=data)()
    ran = running()

    count = len(bundled.body)
    assert ran.cells[-count - 1].outputs[0].text.strip() == str(tmp_path / "empty")
    expected = findings(twin, count)
    assert findings(ran, count) == expected
    assert any(outputs for _, outputs in expected)
    # what is written stays in the current folder
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {"astkit", "ran.ipynb"}


SMALL = """\
import inspect

from IPython.display import Markdown, display

from astkit import Gate
from astkit.profiling import Ledger
"""
MORE = """\
async def later(value):
    return value

gate = Gate(0.5)
answer = await later(gate.target_rate)
"""
SHOWN = """\
%matplotlib inline
display(Markdown("**bold**"))
"class Ledger:" in inspect.getsource(Ledger)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    parameters = new_code_cell("rate = 0.5  # a share", metadata={"tags": ["parameters"]})
    cells = [parameters, *map(new_code_cell, (SMALL, MORE, SHOWN, "answer", "Gate(rate - 1)"))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "small.ipynb")
    return tmp_path / "small.ipynb"


def test_a_script_shows_waits_and_points_at_sources(
    small: Path, bare_python: Path, tmp_path: Path
) -> None:
    made = bundle(small, {"rate": 0.25}, as_script=True)
    path = kaggle.write(made, kaggle.Kernel(), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    for _ in range(2):  # the second time the modules are there already
        result = subprocess.run(
            [bare_python, path], cwd=tmp_path / "empty", capture_output=True, text=True
        )
        lines = result.stdout.splitlines()
        assert lines[-3:] == ["**bold**", "True", "0.5"], result.stderr
        # the last cell is wrong: the traceback has its line, and the line in the module
        assert "Gate(rate - 1)" in result.stderr
        assert "target_rate is -0.75" in result.stderr
        assert f"{tmp_path}/empty/astkit-{made.source[:12]}/astkit/gating/" in result.stderr


def test_a_changed_module_in_a_script_is_refused(
    small: Path, bare_python: Path, tmp_path: Path
) -> None:
    path = kaggle.write(bundle(small, as_script=True), kaggle.Kernel(), tmp_path)
    path.write_text(path.read_text().replace('__version__ = "', 'raise SystemExit("run")  # "', 1))
    result = subprocess.run([bare_python, path], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    assert "RuntimeError: astkit/__init__.py is not what was exported" in result.stderr


LOADS = """\
from astkit.datasets import load

train, test = load(dataset)
print(len(train), len(test), int(train.images.sum()))
"""


@pytest.mark.parametrize("mount", MOUNTS[:2])
def test_a_script_finds_its_data_without_a_network(
    mount: str, bare_python: Path, make_input, tmp_path: Path
) -> None:
    parameters = new_code_cell("dataset = 'cifar10'  # data", metadata={"tags": ["parameters"]})
    book = nbformat.v4.new_notebook(cells=[parameters, new_code_cell(LOADS)])
    nbformat.write(book, tmp_path / "loads.ipynb")
    made = bundle(tmp_path / "loads.ipynb", as_script=True)
    path = kaggle.write(made, kaggle.Kernel(), tmp_path)
    (tmp_path / "empty").mkdir()
    environment = {**os.environ, "ASTKIT_INPUT": str(tmp_path / "input"), "ASTKIT_DATA": ""}

    def run() -> subprocess.CompletedProcess[str]:
        command = [bare_python, path]
        place = tmp_path / "empty"
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)

    data = make_input(tmp_path / "input", mount)
    train, test = load("cifar10", data)
    assert test is not None
    *_, found, shown = run().stdout.splitlines()
    assert found == f"data: {data}"
    assert shown == f"{len(train)} {len(test)} {int(train.images.sum())}"
    if mount == MOUNTS[0]:
        data.rename(data.with_name(".hidden"))
        assert "FileNotFoundError: CIFAR-10 is not below" in run().stderr
