"""Controls of a run: ipywidgets whose callbacks set values that the loop reads later."""

from __future__ import annotations

import asyncio
import html
import math
import time
from typing import Any

import anywidget
import ipywidgets as widgets

from astkit.names import REGISTRIES, resolve
from astkit.widgets.drive import Run

READOUT_SECONDS = 0.5
_OWN = "your own"


class _Ready(anywidget.AnyWidget):
    """Sends "ready" as soon as a front end has loaded it, even if not displayed."""

    _esm = """
    function tell({ model }) { model.send({ ready: true }); }
    export default { initialize: tell, render: tell };
    """


class Strip:
    """Controls of one run: target rate, controller, gains, pause, step, stop; and its status."""

    def __init__(self, run: Run) -> None:
        from IPython.display import display

        gate = getattr(run.trainer.step, "gate", None)
        self.run = run
        self.gate: Any = gate if hasattr(gate, "controller") else None
        self._started, self._told = time.perf_counter(), 0.0
        self._first = run.trainer.position.spent
        self._ready, self._there = _Ready(), asyncio.Event()
        loop = asyncio.get_running_loop()
        self._ready.on_msg(lambda *_: loop.call_soon_threadsafe(self._there.set))
        self._readout = widgets.HTML(readout(run, self._started, self._first))
        self._gains = widgets.HBox()
        self._shown_for: object = None
        rows = [] if self.gate is None else [self._gate_row(), self._gains]
        self.box = widgets.VBox([*rows, self._buttons(), self._readout, self._ready])
        self._handle = display(self.box, display_id=True)

    async def answered(self, seconds: float) -> bool:
        """Whether a front end shows the controls within ``seconds``."""
        try:
            await asyncio.wait_for(self._there.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def close(self, note: str) -> None:
        """Replace the controls by ``note``."""
        self._handle.update({"text/plain": note}, raw=True)
        self.box.close()

    def _gate_row(self) -> Any:
        limits = {"min": 0.01, "max": 1.0, "step": 0.01, "readout_format": ".2f"}
        self._target = widgets.FloatSlider(
            self.gate.target_rate,
            description="target rate",
            continuous_update=False,
            **limits,
        )
        self._target.observe(lambda change: self._steer("target_rate", change["new"]), "value")
        name = controller_name(self.gate.controller)
        names = sorted(REGISTRIES["controller"]) + [_OWN] * (name == _OWN)
        choice = widgets.Dropdown(options=names, value=name, description="controller")
        choice.observe(lambda change: self._steer("controller", change["new"]), "value")
        self._show_gains()
        return widgets.HBox([self._target, choice])

    def _show_gains(self) -> None:
        self._shown_for = controller = self.gate.controller
        self._gains.children = tuple(self._gain(name) for name in controller.gains)

    def _gain(self, name: str) -> Any:
        value = getattr(self._shown_for, name)
        if not isinstance(value, int | float) or value <= 0:
            return widgets.HTML(f"{name}: {value}")
        middle = math.log10(value)
        limits = {"min": middle - 2, "max": middle + 2, "step": 0.05}
        slider = widgets.FloatLogSlider(value, description=name, continuous_update=False, **limits)
        slider.observe(lambda change: self._steer(name, change["new"]), "value")
        return slider

    def _steer(self, name: str, value: Any) -> None:
        if value != _OWN:
            self.run.trainer.steer(name, value)

    def _buttons(self) -> Any:
        pause = widgets.ToggleButton(description="pause", icon="pause")
        step = widgets.Button(description="step", icon="step-forward")
        stop = widgets.Button(description="stop", icon="stop")
        pause.observe(lambda c: self.run.pause() if c["new"] else self.run.resume(), "value")
        step.on_click(lambda _: self._single(pause))
        stop.on_click(lambda _: self.run.stop())
        return widgets.HBox([pause, step, stop])

    def _single(self, pause: Any) -> None:
        pause.value = True
        self.run.step()

    def follow(self) -> None:
        """Update the display, at most twice per second; called between batches."""
        now = time.perf_counter()
        over = self.run.status not in ("running", "paused")
        if now - self._told < READOUT_SECONDS and not over:
            return
        self._told = now
        self._readout.value = readout(self.run, self._started, self._first)
        if self.gate is not None and self.gate.controller is not self._shown_for:
            self._show_gains()


def controller_name(controller: object) -> str:
    """The registered name of a controller's class; "your own" if not registered."""
    names = REGISTRIES["controller"]
    return next((n for n in names if type(controller) is resolve("controller", n)), _OWN)


def readout(run: Run, started: float, first: float = 0.0) -> str:
    """The status of a run in one line of HTML; the rate is the mean of the last 20 batches.

    The run had spent ``first`` of its budget at the time ``started``, from which its pace follows.
    """
    trainer = run.trainer
    steps, spent = trainer.history.steps[-20:], trainer.position.spent
    last = steps[-1] if steps else {}
    parts = [
        f"<b>{run.status}</b>",
        f"step {trainer.position.step}",
        f"epoch {trainer.position.epoch}",
        f"{spent:.0%} of the budget",
    ]
    if spent > first and run.status == "running":
        left = (time.perf_counter() - started) * (1 - spent) / (spent - first)
        parts += [f"{left:.0f} s left"]
    if not trainer.selecting:
        parts += ["dense step (selection is off or being compared)"]
    if last.get("threshold") is not None:
        parts += [f"threshold {last['threshold']:.4g}"]
    if rates := [step["rate"] for step in steps if step.get("rate") is not None]:
        parts += [f"rate {sum(rates) / len(rates):.3f}"]
    flops, joules = last.get("flops"), last.get("joules")
    parts += ["FLOPs not counted" if flops is None else f"{flops:.3g} FLOPs"]
    parts += ["joules not measured" if joules is None else f"{joules:.4g} J"]
    if run.error is not None:
        parts += [html.escape(f"{type(run.error).__name__}: {run.error}")]
    return " · ".join(parts)
