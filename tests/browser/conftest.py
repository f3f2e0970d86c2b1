"""A JupyterLab server and a headless Chromium to drive it, as a user would."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = Path(os.environ.get("ASTKIT_BROWSER_OUT", ROOT / "out" / "browser"))
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
# no GPU, and none of the calls home that a closed network would keep waiting
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
FLAGS += " --disable-background-networking --disable-component-update"
SETTINGS = ["--no-browser", "--allow-root", "--ServerApp.token=browser"]
# no question about news, which would cover the notebook
OVERRIDES = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}
# nor whether extensions have to be built, for which node is started each time a page is opened
PAGE = {"buildAvailable": False, "buildCheck": False}


WATCH = """(seconds) => new Promise((resolve) => {
  const canvas = [...document.querySelectorAll(".astkit-board canvas")].pop();
  const seen = {};
  const end = performance.now() + 1000 * seconds;
  function look() {
    if (!(canvas.dataset.step in seen)) {
      const { x, y, width, height } = canvas.panels.find(({ name }) => name === "loss").box;
      const area = [2 * x, 2 * y, 2 * width, 2 * height].map(Math.round);
      let hash = 0;
      for (const value of canvas.getContext("2d").getImageData(...area).data)
        hash = (31 * hash + value) | 0;
      seen[canvas.dataset.step] = hash;
    }
    if (performance.now() < end) setTimeout(look, 40); else resolve(seen);
  }
  look();
})"""


@pytest.fixture(scope="module")  # an open playwright holds an event loop, so not longer
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("no chromium here: install Debian's chromium, or Google Chrome, to run this")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and root folder of a JupyterLab that knows nothing of this user's settings."""
    home = tmp_path_factory.mktemp("lab")
    (home / "work").mkdir()
    (home / "CONFIG" / "labconfig").mkdir(parents=True)
    for name, content in (("default_setting_overrides", OVERRIDES), ("page_config", PAGE)):
        (home / "CONFIG" / "labconfig" / f"{name}.json").write_text(json.dumps(content))
    own = {f"JUPYTER_{part}_DIR": str(home / part) for part in ("CONFIG", "DATA", "RUNTIME")}
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *SETTINGS],
            cwd=home / "work",
            env={**os.environ, **own, "IPYTHONDIR": str(home / "ipython")},
            stdout=log,
            stderr=log,
        )
        try:
            yield _address(server, home), home / "work"
        finally:
            server.terminate()
            server.wait(30)


def _address(server: subprocess.Popen[bytes], home: Path) -> str:
    """Where the server listens, which it writes down when it does; it looks for a free port."""
    for _ in range(300):
        for found in (home / "RUNTIME").glob(f"jpserver-{server.pid}.json"):
            return f"http://127.0.0.1:{json.loads(found.read_text())['port']}"
        if server.poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError("JupyterLab did not start:\n" + (home / "log").read_text()[-2000:])


class LabPage:
    """One notebook in the browser, with the few things that a user does to it."""

    def __init__(self, page: Any, name: str, path: Path) -> None:
        self.page, self.name, self.path = page, name, path

    def run_cells(self, count: int) -> None:
        """Press Shift+Enter ``count`` times, beginning at the first cell."""
        self.page.locator(".jp-Notebook .jp-Cell").first.click()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+Home")
        for _ in range(count):
            self.page.keyboard.press("Shift+Enter")

    def run_cell(self, text: str) -> None:
        """Press Shift+Enter in the code cell that holds ``text``."""
        cell = self.page.locator(".jp-CodeCell", has_text=text).first
        cell.locator(".jp-InputPrompt").first.click()
        self.press("Shift+Enter")

    def press(self, *keys: str) -> None:
        """Press keys in the notebook's command mode."""
        self.page.keyboard.press("Escape")
        for key in keys:
            self.page.keyboard.press(key)

    def readout(self) -> str:
        """What the dashboard says of the run."""
        return str(self.page.locator(".astkit-board .readout").last.inner_text())

    def drawn(self) -> int:
        """The step of the newest point on the canvas."""
        return int(self.page.locator(".astkit-board canvas").last.get_attribute("data-step") or -1)

    def watch(self, seconds: float) -> dict[str, int]:
        """The steps that were drawn in so many seconds, with a hash of the pixels of the loss."""
        seen: dict[str, int] = self.page.evaluate(WATCH, seconds)
        return seen

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        """Wait for ``condition``, looking ten times a second."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited in vain for {what}: {self.photo('in-vain')}"
            self.page.wait_for_timeout(100)

    def restart(self) -> None:
        """Restart the kernel."""
        self.page.get_by_role("menuitem", name="Kernel").first.click()
        self.page.get_by_text("Restart Kernel…", exact=True).first.click()
        self.page.locator(".jp-Dialog-button", has_text="Restart").click()
        self.page.wait_for_timeout(3000)

    def drag_target(self, rate: float) -> None:
        """Drag the target rate's slider to ``rate`` with the mouse."""
        slider = self.page.locator(".astkit-board [name=rate]")
        box, value = slider.bounding_box(), float(slider.input_value())
        knob = 16  # pixels: its centre stays inside the bar

        def place(at: float) -> float:
            return float(box["x"] + knob / 2 + (box["width"] - knob) * (at - 0.01) / 0.99)

        y = box["y"] + box["height"] / 2
        self.page.mouse.move(place(value), y)
        self.page.mouse.down()
        self.page.mouse.move(place(rate), y, steps=8)
        self.page.mouse.up()

    def button(self, label: str) -> None:
        """Click one of the dashboard's buttons."""
        self.page.locator(".astkit-board button", has_text=label).first.click()

    def photo(self, title: str) -> Path:
        """Save what the browser shows, for people to look at."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTIFACTS / f"{self.name}-{title}.png"
        self.page.screenshot(path=str(path))
        return path


SESSIONS = "() => fetch('/api/sessions').then((answer) => answer.json())"


def _idle(page: Any, name: str) -> bool:
    """Whether the kernel of this notebook has started, and the page has heard of it."""
    kernels = [each["kernel"] for each in page.evaluate(SESSIONS) if each["path"] == name]
    return any(each["execution_state"] == "idle" and each["connections"] for each in kernels)


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    """A window, which keeps the code of JupyterLab from one test to the next."""
    context = browser.new_context(viewport={"width": 1300, "height": 950})
    context.set_default_timeout(60_000)
    yield context
    context.close()


@pytest.fixture
def open_notebook(
    context: Any, lab: tuple[str, Path], request: pytest.FixtureRequest
) -> Iterator[Callable[..., LabPage]]:
    """Open a notebook of these code cells in a fresh kernel."""
    address, root = lab

    def open_cells(*cells: str, front: str = "lab") -> LabPage:
        title = request.node.name.removeprefix("test_").replace("[", "-").strip("]")
        target = root / f"{title}.ipynb"
        code = [new_code_cell(cell) for cell in cells]
        nbformat.write(new_notebook(cells=code, metadata={"kernelspec": KERNEL}), target)
        page = context.new_page()
        place = {"lab": f"lab/workspaces/{title}/tree/{target.name}?reset&"}
        page.goto(f"{address}/{place.get(front, f'notebooks/{target.name}?')}token=browser")
        page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        lab_page = LabPage(page, title, target)
        lab_page.until(lambda: _idle(page, target.name), "a kernel")
        page.wait_for_timeout(500)
        return lab_page

    yield open_cells
    for page in context.pages:
        page.get_by_role("menuitem", name="Kernel").first.click()
        page.get_by_text("Shut Down Kernel", exact=True).first.click()
        page.close()
