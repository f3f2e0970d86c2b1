"""A dashboard in a real browser: it moves, is steered between cells, and leaves a picture.

Screenshots go to out/browser (or ASTKIT_BROWSER_OUT).
"""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter

TRAINER = """\
import threading
import torch
from astkit import Dashboard, Gate, Trainer, tasks

digits = tasks.task("digits")
data = digits["train"], digits["validation"]
trainer = Trainer(digits["make_model"](), *data, policy=Gate(0.1), epochs=500)
dashboard = Dashboard(pace=20)


def names():
    return {each.name for each in threading.enumerate() if "subshell" not in each.name}


threads = names()
"""
RUN = "run = dashboard.start(trainer)"
OTHER = """\
import time
torch.manual_seed(7)
first = torch.rand(2)
time.sleep(2)
torch.manual_seed(7)
assert torch.equal(first, torch.rand(2))
assert names() == threads
print("one thread")
"""
SAVE = "print('saved', run.save({path!r}))"


class Scene:
    """The notebook in a browser with a run that goes on."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        lab.run_cells(2)  # the trainer, the run
        lab.page.locator(".astkit-board canvas").wait_for(timeout=120_000)
        lab.until(lambda: lab.drawn() >= 5, "step 5")

    @property
    def step(self) -> int:
        found = re.search(r"step (\d+)", self.lab.readout())
        return int(found[1]) if found else -1

    def until_status(self, status: str) -> None:
        self.lab.until(lambda: self.lab.readout().startswith(status), status)

    def until_picture(self) -> None:
        """Wait until a picture has taken the place of the widget."""
        cell = self.lab.page.locator(".jp-CodeCell", has_text="dashboard.start")
        cell.locator(".jp-RenderedImage img").wait_for()
        assert self.lab.page.locator(".astkit-board").count() == 0


def test_the_board_moves_and_is_steered_between_cells(open_notebook, tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    lab = open_notebook(TRAINER, RUN, OTHER, "await run", SAVE.format(path=str(path)))
    scene = Scene(lab)
    seen = lab.watch(5)
    assert len(seen) >= 30
    assert len(set(seen.values())) >= 0.95 * len(seen)  # a hash may repeat
    lab.drag_target(0.30)
    before = scene.step
    lab.page.wait_for_timeout(500)
    state = lab.page.evaluate(EVENTS)
    assert [(name, round(value, 1)) for _, name, value in state["events"]] == [("rate", 0.3)]
    assert state["events"][0][0] <= before + 2
    assert state["drawn"] > state["events"][0][0]
    lab.photo("steered")

    lab.button("pause")
    scene.until_status("paused")
    for _ in range(3):
        at = scene.step
        lab.page.wait_for_timeout(300)
        assert lab.drawn() == scene.step == at
        lab.button("step")
        lab.until(lambda at=at: scene.step == at + 1, "one step")
    lab.button("resume")
    scene.until_status("running")

    lab.run_cell("import time")
    scene.until_status("paused while another cell runs")
    lab.page.get_by_text("one thread").last.wait_for()
    scene.until_status("running")

    lab.run_cell("await run")
    lab.page.wait_for_timeout(1000)
    at = scene.step
    lab.until(lambda: scene.step > at + 10, "training while a cell waits for it")
    lab.press("i", "i")
    lab.page.get_by_text("KeyboardInterrupt").first.wait_for()
    scene.until_picture()
    lab.photo("interrupted")
    lab.run_cell("run.save(")
    lab.until(path.exists, "the record")
    record = json.loads(path.read_text())
    assert (record["status"], record["steered"]) == ("interrupted", True)
    steps = [step["step"] for step in record["steps"]]
    assert steps == list(range(1, record["training_steps"] + 1)), "the record has gaps"


EVENTS = """() => {
  const canvas = [...document.querySelectorAll(".astkit-board canvas")].pop();
  return { drawn: Number(canvas.dataset.step), events: canvas.events };
}"""


def test_a_picture_stays_after_the_end_in_the_saved_file_and_after_a_restart(open_notebook):
    lab = open_notebook(TRAINER, RUN)
    scene = Scene(lab)
    lab.button("stop")
    scene.until_picture()
    lab.page.keyboard.press("Control+s")
    lab.until(lambda: "image/png" in lab.path.read_text(), "the saved notebook")
    saved = lab.path.read_text()
    (output,) = nbformat.reads(saved, as_version=4).cells[1].outputs
    assert set(output.data) == {"image/png", "text/plain"}
    assert "stopped after" in output.metadata["image/png"]["alt"]
    page, _ = HTMLExporter().from_notebook_node(nbformat.reads(saved, as_version=4))
    assert "data:image/png" in page
    assert "widget-view" not in page
    lab.restart()
    lab.page.reload()
    scene.until_picture()
    assert lab.page.get_by_text("model not found").count() == 0
    lab.photo("reloaded")


def test_controls_end_with_the_kernel(open_notebook: Any) -> None:
    lab = open_notebook(TRAINER, RUN)
    Scene(lab)
    lab.restart()
    lab.until(lambda: lab.readout() == "the kernel has ended, and the run", "the end")
    assert lab.page.locator(".astkit-board :is(button, input, select):enabled").count() == 0
