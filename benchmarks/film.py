"""The moving picture of README: ``python -m benchmarks.film`` draws docs/static/board.gif.

board_dark.gif is its twin for dark pages; the last frame is docs/static/steering.png, and the
picture at the run's end docs/static/board.png.

It is the run of notebook 02. What the kernel would send is given to the widget's own script in
Chromium, a frame every few batches, and a mouse drags the rate, as a reader would.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from astkit import Budget, Gate, TrainConfig, Trainer, tasks
from astkit.gating import LogIntegral
from astkit.profiling import EnergyMeter
from astkit.widgets.board import LiveBoard
from astkit.widgets.run import Run
from astkit.widgets.screen import Screen
from benchmarks import bench
from tests.browser.conftest import CHROMIUM, FLAGS

STATIC = bench.ROOT / "docs" / "static"
PICTURES = {"light": STATIC / "board.gif", "dark": STATIC / "board_dark.gif"}
ENDING, STEERING = STATIC / "board.png", STATIC / "steering.png"
WIDTH, HEIGHT, ZOOM = 760, 400, 0.95
RATE, LOWER, GAIN, LR, BATCHES = 0.4, 0.15, 0.7, 1.2e-3, 220
FIRST, EVERY, FPS = 69, 3, 7  # the first batch shown, batches a frame, frames a second
COMES, GRASPS, DROPS, LEAVES = 78, 96, 123, 141  # batches: what the mouse does
LAST = 5  # frames that the end stays
COLOURS = 250
PAGE = """<!doctype html><style>{css}
  body {{ margin: 0; padding: 0 6px; overflow: hidden; zoom: {zoom}; {colours} }}
  .bar {{ display: flex; gap: 1.5rem; padding-top: 2px; }}
  .readout, .notes {{ display: none !important; }}
  #arrow {{ height: 20px; left: 0; pointer-events: none; position: fixed; top: 0; width: 14px; }}
</style><div id="board"></div>
<svg id="arrow" viewBox="0 0 14 20" style="transform: translate(-99px)">
  <path d="M1 1v15l4-4 3 7 2.4-1-3-7h5.6z" fill="#111" stroke="#fff" stroke-width="1.2"/></svg>
<script type="module">
import widget from "data:text/javascript;base64,{script}";
const heard = [], own = widget(), sent = {{}};
window.asked = [];
const model = {{
  get: (name) => (name === "sent" ? sent.now : 0),
  on: (name, call) => name === "change:sent" && heard.push(call),
  send: (content) => window.asked.push(content),
}};
const view = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
window.give = (content, buffers) => {{
  const first = !sent.now;
  sent.now = {{ content, buffers: buffers.map(view) }};
  if (!first) return heard.forEach((call) => call());
  own.initialize({{ model }});
  own.render({{ model, el: document.getElementById("board") }});
}};
addEventListener("mousemove", ({{ clientX, clientY }}) => {{
  const [x, y] = [clientX, clientY].map((each) => each / {zoom});
  document.getElementById("arrow").style.transform = `translate(${{x}}px, ${{y}}px)`;
}});
</script>"""
LOOKS = {
    "light": "background: #fff; --jp-layout-color0: #fff; --jp-content-font-color1: #1f2328",
    "dark": "background: #0d1117; --jp-layout-color0: #0d1117; --jp-content-font-color1: #e6edf3;"
    " color-scheme: dark",
}


class Live:
    """The run of notebook 02, and what the kernel would send of it."""

    def __init__(self) -> None:
        digits = tasks.task("digits")
        torch.manual_seed(0)
        self.trainer = Trainer(
            digits["make_model"](),
            digits["train"],
            digits["validation"],
            policy=Gate(RATE, controller=LogIntegral(RATE, gain=GAIN)),
            budget=Budget(steps=BATCHES),
            config=TrainConfig(lr=LR, report_every=1),
            meter=EnergyMeter("auto"),
        )
        self.board = LiveBoard()
        self.trainer.reports.add(self.board)
        self.run = Run(self.trainer)
        self.run.status = "running"
        self.screen = Screen(self.run, self.board, "off", controls=False)

    def steps(self) -> Iterator[int]:
        """Train; the batches after which a frame is drawn."""
        for record in self.trainer.steps():
            if record.phase == "train" and record.step >= FIRST and record.step % EVERY == 0:
                yield record.step
        self.run.status = "finished"

    def message(self) -> tuple[dict[str, Any], list[str]]:
        """The newest message, its buffers as base64."""
        sent = self.screen.message()
        return sent["content"], [base64.b64encode(each).decode() for each in sent["buffers"]]


class Mouse:
    """A mouse that drags the rate, seen as an arrow."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def at(self, rate: float) -> tuple[float, float]:
        """Where the knob is at this rate."""
        box = self.page.locator("[name=rate]").bounding_box()
        knob = 16 * ZOOM
        share = (rate - 0.01) / 0.99
        return box["x"] + knob / 2 + (box["width"] - knob) * share, box["y"] + box["height"] / 2

    def move(self, step: int) -> None:
        """Be where a reader's mouse is at this batch."""
        if step < COMES or step > LEAVES:
            return
        away, (x, y) = (735.0, 20.0), self.at(RATE)  # where nothing answers
        if step < GRASPS:
            part = 1 - ((GRASPS - step) / (GRASPS - COMES)) ** 2
            self.page.mouse.move(*(a + part * (b - a) for a, b in zip(away, (x, y), strict=True)))
        elif step < DROPS:
            if step - EVERY < GRASPS:
                self.page.mouse.move(x, y)
                self.page.mouse.down()
            part = (step - GRASPS) / (DROPS - EVERY - GRASPS)
            self.page.mouse.move(self.at(RATE + part * (LOWER - RATE))[0], y)
        else:
            self.page.mouse.up()
            part = ((step - DROPS) / (LEAVES - DROPS)) ** 2
            ends = zip(self.at(LOWER), away, strict=True)
            self.page.mouse.move(*(a + part * (b - a) for a, b in ends))


