"""The exercises of each notebook have answers, which run."""

import re
from pathlib import Path

import nbformat
import papermill
import pytest

from tests.notebooks.conftest import CELL_SECONDS, FOLDER
from tests.notebooks.test_committed import PLACES
from tests.notebooks.test_pictures import beside

SOLUTIONS = sorted((FOLDER / "solutions").glob("*.ipynb"))


@pytest.fixture(params=SOLUTIONS, ids=lambda path: path.stem)
def answers(request: pytest.FixtureRequest) -> Path:
    """The answers to one notebook's exercises."""
    return request.param


def texts(path: Path) -> str:
    cells = nbformat.read(path, 4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def test_each_exercise_has_an_answer(notebook: Path) -> None:
    _, exercises = texts(notebook).split("## Exercises")
    link = f"solutions/{notebook.name}"
    assert f"[Answers]({link})" in exercises
    answered = re.findall(r"^## (\d)\. ", texts(FOLDER / link), re.MULTILINE)
    assert answered == re.findall(r"^(\d)\. ", exercises, re.MULTILINE)


def test_answers_are_stored_as_they_were_run(answers: Path) -> None:
    cells = [cell for cell in nbformat.read(answers, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert kinds <= {"stream", "display_data"}  # printed, without errors
    assert PLACES.findall(answers.read_text("utf-8").replace(r"\n", "\n")) == []


@pytest.mark.full
def test_answers_run(answers: Path, kernel: str, tmp_path: Path) -> None:
    papermill.execute_notebook(
        answers,
        tmp_path / answers.name,
        kernel_name=kernel,
        cwd=answers.parent,
        execution_timeout=4 * CELL_SECONDS,
        progress_bar=False,
    )


def test_a_notebook_runs_again_with_other_values_and_lines(tmp_path: Path, monkeypatch) -> None:
    again = beside("solutions/again")
    monkeypatch.setattr(again, "NOTEBOOKS", tmp_path)
    parameters = nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["parameters"]})
    work = nbformat.v4.new_code_cell("import os\ny = 10 * x\nprint(y)\nplace = os.getcwd()")
    book = nbformat.v4.new_notebook(cells=[parameters, work])
    nbformat.write(book, tmp_path / "00_toy.ipynb")
    assert again.again("00")["y"] == 10
    changed = again.again("00", ("10 *", "20 *"), x=3)
    assert (changed["y"], changed["place"]) == (60, str(tmp_path))
    with pytest.raises(ValueError, match=r"00_toy.ipynb has no '30 \*': see its cells"):
        again.again("00", ("30 *", ""))
