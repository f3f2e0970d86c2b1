"""Controls of a run: ipywidgets whose callbacks set values that the training loop reads later."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets as widgets
from IPython.display import display

from astkit.gating import Gate
from astkit.names import REGISTRIES, resolve

if TYPE_CHECKING:
    from astkit.widgets.dashboard import Run

READOUT_SECONDS = 0.5
ANSWER_S = 15.0  # seconds to wait for an answer of the front end
_UNHEARD = (
    "no controls: steering needs a front end that reaches a busy kernel, such as JupyterLab 4.4"
    " with ipykernel 7; training runs to its end"
)


class _Ready(anywidget.AnyWidget):
    """Sends "ready" once a front end has loaded it, even if not displayed.

    Twice a second, since what is sent before JupyterLab has opened a subshell is lost.
    """

    _esm = """
    function tell({ model }) {
      const timer = setInterval(() => model.send({ ready: true }), 500);
      setTimeout(() => clearInterval(timer), 15000);
    }
    export default { initialize: tell, render: tell };
    """


class Strip:
    """Controls of one run: target rate, controller, gains, pause, step, stop; and its status.

    Callbacks run in the thread of a subshell while the training cell keeps the main thread. If no
    front end answers within `ANSWER_S`, one sentence replaces the controls.

    Attributes:
        ready: set once a front end has answered.
        closed: whether the controls are gone, since none has.
    """

    def __init__(self, run: Run) -> None:
        policy = run.trainer.policy
        self.run = run
        self.gate = policy if isinstance(policy, Gate) else None
        self.ready, self.closed = threading.Event(), False
        self._started, self._told = time.perf_counter(), 0.0
        self._first = run.trainer.progress
        answer = _heard(_Ready())
        answer.on_msg(lambda *_: self.ready.set())
        self._readout, self._gains = widgets.HTML(self.readout()), widgets.HBox()
        self._shown_for: object = None
        rows = [] if self.gate is None else [self._gate_row(self.gate), self._gains]
        self.box = widgets.VBox([*rows, self._buttons(), self._readout, answer])
        self._handle = display(self.box, display_id=True)

    def _gate_row(self, gate: Gate) -> widgets.HBox:
        least = min(0.01, gate.rate)
        limits = {"min": least, "max": 1.0, "step": least, "readout_format": ".2g"}
        look = {"description": "rate", "continuous_update": False}
        target = widgets.FloatSlider(gate.rate, **limits, **look)
        names = sorted(REGISTRIES["controller"])
        own = (name for name in names if type(gate.controller) is resolve("controller", name))
        choice = widgets.Dropdown(options=names, value=next(own, None), description="controller")
        self._steering("rate", target)
        self._steering("controller", choice)
        self._show_gains(gate)
        return widgets.HBox([target, choice])

    def _show_gains(self, gate: Gate) -> None:
        self._shown_for = controller = gate.controller
        self._gains.children = [self._gain(n, getattr(controller, n)) for n in controller.gains]

    def _gain(self, name: str, value: Any) -> widgets.Widget:
        if not isinstance(value, int | float) or value <= 0:
            return widgets.HTML(f"{name}: {value}")
        limits = {"min": math.log10(value) - 2, "max": math.log10(value) + 2, "step": 0.05}
        slider = widgets.FloatLogSlider(value, description=name, continuous_update=False, **limits)
        self._steering(name, slider)
        return slider

    def _steering(self, name: str, control: widgets.Widget) -> None:
        _heard(control).observe(lambda c: self.run.trainer.steer(name, c["new"]), "value")

    def _buttons(self) -> widgets.HBox:
        def single(_: Any) -> None:
            pause.value = True
            self.run.step()

        pause = _heard(widgets.ToggleButton(description="pause", icon="pause"))
        step = _heard(widgets.Button(description="step", icon="step-forward"))
        stop = _heard(widgets.Button(description="stop", icon="stop"))
        pause.observe(lambda c: self.run.pause() if c["new"] else self.run.resume(), "value")
        step.on_click(single)
        stop.on_click(lambda _: self.run.stop())
        return widgets.HBox([pause, step, stop])

    def follow(self) -> None:
        """Update the display, at most twice per second; called between batches."""
        now = time.perf_counter()
        over = self.run.status not in ("running", "paused")
        if self.closed or (now - self._told < READOUT_SECONDS and not over):
            return
        if not self.ready.is_set() and now - self._started > ANSWER_S:
            self.closed = True
            self._handle.update({"text/plain": _UNHEARD}, raw=True)
            self.box.close()
            return
        self._told = now
        self._readout.value = self.readout()
        if self.gate is not None and self.gate.controller is not self._shown_for:
            self._show_gains(self.gate)

    def readout(self) -> str:
        """The status of the run in one line of HTML; shares are of the last 20 batches."""
        trainer, spent = self.run.trainer, self.run.trainer.progress
        steps = trainer.history.steps[-20:]
        last = steps[-1] if steps else {}
        parts = [f"<b>{self.run.status}</b>", f"step {trainer.step}", f"epoch {trainer.epoch}"]
        parts += [f"{spent:.0%} of the budget"]
        if spent > self._first and self.run.status == "running":
            passed = time.perf_counter() - self._started
            parts += [f"{passed * (1 - spent) / (spent - self._first):.0f} s left"]
        if last.get("threshold") is not None:
            parts += [f"threshold {last['threshold']:.4g}"]
        if rates := [s["measured_rate"] for s in steps if s.get("measured_rate") is not None]:
            trained, seen = (sum(step[name] for step in steps) for name in ("trained", "seen"))
            parts += [f"rate {sum(rates) / len(rates):.3f}, trained on {trained / seen:.3f}"]
        flops, joules = last.get("flops"), last.get("joules")
        parts += ["FLOPs not counted" if flops is None else f"{flops:.3g} FLOPs"]
        parts += ["joules not measured" if joules is None else f"{joules:.4g} J"]
        return " · ".join(parts)


def _heard(control: widgets.Widget) -> Any:
    """``control``, whose messages go to the subshell that the front end chose.

    ipykernel 7.4 sends them to the shell that last wrote to the control, which is busy training.
    """
    control.comm._reply_subshell_for = lambda data, subshell: subshell
    return control
