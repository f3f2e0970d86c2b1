"""The baseline is looked at before a verdict: learning rate and length of dense training."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import TensorDataset

import astkit
from astkit import Budget, TrainConfig
from astkit.aim.policy import Aim
from astkit.comparison import baseline, runs, training
from astkit.comparison.baseline import Trial
from tests import build
from tests.aim.conftest import fewer_trees  # noqa: F401 (fixture)
from tests.comparison.small_tasks import run


def digits() -> list[TensorDataset]:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    inputs, labels = torch.tensor(x / 16).float()[order], torch.tensor(y)[order]
    ends = ((0, 1200), (1200, 1500), (1500, 1797))
    return [TensorDataset(inputs[a:b], labels[a:b]) for a, b in ends]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def test_an_untuned_and_short_baseline_is_told_before_any_verdict(capsys):
    report = astkit.compare(perceptron, *digits(), seeds=[0], config=TrainConfig(lr=1e-3))
    forecast, rate, length = report.before
    assert forecast.startswith("forecast: train on the old rows: they are like the target")
    assert rate.startswith("dense training is better at lr 0.003 (accuracy ")
    assert " points higher): this comparison is about an untuned baseline" in rate
    assert rate.endswith("an untuned baseline; pass config=TrainConfig(lr=0.003)")
    assert length.startswith("training is short: twice the budget makes dense training better (")
    assert length.endswith("); try budget=Budget(epochs=10)")
    verdict, what_next = report.verdict.splitlines()
    assert verdict.startswith("auto: ")
    tuned = "Next: pass config=TrainConfig(lr=0.003), since dense training is better at lr 0.003 ("
    assert what_next.startswith(tuned)
    out = capsys.readouterr().out
    for text in (repr(report), report._repr_html_(), out):
        assert text.count("untuned baseline") == 1
    assert out.splitlines()[-3:] == ["", verdict, what_next]
    report.baseline.pop(0)
    assert report.next_step == "Next: try budget=Budget(epochs=10), since training is short"
    assert report.settings["lr"] == 1e-3  # nothing was changed


def test_without_a_rate_one_is_chosen_for_all_methods(tmp_path: Path) -> None:
    report = astkit.compare(perceptron, *digits(), seeds=[0], out=tmp_path)
    dense = [entry["value"] for entry in report.entries if entry["policy"] == "dense"]
    assert min(dense) > 0.89
    assert report.settings["lr"] > 5e-3
    assert "untuned" not in report.verdict
    trial = baseline.Baseline(
        0.1, {"aim": 0.2}, ["a"], Trial(0.5, torch.tensor([0.5, torch.nan]), "loss", False)
    )
    trial.save(tmp_path / "kept")  # stopped before the first run of dense training ended
    kept = baseline.Baseline.load(tmp_path / "kept")
    assert kept is not None
    assert repr(kept) == repr(trial)
    again = astkit.compare(perceptron, *digits(), seeds=[0], out=tmp_path)
    assert (again.entries, again.baseline) == (report.entries, report.baseline)


def test_rates_are_tried_beyond_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    factors: list[float] = []

    def tried(plan: Any, method: Any, factor: float, show: Any) -> Trial:
        factors.append(factor)
        return Trial(min(0.9, factor / 300))

    monkeypatch.setattr(baseline, "try_rate", tried)
    run(config=TrainConfig(), check_baseline=True, policies=["auto"], seeds=[0])
    assert factors == pytest.approx([1 / 3, 1, 3, 10, 30, 90, 270])


@pytest.mark.filterwarnings("ignore:choosing by the target would take")
def test_a_method_that_follows_other_validation_data_has_a_rate_of_its_own(monkeypatch, tmp_path):
    """Dense training on another law is best where it hardly learns."""
    rates: dict[str, float] = {}

    def tried(plan: Any, method: Any, factor: float, show: Any) -> Trial:
        assert isinstance(method.new_policy(0), Aim | None)
        return Trial(factor if method.policy is None else abs(factor - 1), None, "loss", False)

    def watched(task: Any, method: Any, *rest: Any, **options: Any) -> Any:
        rates[method.label] = task.config.lr
        return training.train_method(task, method, *rest, **options)

    monkeypatch.setattr(baseline, "try_rate", tried)
    monkeypatch.setattr(runs, "train_method", watched)
    older, newer, test = (build.numbers(n, seed=seed) for seed, n in enumerate((600, 200, 200)))
    older.tensors[1][:420] *= -1
    squared = {"criterion": lambda outputs, targets: (outputs - targets).square().squeeze(1)}
    asked = {"policies": ["aim", "infobatch"], "seeds": [0], "budget": Budget(epochs=9), **squared}
    report = astkit.compare(lambda: nn.Linear(4, 1), older, newer, test, out=tmp_path, **asked)
    assert rates.pop("aim") == pytest.approx(1e-3)
    assert list(rates.values()) == pytest.approx([1e-3 / 3**4] * len(rates))
    assert [note for note in report.notes if note.startswith("aim: learning rate 0.001, its best")]
    rates.clear()
    again = astkit.compare(lambda: nn.Linear(4, 1), older, newer, test, out=tmp_path, **asked)
    assert (again.entries, again.notes) == (report.entries, report.notes)
    assert not rates


@pytest.mark.parametrize("scheduled", ["no", "one", "two"])
def test_an_optimizer_is_tried_by_its_groups_and_scheduler(scheduled: str) -> None:
    rates: list[float] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    def make(model: nn.Module) -> Any:
        optimizer = Watched(model.parameters(), lr=1e-4)
        steps = schedulers.StepLR(optimizer, 1000)
        if scheduled == "two":
            warm = schedulers.ConstantLR(optimizer, 1.0, 1)
            return optimizer, schedulers.SequentialLR(optimizer, [warm, steps], [1])
        return optimizer if scheduled == "no" else (optimizer, steps)

    report = run(
        make_optimizer=make,
        config=TrainConfig(schedule="constant"),
        check_baseline=True,
        policies=["auto"],
        seeds=[0],
        budget=Budget(epochs=6),
    )
    assert sorted(set(rates)) == pytest.approx([1e-4 / 3, 1e-4, 3e-4])
    assert all("multiply the learning rate" in note for note in report.baseline if "rate" in note)


def test_a_gain_has_to_exceed_a_point_and_twice_its_error() -> None:
    few = torch.tensor([1.0] * 30 + [0.0] * 20)
    better = torch.tensor([1.0] * 34 + [0.0] * 16)
    scattered = better[torch.randperm(50, generator=torch.Generator().manual_seed(0))]
    assert Trial(0.68, better).is_better(Trial(0.6, few))
    assert not Trial(0.68, scattered).is_better(Trial(0.6, few))
    assert not Trial(0.605).is_better(Trial(0.6))
    whole = Trial(1.5, None, "loss", False)
    for loss, better_one in ((1.455, True), (1.485, False), (1.6, False), (math.nan, False)):
        assert Trial(loss, None, "loss", False).is_better(whole) == better_one
    assert Trial(1.455, None, "loss", False).beside(whole) == "loss 3.0 % lower"
