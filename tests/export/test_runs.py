"""An exported notebook, run where there is no astkit, finds what the package finds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from astkit.export import notebook
from astkit.export.bundle import bundle
from astkit.export.cells import literals, open_notebook

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parents[1] / "notebooks"
PARAMS = HERE.parent / "notebooks" / "params"
MOUNTS = ("made-up-slug", "owner/made-up-slug", "datasets/owner/made-up-slug")
SMALLER: dict[str, dict[str, Any]] = {
    "00": {},
    "01": {"dataset": "digits", "seeds": [0]},
    "02": {"seeds": [0], "live_epochs": 2},  # it takes the embedded digits only
    "03": {"dataset": "digits", "seeds": [0]},
    "04": {"texts": str(NOTEBOOKS.parent / "data" / "docs_pairs.jsonl.gz")},
    "05": {},
    "06": {},
    "07": {},
}
MEASURED = "nbval-ignore-output"

# what a notebook found, where its own tables also hold what was measured
FOUND = {"03": "print([r['test_accuracy'] for r in results if r['arm'].endswith('plain')])"}
WHERE = "import astkit, os; print(os.path.dirname(os.path.dirname(astkit.__file__)))"


def reduced(number: str) -> dict[str, Any]:
    """Parameters that make the notebook small, on the embedded digits; committed results kept."""
    (path,) = PARAMS.glob(f"{number}_*.yaml")
    parts = open_notebook(NOTEBOOKS / f"{path.stem}.ipynb")
    known = literals(parts.parameters.source).items()
    files = {name: NOTEBOOKS / each for name, each in known if each and isinstance(each, str)}
    kept = {name: str(each.resolve()) for name, each in files.items() if each.is_file()}
    return {**yaml.safe_load(path.read_text()), **kept, **SMALLER[number]}


def prepared(number: str, folder: Path) -> Path:
    """The notebook in ``folder``, with a cell that prints what it found."""
    (original,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    book = nbformat.read(original, 4)
    if number in FOUND:
        book.cells.append(new_code_cell(FOUND[number]))
    nbformat.write(book, folder / original.name)
    return folder / original.name


def findings(book: NotebookNode, cells: int) -> list[tuple[str, list[Any]]]:
    """Source and outputs of those of the last ``cells`` that show the same in every run."""
    code = [cell for cell in book.cells[-cells:] if cell.cell_type == "code"]
    kept = [cell for cell in code if MEASURED not in cell.metadata.get("tags", [])]
    return [(cell.source, _joined(map(_text, cell.outputs))) for cell in kept]


def _joined(shown: Iterable[Any]) -> list[Any]:
    """Outputs with the parts of a stream joined, which is split at any place."""
    found: list[Any] = []
    for each in shown:
        if isinstance(each, str) and found and isinstance(found[-1], str):
            found[-1] += each
        else:
            found.append(each)
    return found


def _text(output: NotebookNode) -> Any:
    if "data" not in output:
        return output.get("text", output)
    # as nbval does, pictures are left out: some draw seconds
    return {kind: content for kind, content in output.data.items() if kind != "image/png"}


def test_every_notebook_can_be_exported() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        made = bundle(path)
        text = notebook.text(made)
        count = len(json.loads(text)["cells"])
        assert count == len(made.head) + len(made.body) + 4
        assert len(text) < 300_000
        assert count <= 45 or not path.name.startswith("01")


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "mount"),
    [
        *itertools.product(("01", "02", "03"), MOUNTS),
        ("00", ""),
        ("04", ""),
        ("05", ""),
        ("06", ""),
        ("07", ""),
    ],
)
def test_an_export_finds_what_the_package_finds(
    number: str, mount: str, begin_in, make_input, tmp_path: Path
) -> None:
    data = make_input(tmp_path / "input", mount) if mount else tmp_path
    parameters = reduced(number)
    if mount and "dataset" in parameters:
        parameters["dataset"] = "cifar10"
    original = prepared(number, tmp_path)
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
    written = {path.name for path in (tmp_path / "empty").iterdir()}
    assert written == {"astkit", "ran.ipynb", *bundled.files}


LEARN = """\
import torch
from IPython.display import Markdown, display

from astkit import Gate, Loader, models
from astkit.datasets import Images
from astkit.widgets import gate_plots

pixels = torch.arange(64 * 64).view(64, 1, 8, 8).mul(7).to(torch.uint8)
part = Images(pixels, torch.arange(64) % 4, tuple("abcd"), "stripes")
model = models.build("digits_cnn", part.shape, part.num_classes, seed=0)
gate, steps = Gate(rate), []
for step, (_, x, y) in enumerate(Loader(part, 8).batches(0)):
    chosen = gate(model, x, y)
    rows = chosen.index.tolist()
    steps.append({"step": step, "rate": len(rows) / len(y), "threshold": sum(rows), "rows": rows})
print(steps)
"""
PICTURE = 'display(gate_plots.threshold_and_rate(steps, rate), Markdown("**bold**"))'


@pytest.fixture
def write_notebook(tmp_path: Path) -> Callable[..., Path]:
    def write(*sources: str) -> Path:
        parameters = new_code_cell("rate = 0.5  # a share", metadata={"tags": ["parameters"]})
        cells = [parameters, *map(new_code_cell, sources)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "small.ipynb")
        return tmp_path / "small.ipynb"

    return write


def test_a_small_export_finds_what_the_package_finds(
    write_notebook, begin_in, tmp_path: Path
) -> None:
    exported = tmp_path / "exported.ipynb"
    small = write_notebook(LEARN, PICTURE)
    exported.write_text(notebook.text(bundle(small, {"rate": 0.25})))
    finish = begin_in("bare", exported, tmp_path / "empty", {})
    space: dict[str, Any] = {"rate": 0.25}
    exec(LEARN, space)
    *_, found, shown = finish().cells
    assert found.outputs[0].text.strip() == str(space["steps"])
    kinds = [set(output.data) for output in shown.outputs]
    assert kinds == [{"image/png", "text/plain"}, {"text/markdown", "text/plain"}]
    # what is written stays in the current folder
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {"astkit", "ran.ipynb"}
