"""What notebooks share: the answer at the top, and results where a folder is given."""

import re
from typing import Any

import nbformat
import papermill
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput, capture_output
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from astkit import runs
from astkit.runs import runner
from astkit.runs.record import FOLDER, Record
from astkit.runs.session import HEIGHT
from astkit.widgets.style import picture


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(FOLDER, raising=False)
    InteractiveShell.instance()  # without one, display prints
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    InteractiveShell.clear_instance()


def texts(outputs: list[RichOutput]) -> list[Any]:
    return [output.data.get("text/markdown") for output in outputs]


def test_answer_and_picture_take_the_places_that_the_first_cell_has_shown() -> None:
    with capture_output() as shown:
        nb = runs.notebook()
        assert not nb.full
        nb.start("full", threads=1)
        assert not shown.stdout
        ending = nb.answer("It does,\n in 3 of 3 runs.", picture())
        nb.finish()
    places, filled = shown.outputs[:2], shown.outputs[2:]
    assert texts([places[0], filled[0]]) == [
        "*The answer is computed below.*<br>&nbsp;",
        "**It does, in 3 of 3 runs.**",
    ]
    (kept,) = re.findall(r"height: (\d+)px", places[1].data["text/html"])
    assert HEIGHT - 12 < int(kept) < HEIGHT  # a front end adds a margin; see the browser's test
    assert "image/png" in filled[1].data
    for place, content in zip(places, filled, strict=True):
        assert content.update
        assert content.transient["display_id"] == place.transient["display_id"]
    assert places[0].transient["display_id"] != places[1].transient["display_id"]
    assert ending.data == "**It does, in 3 of 3 runs.**"
    assert nb.full
    assert torch.get_num_threads() == 1
    assert "1 threads" in shown.stdout
    assert shown.stdout.endswith("preset full\n")


def test_an_answer_without_a_picture_leaves_no_empty_place() -> None:
    with capture_output() as shown:
        nb = runs.notebook()
        nb.answer("It does.")
        runs.start("quick").answer("It does not.")
    pages = [output.data["text/html"] for output in shown.outputs if "text/html" in output.data]
    assert [bool(page) for page in pages] == [True, False, False, False]


BELOW = """\
from astkit.widgets.style import picture
nb.start(preset)
nb.answer("It does.", picture())
"""


def test_a_stored_notebook_has_the_picture_at_its_top_and_nowhere_else(tmp_path) -> None:
    source, target = tmp_path / "a.ipynb", tmp_path / "ran.ipynb"
    start = "from astkit import runs\n\nnb = runs.notebook()"
    tags = {"tags": ["parameters"]}
    cells = [
        new_markdown_cell("# Does it?"),
        new_code_cell(start),
        new_code_cell("preset = 'quick'", metadata=tags),
        new_code_cell(BELOW),
    ]
    nbformat.write(new_notebook(cells=cells, metadata=runner.PYTHON), source)
    papermill.execute_notebook(source, target, {"preset": "full"}, progress_bar=False)
    cells = nbformat.read(target, 4).cells
    answer, picture_shown = cells[1].outputs
    assert answer.data["text/markdown"] == "**It does.**"
    assert "image/png" in picture_shown.data
    assert picture_shown.metadata["image/png"]["width"] == 730
    below = [output for cell in cells[2:] for output in cell.get("outputs", [])]
    assert [output.data["text/markdown"] for output in below] == ["**It does.**"]


def test_another_preset_is_refused() -> None:
    with pytest.raises(ValueError, match="preset is 'fast': give one of quick, full"):
        runs.start("fast")


def test_results_are_kept_in_a_folder_that_is_given_or_of_a_command(tmp_path, monkeypatch):
    nowhere = runs.start("quick")
    nowhere.finish([{"seed": 0}])
    assert nowhere.record is None
    monkeypatch.setenv(FOLDER, str(tmp_path / "command"))
    for out, folder in (("", "command"), (tmp_path / "own", "command")):
        runs.start("quick", out=out).finish([{"seed": 3}], {"curve": picture()}, found=2)
        record = Record(tmp_path / folder)
        assert record.result["rows"] == [{"seed": 3}]
        assert record.result["found"] == 2
        assert (record.folder / "fig" / "curve.png").exists()
    monkeypatch.delenv(FOLDER)
    runs.start("quick", out=tmp_path / "own").finish()
    assert Record(tmp_path / "own").status == "complete"
