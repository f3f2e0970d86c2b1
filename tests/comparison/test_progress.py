"""The bar of a comparison: its time left, by the seconds of each method, and its words."""

import itertools
from types import SimpleNamespace
from typing import Any

import torch
import tqdm.std
from torch import nn
from torch.utils.data import TensorDataset

import astkit
from astkit.comparison.progress import RunsBar

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
        with bar.run(method, done // 3, done, runs[done:], fall_away=False):
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
    words = dict.fromkeys(each.split(":")[0].strip() for each in screen.getvalue().split("\r"))
    baseline = [f"baseline run {number} of up to 7" for number in (1, 2, 3, 4, 5)]
    runs = ["run", *(f"run {number} of up to 5" for number in (1, 2, 3)), "run 4 of 4"]
    expected = ["compare", "forecast", "baseline run", *baseline, *runs]
    assert [each for each in words if each][:-1] == expected
    assert next(reversed(words)).startswith("4 runs in ")
    assert "run 1" not in capsys.readouterr().out
