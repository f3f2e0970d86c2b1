"""Each notebook is stored as a reader should find it: run, in order, and at home on any machine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
PLACES = re.compile(r"(?<![\w./-])/(?:home|root|work|tmp|Users|mnt|opt)\b.*")
# as in .pre-commit-config.yaml
STRIP = ["--keep-output", "--keep-count", "--keep-id"]
STRIP += ["--extra-keys", "metadata.papermill cell.metadata.papermill"]
# what a reader reads: lines of code that are not blank, words of text
LINES = dict.fromkeys(("00", "01", "02", "03", "04", "05"), 150)
LINES |= dict.fromkeys(("06", "07", "08"), 100)
WORDS = 450
PICTURES = 400  # such lines of the modules beside the notebooks


def code_cells(notebook: Path) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]


def test_it_was_run_in_order_without_errors(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output.evalue for output in outputs if output.output_type == "error"] == []


def test_code_and_text_are_short(notebook: Path) -> None:
    code = [
        cell for cell in code_cells(notebook) if "parameters" not in cell.metadata.get("tags", [])
    ]
    lines = [line for cell in code for line in cell.source.splitlines() if line.strip()]
    texts = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "markdown"]
    words = [word for cell in texts for word in cell.source.split()]
    assert len(lines) <= LINES[notebook.name[:2]]
    assert len(words) <= WORDS


def test_the_pictures_beside_the_notebooks_are_short() -> None:
    modules = [path.read_text("utf-8") for path in FOLDER.glob("*.py")]
    lines = [line for module in modules for line in module.splitlines() if line.strip()]
    assert len(lines) <= PICTURES


def test_it_names_no_place_of_one_machine(notebook: Path) -> None:
    stored = json.loads(notebook.read_text("utf-8"))
    for cell in stored["cells"]:
        for output in cell.get("outputs", ()):
            for kind in ("image/png", "image/jpeg"):
                output.get("data", {}).pop(kind, None)  # letters that may read like a path
    text = json.dumps(stored).replace(r"\n", "\n")
    assert PLACES.findall(text) == []


def test_there_is_nothing_to_strip() -> None:
    """Such as who ran a notebook when, and the state of widgets."""
    command = [sys.executable, "-m", "nbstripout", "--verify", *STRIP, *FOLDER.glob("*.ipynb")]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert result.returncode == 0, f"use the pre-commit hook: {result}"