def frames(browser: Any, look: str) -> list[Image.Image]:
    """All frames of the film; its last one is the end of the run."""
    room = files("astkit.widgets")
    script = base64.b64encode(room.joinpath("board.js").read_bytes()).decode()
    css = room.joinpath("board.css").read_text()
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1, color_scheme=look
    )
    page.set_content(PAGE.format(css=css, script=script, zoom=ZOOM, colours=LOOKS[look]))
    page.wait_for_function("() => Boolean(window.give)")
    live, mouse, drawn = Live(), Mouse(page), []
    for step in live.steps():
        page.evaluate("([content, buffers]) => give(content, buffers)", live.message())
        page.wait_for_timeout(60)
        mouse.move(step)
        for asked in page.evaluate("window.asked.splice(0)"):
            if "set" in asked:
                live.trainer.steer(asked["set"][0], LOWER)
        page.wait_for_timeout(60)
        drawn.append(Image.open(BytesIO(page.screenshot())).convert("RGB"))
    page.close()
    if look == "light":
        ENDING.write_bytes(live.board.picture(live.screen.caption()).png(110))
    return [*drawn, *[drawn[-1]] * LAST]


def save(film: list[Image.Image], path: Path) -> None:
    """Write a film with one palette of all its frames."""
    some = np.concatenate([np.asarray(frame) for frame in film[:: len(film) // 6]])
    palette = Image.fromarray(some).quantize(COLOURS, kmeans=3)
    few = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    _exact(few, film[0].getpixel((1, HEIGHT - 1)))
    pixels = [np.asarray(frame) for frame in few]
    for before, frame, now in zip(pixels, few[1:], pixels[1:], strict=False):
        frame.paste(Image.fromarray(np.where(now == before, COLOURS, now).astype(np.uint8)))
    times: dict[str, Any] = {"duration": 1000 // FPS, "loop": 0, "optimize": False, "disposal": 1}
    few[0].save(path, save_all=True, append_images=few[1:], transparency=COLOURS, **times)
    seconds = len(film) / FPS
    print(json.dumps({"file": path.name, "s": seconds, "kB": path.stat().st_size // 1000}))


def _exact(frames: list[Image.Image], paper: Any) -> None:
    """Give the colour of the page, which a palette may have rounded, to its pixels again."""
    place = 3 * frames[0].getpixel((1, HEIGHT - 1))
    for frame in frames:
        values = frame.getpalette()
        values[place : place + 3] = paper
        frame.putpalette(values)


def main() -> None:
    """Draw both films, and the pictures of docs/steering.md."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        for look, path in PICTURES.items():
            film = frames(browser, look)
            save(film, path)
            if look == "light":
                film[-1].quantize(256, dither=Image.Dither.NONE).save(STEERING, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
