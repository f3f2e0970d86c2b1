"""What notebooks share: the answer at the top, and results where a folder is given."""

from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput, capture_output

from astkit import runs
from astkit.runs.record import FOLDER, Record
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


def test_the_answer_takes_the_place_of_what_start_has_shown() -> None:
    with capture_output() as shown:
        nb = runs.start("full", threads=1)
        ending = nb.answer("It does,\n in 3 of 3 runs.")
    first, last = shown.outputs
    assert texts([first, last]) == [
        "*The answer is computed below.*",
        "**It does, in 3 of 3 runs.**",
    ]
    assert first.transient["display_id"] == last.transient["display_id"]
    assert last.update
    assert ending.data == "**It does, in 3 of 3 runs.**"
    assert nb.full
    assert torch.get_num_threads() == 1
    assert "1 threads" in shown.stdout
    assert shown.stdout.endswith("preset full\n")


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
