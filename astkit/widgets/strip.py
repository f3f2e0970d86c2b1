"""The control strip: ipywidgets whose callbacks only set values that the loop reads later."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import anywidget
import ipywidgets as widgets

from astkit.names import REGISTRIES, resolve
from astkit.widgets.drive import Run

READOUT_SECONDS = 0.5


class _Ready(anywidget.AnyWidget):
    """Says "ready" as soon as a front end has it, drawn or not: proof that somebody is there."""

    _esm = """
    function tell({ model }) { model.send({ ready: true }); }
    export default { initialize: tell, render: tell };
    """


class Strip:
    """Target rate, controller, gains, pause, step and stop for one run, and where it stands."""

    def __init__(self, run: Run) -> None:
        from IPython.display import display

        self.run, self.gate = run, getattr(run.trainer.step, "gate", None)
        self._started, self._told = time.perf_counter(), 0.0
        self._ready, self._there = _Ready(), asyncio.Event()
        loop = asyncio.get_running_loop()
        self._ready.on_msg(lambda *_: loop.call_soon_threadsafe(self._there.set))
        self._readout = widgets.HTML(readout(run, self._started))
        self._gains = widgets.HBox()
        self._shown_for: object = None
        self.box = widgets.VBox(
            [*self._gate_rows(), widgets.HBox(self._buttons()), self._readout, self._ready]
        )
        self._handle = display(self.box, display_id=True)

    async def answered(self, seconds: float) -> bool:
        """Whether a front end takes the strip up within ``seconds``."""
        try:
            await asyncio.wait_for(self._there.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def close(self, note: str) -> None:
        """Put ``note`` in the strip's place."""
        self._handle.update({"text/plain": note}, raw=True)
        self.box.close()

    def _gate_rows(self) -> list[Any]:
        if self.gate is None:
            return []
        self._target = widgets.FloatSlider(
            self.gate.target_rate,
            min=0.01,
            max=1.0,
            step=0.01,
            description="target rate",
            readout_format=".2f",
            continuous_update=False,
        )
        self._target.observe(lambda change: self._steer("target_rate", change["new"]), "value")
        name = controller_name(self.gate.controller)
        choice = widgets.Dropdown(
            options=controllers() if name else [*controllers(), "your own"],
            value=name or "your own",
            description="controller",
        )
        choice.observe(lambda change: self._switch(change["new"]), "value")
        self._show_gains()
        return [widgets.HBox([self._target, choice]), self._gains]

    def _switch(self, name: str) -> None:
        if name != "your own":
            self._steer("controller", name)

    def _show_gains(self) -> None:
        controller = self.gate.controller  # type: ignore[union-attr]
        self._shown_for = controller
        self._gains.children = tuple(self._gain(name) for name in controller.gains)

    def _gain(self, name: str) -> Any:
        value = getattr(self.gate.controller, name)  # type: ignore[union-attr]
        if not isinstance(value, int | float) or value <= 0:
            return widgets.HTML(f"{name}: {value}")
        middle = math.log10(value)
        slider = widgets.FloatLogSlider(
            value=value,
            min=middle - 2,
            max=middle + 2,
            step=0.05,
            description=name,
            continuous_update=False,
        )
        slider.observe(lambda change: self._steer(name, change["new"]), "value")
        return slider

    def _steer(self, name: str, value: Any) -> None:
        self.run.trainer.steer(name, value)

    def _buttons(self) -> list[Any]:
        pause = widgets.ToggleButton(description="pause", icon="pause")
        pause.observe(
            lambda change: self.run.pause() if change["new"] else self.run.resume(), "value"
        )
        step = widgets.Button(description="step", icon="step-forward")
        step.on_click(lambda _: self._single(pause))
        stop = widgets.Button(description="stop", icon="stop")
        stop.on_click(lambda _: self.run.stop())
        return [pause, step, stop]

    def _single(self, pause: Any) -> None:
        pause.value = True
        self.run.step()

    def follow(self) -> None:
        """Bring the strip up to date, at most twice a second; called between batches."""
        now = time.perf_counter()
        over = self.run.status not in ("running", "paused")
        if now - self._told < READOUT_SECONDS and not over:
            return
        self._told = now
        self._readout.value = readout(self.run, self._started)
        if self.gate is not None and self.gate.controller is not self._shown_for:
            self._show_gains()


def controllers() -> list[str]:
    """Names of all controllers that a strip offers."""
    return sorted(REGISTRIES["controller"])


def controller_name(controller: object) -> str | None:
    """The registered name of a controller's class; ``None`` for a class of somebody's own."""
    names = (name for name in controllers() if type(controller) is resolve("controller", name))
    return next(names, None)


def readout(run: Run, started: float) -> str:
    """Where a run stands, in one line for people; the rate is the mean of the last 20 batches."""
    trainer = run.trainer
    last = trainer.history.steps[-1] if trainer.history.steps else {}
    spent = trainer.position.spent
    left = (time.perf_counter() - started) * (1 - spent) / spent if spent else math.nan
    parts = [
        f"<b>{run.status}</b>",
        f"step {trainer.position.step}",
        f"epoch {trainer.position.epoch}",
        f"{spent:.0%} of the budget",
        f"{left:.0f} s left" if math.isfinite(left) and run.status == "running" else "",
    ]
    if last.get("threshold") is not None:
        parts += [f"threshold {last['threshold']:.4g}"]
        rates = [step["rate"] for step in trainer.history.steps[-20:]]
        parts += [f"rate {sum(rates) / len(rates):.3f}"]
    parts += [f"{last.get('flops', 0):.3g} FLOPs"]
    joules = last.get("joules")
    parts += ["no joules" if joules is None else f"{joules:.4g} J"]
    return " · ".join(part for part in parts if part)
