"""The moving picture of README: ``python -m benchmarks.film`` draws docs/static/board.gif.

Its last frame is docs/static/steering.png, and the picture at the run's end docs/static/board.png.

A gate is trained on digits, and its rate is lowered half-way. What the kernel would send is given
to the widget's own script in Chromium, frame by frame; the frames become an animated GIF.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.resources import files
from io import BytesIO
from typing import Any

import torch
from PIL import Image

from astkit import Budget, Trainer, models
from astkit.datasets import split
from astkit.profiling import EnergyMeter
from astkit.widgets.board import LiveBoard
from astkit.widgets.run import Run
from astkit.widgets.screen import Screen
from benchmarks import bench
from tests.browser.conftest import CHROMIUM, FLAGS

PICTURE = bench.ROOT / "docs" / "static" / "board.gif"
ENDING = bench.ROOT / "docs" / "static" / "board.png"
STEERING = bench.ROOT / "docs" / "static" / "steering.png"
WIDTH, FRAMES, EVERY, FPS = 780, 48, 7, 6
COLOURS = Image.Quantize.MAXCOVERAGE  # the small squares of a legend keep theirs
ENDING_DPI = 110
CHANGED, RATE, LOWER = 22, 0.4, 0.15
PAGE = """<!doctype html><style>{css} body {{ margin: 8px; background: white }}</style>
<div id="board"></div><script type="module">
import widget from "data:text/javascript;base64,{script}";
const heard = [];
const model = {{ on: (name, call) => name === "msg:custom" && heard.push(call), send: () => {{}} }};
const own = widget();
own.initialize({{ model }});
own.render({{ model, el: document.getElementById("board") }});
const view = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
window.give = (message, buffers) => heard.forEach((call) => call(message, buffers.map(view)));
</script>"""


def messages() -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What the kernel sends, every few batches."""
    torch.manual_seed(0)
    parts = split("digits")
    model = models.build("digits_cnn", parts.train.shape, parts.train.num_classes)
    budget = Budget(steps=FRAMES * EVERY)
    gate = {"name": "gate", "rate": RATE}
    board = LiveBoard()
    board.seconds = 0.0  # every batch
    data = (parts.train, parts.validation)
    trainer = Trainer(
        model, *data, policy=gate, budget=budget, observers=[board], meter=EnergyMeter("auto")
    )
    run = Run(trainer)
    screen = Screen(run, board, "off", controls=False)
    run.status = "running"
    for number, _ in enumerate(step for step in trainer.steps() if step.phase == "train"):
        if number == CHANGED * EVERY:
            trainer.steer("rate", LOWER)
        if number % EVERY == 0:
            content, buffers = screen.message()
            yield content, [base64.b64encode(each).decode() for each in buffers]
    run.status = "finished"
    ENDING.write_bytes(board.picture(screen.caption()).png(ENDING_DPI))


def main() -> None:
    """Draw all frames and write the picture."""
    from playwright.sync_api import sync_playwright

    room = files("astkit.widgets")
    script = base64.b64encode(room.joinpath("board.js").read_bytes()).decode()
    page_text = PAGE.format(css=room.joinpath("board.css").read_text(), script=script)
    frames = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page = browser.new_page(viewport={"width": WIDTH, "height": 720})
        page.set_content(page_text)
        page.wait_for_function("() => Boolean(window.give)")
        for content, buffers in messages():
            page.evaluate("([message, buffers]) => give(message, buffers)", [content, buffers])
            page.wait_for_timeout(50)
            frames.append(Image.open(BytesIO(page.locator("#board").screenshot())).convert("RGB"))
        browser.close()
    frames[-1].quantize(256, COLOURS, dither=Image.Dither.NONE).save(STEERING, optimize=True)
    height = max(frame.height for frame in frames)
    palette = frames[-1].quantize(48, COLOURS)
    drawn = []
    for frame in frames:
        whole = Image.new("RGB", (frame.width, height), "white")
        whole.paste(frame)
        drawn.append(whole.quantize(palette=palette, dither=Image.Dither.NONE))
    drawn[0].save(
        PICTURE, save_all=True, append_images=drawn[1:], duration=1000 // FPS, loop=0, optimize=True
    )
    print(json.dumps({"frames": len(drawn), "kB": PICTURE.stat().st_size // 1000}))


if __name__ == "__main__":
    main()
