"""A dashboard in a real browser: in view, moving, steered between cells, and a picture at its end.

Screenshots go to out/browser (or ASTKIT_BROWSER_OUT).
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
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

    def until_kept(self) -> None:
        """Wait until the board is at the place of the picture that the file has."""
        cell = self.lab.page.locator(".jp-CodeCell", has_text="dashboard.start")
        cell.locator(".jp-RenderedImage .astkit-board canvas").wait_for()
        assert cell.locator(".jp-RenderedImage img").is_hidden()

    def until_picture(self) -> None:
        """Wait until the picture is there, and no board."""
        cell = self.lab.page.locator(".jp-CodeCell", has_text="dashboard.start")
        cell.locator(".jp-RenderedImage img").wait_for()
        assert self.lab.page.locator(".astkit-board").count() == 0

    def top(self) -> tuple[float, float]:
        """Where the board begins, and how far below it the next cell does."""
        board = self.lab.page.locator(".astkit-board").last.bounding_box()
        cells = self.lab.page.locator(".jp-Notebook .jp-Cell")
        following = cells.nth(2).bounding_box()
        return board["y"], following["y"] - board["y"]

    def hovered(self) -> bool:
        """Whether the canvas changes below the mouse."""
        canvas = self.lab.page.locator(".astkit-board canvas").last
        before = canvas.evaluate("canvas => canvas.toDataURL()")
        canvas.hover(position={"x": 200, "y": 120})
        self.lab.page.wait_for_timeout(200)
        return bool(before != canvas.evaluate("canvas => canvas.toDataURL()"))


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
    before = scene.top()
    lab.press("i", "i")
    lab.page.get_by_text("KeyboardInterrupt").first.wait_for()
    scene.until_kept()
    assert scene.top()[1] == before[1], "nothing below the board moved"
    assert scene.hovered()
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
    scene.until_kept()
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


FILL = "# a cell\n" * 12
IN_VIEW = """() => {
  const board = [...document.querySelectorAll(".astkit-board")].pop().getBoundingClientRect();
  const [panel] = [...document.querySelectorAll(".jp-WindowedPanel-outer, .jp-Notebook")]
    .filter((each) => each.scrollHeight > each.clientHeight + 1);
  const page = panel.getBoundingClientRect();
  return [board.height, board.top - page.top, page.bottom - board.bottom];
}"""


@pytest.mark.parametrize(("front", "all_cells"), [("lab", 0), ("lab", 1), ("notebook", 0)])
def test_the_board_is_in_view_from_its_first_frame_to_its_end(open_notebook, front, all_cells):
    brief = TRAINER.replace("epochs=500", "epochs=8").replace("pace=20", "pace=15")
    lab = open_notebook(brief, RUN, *[FILL] * 6, front=front)
    lab.page.set_viewport_size({"width": 1280, "height": 800})
    if all_cells:
        lab.page.get_by_role("menuitem", name="Run").first.click()
        lab.page.get_by_text("Run All Cells", exact=True).first.click()
    else:
        lab.run_cells(2)
    lab.page.locator(".astkit-board canvas").wait_for(timeout=120_000)
    lab.until(lambda: lab.drawn() >= 1, "the first batch")
    places = []
    while lab.page.locator(".jp-RenderedImage .astkit-board").count() == 0:
        lab.page.wait_for_timeout(300)
        height, above, below = lab.page.evaluate(IN_VIEW)
        assert height <= 480
        assert above >= 0, lab.photo("above")
        assert below >= 0, lab.photo("below")
        places.append(above)
    assert len(places) > 5
    assert lab.page.evaluate(IN_VIEW)[1:] == [above, below], "it moved when it ended"
    assert Scene.hovered(SimpleNamespace(lab=lab))
    lab.photo("in-view")


def test_sliders_and_buttons_work_by_keys(open_notebook):
    lab = open_notebook(TRAINER, RUN, FILL)
    scene = Scene(lab)
    rate = lab.page.locator(".astkit-board [name=rate]")
    for _ in range(5):
        rate.press("ArrowRight")  # JupyterLab may still move the focus to the cell that ran
    lab.until(lambda: len(lab.page.evaluate(EVENTS)["events"]) > 0, "a changed rate")
    lab.until(lambda: lab.page.evaluate(EVENTS)["events"][-1][2] == 0.15, "five steps")
    assert lab.page.locator(".jp-Notebook .jp-Cell").count() == 3
    lab.page.keyboard.press("Tab")  # the gain
    lab.page.keyboard.press("Tab")  # the controller
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Space")
    scene.until_status("paused")
    at = scene.step
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Space")
    lab.until(lambda: scene.step == at + 1, "one step")


def test_who_scrolls_is_left_where_they_are(open_notebook):
    lab = open_notebook("import time; time.sleep(2)\n" + TRAINER, RUN, *[FILL] * 6)
    lab.page.set_viewport_size({"width": 1280, "height": 800})
    lab.run_cells(2)
    lab.page.evaluate("""() => {
      const seen = new MutationObserver(() => {
        if (!document.querySelector(".astkit-board")) return;
        seen.disconnect();
        window.dispatchEvent(new KeyboardEvent("keydown", { key: "a" }));
        window.called = 0;
        Element.prototype.scrollIntoView = () => { window.called += 1; };
      });
      seen.observe(document.body, { childList: true, subtree: true });
    }""")
    lab.until(lambda: lab.page.locator(".astkit-board canvas").count() == 1, "the board", 120)
    lab.until(lambda: lab.drawn() >= 5, "step 5")
    assert lab.page.evaluate("window.called") == 0


def test_after_a_reload_in_the_run_the_notebook_ends_with_a_picture(open_notebook):
    lab = open_notebook(TRAINER, RUN, "await run")
    Scene(lab)
    lab.page.keyboard.press("Control+s")
    lab.page.wait_for_timeout(1000)
    lab.page.reload()
    lab.page.locator(".astkit-board canvas").wait_for(timeout=60_000)
    at = lab.drawn()
    lab.until(lambda: lab.drawn() > at + 5, "the run goes on")
    lab.button("stop")
    lab.run_cell("await run")
    lab.page.locator(".jp-CodeCell", has_text="await run").locator("img").wait_for()
    assert lab.page.locator(".astkit-board canvas").is_visible()
    lab.photo("ended")


LOOP = """\
import time
from astkit import Board
from astkit.datasets import split
from torch.utils.data import DataLoader

