"""The bar of a comparison: its time left, by the seconds of each method, and its words."""

import itertools
import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tqdm.std
from torch import nn
from torch.utils.data import TensorDataset

import astkit
from astkit.comparison import progress
from astkit.comparison.progress import RunsBar
from astkit.widgets.style import Picture, picture
from tests.comparison.small_tasks import run

SECONDS = {"dense": 1.0, "aim": 2.0, "random": 0.5}  # of a run


def trainer(part: float) -> Any:
    """A run of which a part is done."""
    history, budget = SimpleNamespace(steps=[{"loss": 0.125}]), astkit.Budget(epochs=4)
    return SimpleNamespace(progress=part, epoch=int(4 * part), history=history, budget=budget)


def test_the_time_left_is_right_after_a_fifth_of_the_work(clock, terminal):
    terminal()
    bar, runs = RunsBar(), [method for _ in range(5) for method in SECONDS]
    whole = sum(SECONDS[method] for method in runs)
    wrong: list[float] = []  # the time left, over what it should be
    bar.begin("run")
    for done, method in enumerate(runs):
        with bar.run(method, done // 3, runs[done:], fall_away=False):
            for tenth in range(1, 11):
                clock.now += SECONDS[method] / 10
                bar.show(trainer(tenth / 10))
                left = whole - clock.now
                if 0.2 * whole <= clock.now < 0.99 * whole:
                    assert bar.total is not None
                    wrong.append(abs(bar.total - bar.n - left) / left)
    assert len(wrong) > 100
    assert max(wrong) < 0.1
    bar.close()


def test_a_comparison_shows_forecast_baseline_and_runs(terminal, monkeypatch, capsys):
    screen, time = terminal(), itertools.count()  # no update comes too soon
    monkeypatch.setattr(tqdm.std, "time", lambda: next(time))
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    policies = ["auto", {"name": "gate", "rate": 0.5}]
    options: dict[str, Any] = {"policies": policies, "seeds": 1, "epochs": 1}
    astkit.compare(lambda: nn.Linear(3, 2), data, data, data, **options)
    lines = screen.getvalue().replace("\x1b[A", "").replace("\n", "\r").split("\r")
    words = list(dict.fromkeys(each.split(":")[0].strip() for each in lines if each.strip()))
    baseline = [f"baseline {number} of up to 7" for number in (1, 2, 3, 4, 5)]
    ended = [f"{name}, seed 0" for name in ("dense", "auto", "gate(0.5)", "random at 0.5")]
    runs = [f"run {number} of up to 5" for number in (1, 2, 3)] + ["run 4 of 4"]
    assert words[:9] == ["compare", "forecast", "baseline", *baseline, "run"]
    assert [each for each in words if each in runs] == runs
    assert [each.split(" at 0.")[0] for each in words if ", seed" in each] == [
        each.split(" at 0.")[0] for each in ended
    ]
    assert any(re.fullmatch(r"dense, seed 0: accuracy [\d.]+ %", line.strip()) for line in lines)
    assert words[-1].startswith("4 runs in ")
    out = capsys.readouterr().out
    assert "seed 0" not in out  # what is printed to a file or a pipe
    assert "run 1" not in out


class Shell:
    """A notebook: its outputs, each the list of what was shown in it."""

    kernel = object()

    def __init__(self) -> None:
        self.outputs: list[list[Any]] = []

    def display(self, shown: Any, **_: Any) -> Any:
        frames = [shown]
        self.outputs.append(frames)
        return SimpleNamespace(update=lambda shown, **_: frames.append(shown))

    @property
    def pictures(self) -> list[Any]:
        """What was shown in the only output with a picture."""
        (frames,) = [each for each in self.outputs if isinstance(each[0], Picture)]
        return frames


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    found = Shell()
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: found, version_info=(9, 0))
    )
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=found.display))
    return found


def dots(picture: Picture) -> list[int]:
    """How many runs each row of the picture shows, of those that have any."""
    found = [line for line in picture.axes[0].lines if line.get_marker() == "o"]
    return [int(np.isfinite(np.asarray(line.get_xdata(), float)).sum()) for line in found]


def test_a_notebook_shows_a_dot_as_each_run_ends_in_one_output(shell, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    monkeypatch.setattr(progress, "LONGEST", 0.0)
    report = run(seeds=2, policies=["infobatch"])
    *frames, last = shell.pictures
    assert [dots(each) for each in frames] == [[1], [1, 1], [2, 1], [2, 2]]
    assert frames[0].get_suptitle() == "Runs so far: 1"
    for each in frames:
        names = [tick.get_text() for tick in each.axes[0].get_yticklabels()]
        assert names == ["dense training", "infobatch"]  # from the first on
        assert not [text for text in each.axes[0].texts if "[" in text.get_text()]
    assert last.get_suptitle() == report.plot().get_suptitle()


def test_pictures_take_a_small_part_of_the_time(shell, monkeypatch, clock):
    live, drawn = progress.Live(), list[Any]()

    def draw(names: Any) -> Picture:
        clock.now += 0.5
        drawn.append(clock.now)
        return picture()

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for _ in range(300):
        live.show(SimpleNamespace(draw=draw), ["dense"])
        clock.now += 0.1
    gaps = np.diff(drawn)
    assert min(gaps) >= progress.PAUSE
    assert max(gaps) <= 1.1 * 10 * 0.5  # a tenth of the time
