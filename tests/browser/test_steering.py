"""A dashboard in a real browser: steer, pause, step, stop and interrupt while the cell trains.

Screenshots go to out/browser (or ASTKIT_BROWSER_OUT).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

TRAINER = """\
import torch
from astkit import Dashboard, Gate, Loader, Trainer
from astkit.datasets import Images
from astkit.widgets import strip

strip.ANSWER_S = 10.0
data = Images(torch.randint(0, 256, (88, 1, 8, 8)).byte(), torch.arange(88) % 4, "abcd", "noise")
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
trainer = Trainer(model, Loader(data, 8), Loader(data, 88), policy=Gate(0.1), epochs=90)
"""
RUN = "run = Dashboard(pace=40).run(trainer)"


class Scene:
    """The notebook in a browser, and the record that its run leaves at ``path``."""

    def __init__(self, lab_page: Any, path: Path) -> None:
        self.lab, self.path = lab_page, path

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

    def pause_step_and_resume(self) -> None:
        lab = self.lab
        lab.button("pause")
        lab.until(lambda: self.status() == "paused", "the pause")
        paused_at = self.step
        lab.page.wait_for_timeout(700)
        assert self.step == paused_at
        lab.button("step")
        lab.until(lambda: self.step == paused_at + 1, "one step")
        lab.page.wait_for_timeout(700)
        assert self.step == paused_at + 1
        lab.button("pause")  # a toggle: pressed again it resumes
        self.until_step(paused_at + 5)

    def record(self, status: str) -> dict[str, Any]:
        """The record of a run whose target rate was changed once, which the rate followed."""
        self.lab.until(self.path.exists, "the record")
        record = json.loads(self.path.read_text())
        assert (record["status"], record["steered"]) == (status, True)
        steps = [step["step"] for step in record["steps"]]
        assert steps == list(range(1, record["training_steps"] + 1)), "the record has gaps"
        assert len(record["epochs"]) >= (len(steps) - 1) // 11, "an epoch is missing"
        (event,) = record["events"]
        assert (event["name"], event["value"]) == ("rate", pytest.approx(0.30))
        assert record["steps"][event["step"]]["rate"] == event["value"]
        return record


def test_steer_pause_step_resume_and_interrupt(open_notebook, tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    scene = Scene(open_notebook(TRAINER, RUN, f"run.save({str(path)!r})"), path)
    scene.lab.run_cells(2)  # the trainer, the run
    scene.until_step(5)
    scene.lab.drag_target(0.30)
    scene.until_step(30)
    scene.lab.photo("steered")
    scene.pause_step_and_resume()
    scene.lab.page.wait_for_timeout(8000)  # without an answer the controls would be gone now
    scene.lab.press("i", "i")
    scene.lab.until(lambda: scene.status() == "interrupted", "the interrupt")
    scene.lab.photo("interrupted")
    scene.lab.run_cell("run.save(")
    scene.record("interrupted")
    assert scene.lab.page.get_by_text("KeyboardInterrupt").count() == 0
