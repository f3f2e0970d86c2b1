"""What the live board costs the process that trains: `python -m benchmarks.board`.

A kernel trains on the digits, `STEPS` batches of `BATCH` at a time, without a board and with one
whose messages a client reads, by turns; then a script does so with a board that shows nothing. A
ratio of CPU seconds is taken within a round. Writes board.json, from which docs/measured.md has its
table.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import pandas as pd

from astkit.files import read_json, write_json
from astkit.profiling import bootstrap_interval
from astkit.stamp import describe, stamp
from benchmarks import bench

RESULTS = bench.HERE / "board.json"
ROUNDS, STEPS, BATCH = 21, 200, 512
BOARDS = {
    "shown": (True, "a client takes its messages", 1.06),
    "off": (False, "`live=False`", 1.02),
}
"""Whether a client takes the messages, in words, and the aim for the ratio of CPU seconds."""

SETUP = f"""
import asyncio, time
from astkit import Dashboard, Gate, Loader, Trainer, rng
from astkit.datasets import load
from astkit.models import DigitsCNN
from astkit.widgets import screen

digits = load("digits")[0]
made = screen.Screen.__init__
def heard(self, *args, **options):
    made(self, *args, **options)
    self.take({{"ready": True}})  # as a page does
screen.Screen.__init__ = heard
sent = []
message = screen.Screen.message
def timed(self):
    start = time.process_time()
    made = message(self)
    sent.append(time.process_time() - start)
    return made
screen.Screen.message = timed

def trainer():
    with rng.isolated("cpu", 0):
        model = DigitsCNN()
    return Trainer(model, Loader(digits, {BATCH}, resident=True), policy=Gate(0.25), epochs=10_000)

async def plain(work):
    for record in work.steps():
        await asyncio.sleep(0)
        if work.step == {STEPS}:
            return

async def shown(work):
    dashboard = Dashboard(live=LIVE)
    run = dashboard.start(work) if LIVE else asyncio.sleep(0)
    if not LIVE:
        dashboard._open(work, controls=False)
        await plain(work)
        return
    run.trainer.reports.add(End(run))
    await run

class End:
    def __init__(self, run):
        self.run = run
    def log(self, step, **metrics):
        if step >= {STEPS}:
            self.run.stop()
    def close(self):
        pass

async def leave(self):
    pass  # the picture at the end is no part of a step
screen.Screen.leave = leave
async def seconds(way):
    work = trainer()
    begun, start = time.perf_counter(), time.process_time()
    await way(work)
    passed = time.process_time() - start
    return passed / work.step, work.step / (time.perf_counter() - begun)
"""
ROUND = """
for way in (plain, shown):
    took, rate = await seconds(way)
    print(way.__name__, took, rate)
print("messages", len(sent), sum(sent))
"""


def in_kernel(live: bool, rounds: int) -> dict[str, Any]:
    """Ratios of CPU seconds a batch, batches a second, and CPU seconds of a message."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    told: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            told.append(content["text"])
        elif message["msg_type"] == "error":
            sys.exit("\n".join(content["traceback"]))

    found: dict[str, Any] = {"ratios": [], "rate": [], "message": 0.0}
    try:
        setup = f"LIVE = {live}\n" + SETUP
        client.execute_interactive(setup, output_hook=hear, timeout=300)
        for turn in range(rounds + 1):
            told.clear()
            client.execute_interactive(ROUND, output_hook=hear, timeout=600)
            words = [line.split() for line in "".join(told).splitlines()]
            took = {name: [float(each) for each in rest] for name, *rest in words}
            if turn:  # the first is warm-up
                found["ratios"].append(took["shown"][0] / took["plain"][0])
                found["rate"].append(took["plain"][1])
            count, total = took["messages"]
            found["message"] = total / count if count else 0.0
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return found


def board_costs() -> str:
    """The committed result, as Markdown."""
    content = read_json(RESULTS)
    rows = {}
    for name, (_, words, aim) in BOARDS.items():
        found = content[name]
        low, high = bootstrap_interval(found["ratios"])
        rows[words] = {
            "CPU seconds": f"{statistics.median(found['ratios']):.3f} [{low:.3f}, {high:.3f}]",
            "aim": f"{aim}",
            "batches a second": f"{statistics.median(found['rate']):.0f}",
            "a message": f"{1000 * found['message']:.2f} ms" if found["message"] else "–",
        }
    table = bench.markdown(pd.DataFrame(rows).T.rename_axis("board"))
    return f"{table}\n\n{describe(content['stamp'])}"


def main() -> None:
    """Measure and write."""
    asked, environment = bench.options(__doc__, RESULTS, rounds=ROUNDS), stamp()
    found = {name: in_kernel(live, asked.rounds) for name, (live, *_) in BOARDS.items()}
    write_json(asked.out, {"stamp": environment, **found})
    print(board_costs())


if __name__ == "__main__":
    main()
