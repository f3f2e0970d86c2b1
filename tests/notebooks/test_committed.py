"""Each notebook is stored as a reader should find it: run, in order, and at home on any machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import nbformat
import pytest
from nbformat import NotebookNode

from astkit.widgets.style import PIXELS, WIDTH

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
TAGS = {"parameters", "nbval-ignore-output", "hide-input"}
LINES = 8  # of a cell, with 79 characters a line
PLACES = re.compile(r"(?<![\w./-])/(home|root|work|tmp|Users|mnt|opt)\b")
# as in .pre-commit-config.yaml
STRIP = ["--keep-output", "--keep-count", "--keep-id"]
STRIP += ["--extra-keys", "metadata.papermill cell.metadata.papermill"]


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def outputs(nb: NotebookNode) -> list[NotebookNode]:
    return [output for cell in code_cells(nb) for output in cell.outputs]


def texts(nb: NotebookNode) -> Iterator[str]:
    """All that can be read in a notebook; pictures are left out."""
    yield from (cell.source for cell in nb.cells)
    for output in outputs(nb):
        yield output.get("text", "")
        for kind, content in output.get("data", {}).items():
            if kind not in ("image/png", "image/jpeg"):
                yield content if isinstance(content, str) else json.dumps(content)


# Rules: each takes a notebook and yields what is wrong with it.


def opens_with_a_question(nb: NotebookNode) -> Iterator[str]:
    first = nb.cells[0]
    title = first.source.splitlines()[0].strip()
    if first.cell_type != "markdown" or not re.fullmatch(r"# .+\?", title):
        yield f"the first line must be a title that asks a question: {title}"


def closes_with_findings_and_exercises(nb: NotebookNode) -> Iterator[str]:
    prose = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    for title in ("What we learned", "Exercises"):
        if not re.search(rf"^##+ {title}\s*$", prose, re.MULTILINE):
            yield f"there is no section '{title}'"


def has_short_cells(nb: NotebookNode) -> Iterator[str]:
    lines = [sum(bool(line.strip()) for line in c.source.splitlines()) for c in code_cells(nb)]
    if median(lines) > LINES:
        yield f"the median code cell has {median(lines)} lines; {LINES} are allowed"


def was_run_in_order(nb: NotebookNode) -> Iterator[str]:
    counts = [cell.execution_count for cell in code_cells(nb)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"restart the kernel and run all cells; now they are numbered {counts}"


def ran_without_errors(nb: NotebookNode) -> Iterator[str]:
    yield from (output.evalue for output in outputs(nb) if output.output_type == "error")


def shows_a_picture(nb: NotebookNode) -> Iterator[str]:
    pictures = [out.data for out in outputs(nb) if "image/png" in out.get("data", {})]
    if not pictures:
        yield "there is no picture"
    for data in pictures:
        if " at 0x" in data.get("text/plain", " at 0x"):
            yield "a picture needs a text/plain, and one without an object's address"


def names_no_place(nb: NotebookNode) -> Iterator[str]:
    lines = [line for text in texts(nb) for line in text.splitlines()]
    yield from (f"a path of one machine: {line}" for line in lines if PLACES.search(line))


def uses_known_tags(nb: NotebookNode) -> Iterator[str]:
    found = {tag for cell in nb.cells for tag in cell.metadata.get("tags", [])}
    yield from (f"unknown tag {tag}" for tag in sorted(found - TAGS))
    if any("NBVAL_" in cell.source for cell in code_cells(nb)):
        yield "nbval is told by tags, not by comments"


def names_kernel_python3(nb: NotebookNode) -> Iterator[str]:
    name = nb.metadata.get("kernelspec", {}).get("name")
    if name != "python3":
        yield f"the kernelspec is named {name}"


def shows_pictures_of_one_width_and_says_what_they_are(nb: NotebookNode) -> Iterator[str]:
    shown = [out.metadata for out in outputs(nb) if "image/png" in out.get("data", {})]
    for number, metadata in enumerate(shown):
        about = metadata.get("image/png", {})
        if len(about.get("alt", "").split()) < 4:
            yield f"picture {number} needs an alternative text"
        if not 0 < about.get("width", 0) <= PIXELS * WIDTH + 1:
            yield f"picture {number} is {about.get('width')} pixels wide"


def writes_numbers_in_one_way(nb: NotebookNode) -> Iterator[str]:
    for text in texts(nb):
        yield from re.findall(r"\d%.{,20}", re.sub(r"<style.*?</style>|style=\".*?\"", "", text))
        yield from re.findall(r"(?<![\d.e])-0\.0+(?![\d])", text)


def holds_the_outputs_of_its_parameters(nb: NotebookNode) -> Iterator[str]:
    first, second, *_ = code_cells(nb)
    preset = re.search(r'^preset = "(\w+)"', first.source, re.MULTILINE)
    said = "".join(output.get("text", "") for output in second.outputs)
    if not preset or not said.endswith(f"· preset {preset[1]}\n"):
        yield f"{preset} is not what was run: {said}"


def names_the_next_one(nb: NotebookNode) -> Iterator[str]:
    line = nb.cells[-1].source.splitlines()[-1]
    link = re.fullmatch(r"Next: \[.+\]\((\d\d_\w+\.ipynb)\)\.", line)
    if not link or not (FOLDER / link[1]).exists():
        yield f"the last line must be 'Next: [...](NN_name.ipynb).': {line}"


Rule = Callable[[NotebookNode], Iterator[str]]
RULES: list[Rule] = [
    opens_with_a_question,
    closes_with_findings_and_exercises,
    has_short_cells,
    was_run_in_order,
    ran_without_errors,
    shows_a_picture,
    names_no_place,
    uses_known_tags,
    names_kernel_python3,
    shows_pictures_of_one_width_and_says_what_they_are,
    writes_numbers_in_one_way,
    holds_the_outputs_of_its_parameters,
    names_the_next_one,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_stored_notebook(rule: Rule, notebook: Path) -> None:
    assert list(rule(nbformat.read(notebook, 4))) == []


def test_the_stored_notebook_is_small(notebook: Path) -> None:
    assert notebook.stat().st_size < 1_000_000


def test_the_stored_notebooks_have_nothing_to_strip() -> None:
    """Such as who ran a notebook when, and the state of widgets."""
    command = [sys.executable, "-m", "nbstripout", "--verify", *STRIP, *FOLDER.glob("*.ipynb")]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert result.returncode == 0, f"use the pre-commit hook: {result}"
