"""A dashboard in a real browser: first touch, pause, stop, interrupts.

In the fast tests a small notebook is steered, in the full ones notebook 02.

Screenshots go to out/browser (or ASTKIT_BROWSER_OUT).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "02_controller_tuning.ipynb"
SMALL = {"streams": 2, "steps": 250, "seeds": [0, 1], "epochs": 1}
FAST = {"live_epochs": 60, "pace": 50}


def cell_with(text: str) -> int:
    """How many cells reach from the first one to the one with ``text``, the injected one added."""
    cells = nbformat.read(NOTEBOOK, 4).cells
    return next(i for i, cell in enumerate(cells) if text in cell.source) + 2


UP_TO_START = cell_with("await dashboard.start(")
TRAINER = """\
import torch
from astkit import Dashboard, Gate, Loader, Trainer
from astkit.datasets import Images

data = Images(torch.randint(0, 256, (88, 1, 8, 8)).byte(), torch.arange(88) % 4, "abcd", "noise")
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
trainer = Trainer(model, Loader(data, 8), Loader(data, 88), policy=Gate(0.1), epochs=90)
"""
START = "dashboard = Dashboard(pace=40)\nrun = await dashboard.start(trainer)"
WAIT = "run = await run.finished()\nrun.save(out + '/live.json')"


class Scene:
    """The notebook in a browser, and the record that its run leaves."""

    def __init__(self, lab_page: Any, out: Path) -> None:
        self.lab, self.out = lab_page, out

    @property
    def step(self) -> int:
        found = re.search(r"step (\d+)", self.lab.readout())
        return int(found[1]) if found else -1

    def status(self) -> str:
        return self.lab.readout().split(" ")[0]

    def until_step(self, step: int) -> None:
        self.lab.page.locator(".widget-html-content").last.wait_for(
            timeout=120_000, state="attached"
        )
        self.lab.until(lambda: self.step >= step, f"step {step}")

    def record(self) -> dict[str, Any]:
        path = self.out / "live.json"
        self.lab.until(path.exists, "the record")
        record = json.loads(path.read_text())
        steps = [step["step"] for step in record["steps"]]
        assert steps == list(range(1, record["training_steps"] + 1)), "the record has gaps"
        assert len(steps) > 5
        assert len(record["epochs"]) >= (len(steps) - 1) // 11, "an epoch is missing"
        return record


@pytest.fixture
def scene(open_notebook: Callable[..., Any], tmp_path: Path) -> Scene:
    return Scene(open_notebook(NOTEBOOK.name, {**SMALL, **FAST, "out": str(tmp_path)}), tmp_path)


def test_steer_pause_step_resume_and_stop(open_notebook, tmp_path: Path) -> None:
    parameters = new_code_cell("out = ''", metadata={"tags": ["parameters"]})
    cells = [parameters, *map(new_code_cell, (TRAINER, START, WAIT))]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(book, tmp_path / "small.ipynb")
    scene = Scene(open_notebook(tmp_path / "small.ipynb", {"out": str(tmp_path)}), tmp_path)
    scene.lab.run_cells(4)  # the parameters, those injected, the trainer, the start
    scene.until_step(5)
    scene.lab.drag_target(0.30)
    scene.until_step(30)
    scene.lab.photo("steered")
    pause_step_resume_and_stop(scene)
    record = scene.record()
    assert record["status"] == "stopped"
    (event,) = record["events"]
    assert (event["name"], event["value"]) == ("target_rate", pytest.approx(0.30))
    assert [step["target_rate"] for step in record["steps"]][event["step"]] == event["value"]
    assert record["steered"]


def pause_step_resume_and_stop(scene: Scene) -> None:
    lab = scene.lab
    lab.button("pause")
    lab.until(lambda: scene.status() == "paused", "the pause")
    held = scene.step
    lab.page.wait_for_timeout(700)
    assert scene.step == held
    lab.button("step")
    lab.until(lambda: scene.step == held + 1, "one step")
    lab.page.wait_for_timeout(700)
    assert scene.step == held + 1
    lab.button("pause")  # a toggle: pressed again it resumes
    scene.until_step(held + 5)
    lab.button("stop")
    lab.until(lambda: scene.status() == "stopped", "the stop")
    lab.run_cell("await run.finished(")


def check_step_response(record: dict[str, Any]) -> None:
    """The one change was the slider's first touch, and the rate followed it."""
    (event,) = record["events"]
    assert (event["name"], event["value"]) == ("target_rate", pytest.approx(0.30))
    rates = [step["rate"] for step in record["steps"]][event["step"] :]
    assert [step["target_rate"] for step in record["steps"]][event["step"]] == event["value"]
    assert sum(rates[39:60]) / 21 == pytest.approx(0.30, abs=0.03)
    assert record["steered"]


@pytest.mark.full
def test_steer_pause_resume_and_stop_then_interrupt_between_cells(scene: Scene) -> None:
    lab = scene.lab
    lab.run_cells(UP_TO_START)
    scene.until_step(150)
    lab.drag_target(0.30)
    moved = scene.step
    scene.until_step(moved + 75)
    lab.photo("steered")
    pause_step_resume_and_stop(scene)
    record = scene.record()
    assert record["status"] == "stopped"
    check_step_response(record)

    (scene.out / "live.json").unlink()
    lab.run_cell("await dashboard.start(")  # another run in the same kernel
    lab.until(lambda: scene.status() == "running" and 20 <= scene.step < 150, "a second run")
    lab.until(lambda: lab.page.get_by_text("| Idle").count() > 0, "an idle kernel", 20)
    lab.press("i", "i")
    lab.until(lambda: scene.status() == "interrupted", "the interrupt")
    lab.photo("interrupted")
    lab.run_cell("await run.finished(")
    record = scene.record()
    assert record["status"] == "interrupted"
    assert not record["steered"]


@pytest.mark.full
def test_run_all_and_interrupt_the_wait(scene: Scene) -> None:
    lab = scene.lab
    lab.menu("Run", "Run All Cells")
    scene.until_step(60)
    lab.drag_target(0.30)
    scene.until_step(scene.step + 75)
    lab.photo("run-all")
    lab.press("i", "i")
    record = scene.record()
    assert record["status"] == "interrupted"
    check_step_response(record)
    assert lab.page.get_by_text("KeyboardInterrupt").count() == 0