train = split("digits").train
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
criterion = torch.nn.CrossEntropyLoss(reduction="none")
gate, optimizer = Gate(0.25), torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(train, 64, shuffle=True)
with Board(steps=100) as board:
    while board._step < 100:
        x, y = next(iter(loader))
        x = x.float() / 16
        chosen = gate(model, x, y)
        loss = chosen.mean(criterion(model(x[chosen.index]), y[chosen.index]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        board.log(chosen, loss, accuracy=0.5)
        time.sleep(0.07)
print("done")
"""


def test_the_board_of_an_own_loop_moves_while_its_cell_runs(open_notebook):
    lab = open_notebook("import torch\nfrom astkit import Gate", LOOP)
    lab.run_cells(2)
    lab.page.locator(".astkit-board canvas").wait_for(timeout=120_000)
    lab.until(lambda: lab.drawn() >= 3, "step 3")
    assert len(lab.watch(4)) >= 8
    lab.photo("running")
    lab.page.get_by_text("done", exact=True).last.wait_for()
    kept = lab.page.locator(".jp-RenderedImage .astkit-board canvas")
    kept.wait_for()
    assert kept.get_attribute("data-step") == "100"
    lab.page.keyboard.press("Control+s")
    lab.until(lambda: "image/png" in lab.path.read_text(), "the saved notebook")
    outputs = nbformat.reads(lab.path.read_text(), as_version=4).cells[1].outputs
    assert set(outputs[0].data) == {"image/png", "text/plain"}
    lab.photo("ended")
