"""Tuning: what is searched, at whose cost, beside what control; and that nothing is lost."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState

from astkit.datasets import Splits, load
from astkit.gating import LogIntegral
from astkit.runs import arms, tuning
from astkit.runs.tuning import DENSE, GATE, RANDOM, Tuning
from astkit.trainers import Budget, TrainConfig
from astkit.trainers.state import SCHEDULES

DIGITS = load("digits")[0]
TASK = arms.Task(
    Splits(DIGITS.subset(range(64)), DIGITS.subset(range(64, 96)), DIGITS.subset(range(96, 128))),
    "digits_cnn",
    epochs=2,
    batch_size=16,
    gate={"target_rate": 0.3, "score": "loss"},
    config=TrainConfig(lr=1e-2),
    device="cpu",
)


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    tuning.quiet()
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def search(tmp_path):
    return Tuning(TASK, tmp_path / "search.journal")


def silent(text):
    pass


class Fake:
    """In the place of a trainer: a curve of validation accuracies, one per epoch."""

    def __init__(self, curve):
        self.curve = curve
        self.ledger = SimpleNamespace(flops=SimpleNamespace(total=7.0))

    def run(self):
        for accuracy in self.curve:
            if isinstance(accuracy, BaseException):
                raise accuracy
        return SimpleNamespace(epochs=[{"val_accuracy": accuracy} for accuracy in self.curve])


@pytest.fixture
def faked(monkeypatch):
    """Curves by (arm, parameters, seed) in the place of training; the trainers that were made."""

    def fake(curve):
        made = []

        def trainer(self, arm, parameters, seed):
            made.append(Fake(curve(arm, parameters, seed)))
            return made[-1]

        monkeypatch.setattr(Tuning, "trainer", trainer)
        return made

    return fake


def trials(search, arm=GATE):
    return search.study(arm).get_trials()


# --- what a trial is -------------------------------------------------------------------------


def test_the_budget_is_what_dense_training_spends(search):
    dense = arms.run(TASK, "dense", 0)
    assert search.flops == pytest.approx(dense["flops"], rel=1e-9)
    assert Tuning(replace(TASK, epochs=5), search.storage).flops == pytest.approx(
        2.5 * search.flops
    )


def test_parameters_reach_the_trainer(search):
    parameters = {"schedule": "constant", "lr": 0.5, "target_rate": 0.2, "gain": 1.5}
    work = search.trainer(GATE, parameters, 4)
    controller = work.step.gate.controller
    assert isinstance(controller, LogIntegral)
    assert (controller.target_rate, controller.gain) == (0.2, 1.5)
    assert (work.config.schedule, work.config.lr, work.config.seed) == ("constant", 0.5, 4)
    assert work.budget == Budget(flops=search.flops)
    dense = search.trainer(DENSE, {"schedule": "constant"}, 4)
    assert (dense.config.schedule, dense.config.lr) == ("constant", TASK.config.lr)
    assert dense.budget == work.budget
    random = search.trainer(RANDOM, parameters, 4)
    assert random.policy.rate == 0.2


def test_a_search_spends_equal_flops_and_never_reads_the_test_split(tmp_path):
    class Sealed:
        train, validation = TASK.splits.train, TASK.splits.validation

        @property
        def test(self):
            raise AssertionError("the test split is not for tuning")

    search = Tuning(replace(TASK, splits=Sealed()), tmp_path / "search.journal")
    search.run(2, silent)
    found = search.best(2)
    a_batch = search.flops / (2 * 4)
    assert (found["FLOPs"] >= search.flops).all()
    assert (found["FLOPs"] <= search.flops + 1.5 * a_batch).all()
    best = max(trial.value for trial in trials(search) if trial.value is not None)
    assert found["searched"][GATE] == best
    # a trial's value is the accuracy at the end of its own training
    trial = search.study(DENSE).best_trial
    again = search.trainer(DENSE, trial.params, 0).run()
    assert again.epochs[-1]["val_accuracy"] == trial.value


def test_trials_lie_within_the_space(search, faked):
    faked(lambda arm, parameters, seed: [0.5])
    search.run(12, silent)
    found = [trial.params for trial in trials(search)]
    assert all(0.05 <= params["target_rate"] <= 0.6 for params in found)
    assert all(0.1 <= params["gain"] <= 2 for params in found)
    assert {params["schedule"] for params in found} == set(SCHEDULES)
    assert len({params["target_rate"] for params in found}) == 12
    assert all(set(params) == {"schedule", "target_rate", "gain"} for params in found)


def test_dense_is_tuned_in_what_it_shares(search, faked, tmp_path):
    faked(lambda arm, parameters, seed: [0.5])
    search.run(5, silent)
    assert [trial.params for trial in trials(search, DENSE)] == [{"schedule": s} for s in SCHEDULES]
    with_lr = Tuning(TASK, tmp_path / "lr.journal", lr=True)
    with_lr.run(5, silent)
    for arm in (DENSE, GATE):
        rates = [trial.params["lr"] for trial in trials(with_lr, arm)]
        assert len(set(rates)) == 5
        assert all(1e-3 <= rate <= 1e-1 for rate in rates)


# --- failing ---------------------------------------------------------------------------------


def test_a_trial_that_diverges_is_kept_and_counts(search, faked):
    def curve(arm, parameters, seed):
        failing = len(made) == len(SCHEDULES) + 1
        return [0.5, FloatingPointError("the training loss became nan")] if failing else [0.6]

    made, said = faked(curve), []
    search.run(3, said.append)
    states = [trial.state for trial in trials(search)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert trials(search)[1].user_attrs["error"] == "the training loss became nan"
    assert said[-2].endswith("failed, the training loss became nan")
    assert said[-1].endswith("validation accuracy 60.00%")
    assert search.best(2).loc[GATE, ["trials", "fail", "running"]].tolist() == [3, 1, 0]


@pytest.mark.parametrize("arm", [DENSE, GATE])
def test_an_interrupted_trial_is_made_up_for(search, faked, arm):
    first = 1 if arm == DENSE else len(SCHEDULES) + 1

    def curve(arm, parameters, seed):
        return [KeyboardInterrupt()] if len(made) == first else [0.6]

    made = faked(curve)
    with pytest.raises(KeyboardInterrupt):
        search.run(4, silent)
    search.run(4, silent)
    for name, count in ((DENSE, len(SCHEDULES)), (GATE, 4)):
        states = [trial.state for trial in trials(search, name)]
        assert states.count(TrialState.COMPLETE) == count
        assert states.count(TrialState.FAIL) == (name == arm)
    complete = [t for t in trials(search, DENSE) if t.state == TrialState.COMPLETE]
    assert sorted(t.params["schedule"] for t in complete) == sorted(SCHEDULES)


# --- going on --------------------------------------------------------------------------------


def test_a_search_goes_on_where_it_stopped(tmp_path, faked):
    def curve(arm, parameters, seed):
        return [1 - abs(math.log(parameters.get("target_rate", 0.3) / 0.2))]

    faked(curve)
    whole, parts = Tuning(TASK, tmp_path / "whole"), Tuning(TASK, tmp_path / "parts")
    whole.run(25, silent)
    for count in (5, 5, 12, 25):
        parts.run(count, silent)
        assert len(trials(parts)) == count
    assert [t.params for t in trials(parts)] == [t.params for t in trials(whole)]
    other = Tuning(TASK, tmp_path / "other", seed=1)
    other.run(3, silent)
    assert trials(other)[0].params != trials(whole)[0].params
    # it searches: the last ten lie closer to the best rate than the first ten, which are random
    values = [trial.value for trial in trials(whole)]
    assert sum(values[-10:]) > sum(values[:10])


def test_searches_at_the_same_time_share_one_count(tmp_path, faked):
    faked(lambda arm, parameters, seed: [0.5])
    said, count = [], 8
    searches = [Tuning(TASK, tmp_path / "shared.journal") for _ in range(2)]
    assert len({search.flops for search in searches}) == 1
    threads = [threading.Thread(target=each.run, args=(count, said.append)) for each in searches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(line.split(":")[0] for line in said)
    expected = [f"{DENSE}, trial {i}" for i in range(len(SCHEDULES))]
    assert names == sorted(expected + [f"{GATE}, trial {i}" for i in range(count)])
    rates = [trial.params["target_rate"] for trial in trials(searches[0])]
    assert len(set(rates)) == count  # no draw twice, although the seed is the same


CHILD = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from astkit.runs import tuning

class Slow:
    def run(self):
        time.sleep(0.05)
        return SimpleNamespace(epochs=[{"val_accuracy": 0.5}])

tuning.quiet()
tuning.Tuning.flops = 1.0
tuning.Tuning.trainer = lambda *_: Slow()
search = tuning.Tuning(SimpleNamespace(settings=dict), Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
search.run(int(sys.argv[2]))
"""


@pytest.mark.full
def test_two_processes_share_one_count(tmp_path):
    storage, count = tmp_path / "shared.journal", 10
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(storage), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=120)[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert all(said)  # both took part
    names = [line.split(":")[0] for lines in said for line in lines]
    expected = [f"{DENSE}, trial {i}" for i in range(len(SCHEDULES))]
    expected += [f"{GATE}, trial {i}" for i in range(count)]
    assert sorted(names) == sorted(expected)
    backend = optuna.storages.journal.JournalFileBackend(str(storage))
    study = optuna.load_study(study_name=GATE, storage=optuna.storages.JournalStorage(backend))
    rates = [trial.params["target_rate"] for trial in study.trials]
    assert len(set(rates)) == count  # no draw twice, although the seed is the same
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_searches_of_other_settings_are_not_mixed(search, faked):
    faked(lambda arm, parameters, seed: [0.5])
    search.run(2, silent)
    before = search.storage.read_bytes()
    for changes in (
        {"task": replace(TASK, epochs=3)},
        {"task": replace(TASK, config=TrainConfig(lr=1e-3))},
        {"lr": True},
        {"seed": 1},
    ):
        with pytest.raises(ValueError, match="contains a search with other settings of the task"):
            replace(search, **changes).run(3, silent)
    assert search.storage.read_bytes().startswith(before)
    assert len(trials(search)) == 2


def test_a_file_that_is_no_search_is_refused_and_kept(search):
    for content in (
        *("hello\n", json.dumps({"results": []}), "1\n2\n", "[" * 100_000 + "\n"),
        *('{"op_code": "0"}\n', '{"op_code": 0}\n', '{"op_code": 99, "worker_id": "a"}\n'),
        '{"op_code": 0, "worker_id": "a", "study_name": [], "directions": 3}\n',
    ):
        search.storage.write_text(content)
        with pytest.raises(ValueError, match=r"search.journal contains no search: choose another"):
            search.run(1, silent)
        assert search.storage.read_text() == content
    link = search.storage.with_name("link")
    link.symlink_to("/dev/null")
    with pytest.raises(ValueError, match="link is a link and not a regular file"):
        replace(search, storage=link).run(1, silent)


def test_impossible_searches_are_refused(search, tmp_path):
    with pytest.raises(ValueError, match="trials is 0: give 1 or more"):
        search.run(0)
    with pytest.raises(ValueError, match="contains no completed trial of 'batched gate'"):
        search.best()
    callable_score = {**TASK.gate, "score": lambda *_: None}
    unnamed = Tuning(replace(TASK, gate=callable_score), tmp_path / "other")
    with pytest.raises(ValueError, match="give score and controller by name"):
        unnamed.run(1)


# --- the best --------------------------------------------------------------------------------


def test_the_best_is_trained_anew_on_seeds_that_the_search_did_not_see(search, faked):
    asked = []

    def curve(arm, parameters, seed):
        asked.append((arm, parameters, seed))
        if seed == 0:  # the search: the constant schedule wins, and so does the last gate
            return [0.9 + len(asked) / 1000 if parameters["schedule"] == "constant" else 0.2]
        return [{GATE: 0.7, DENSE: 0.6, RANDOM: 0.5}[arm] + 0.01 * seed]

    faked(curve)
    search.run(6, silent)
    assert {seed for _, _, seed in asked} == {0}
    asked.clear()
    found = search.best(3)
    best = search.study(GATE).best_trial
    assert asked == [
        *((GATE, best.params, seed) for seed in (1, 2, 3)),
        *((DENSE, {"schedule": "constant"}, seed) for seed in (1, 2, 3)),
        *((RANDOM, best.params, seed) for seed in (1, 2, 3)),
    ]
    assert found.index.tolist() == [GATE, DENSE, RANDOM]
    assert found["n"].tolist() == [3] * 3
    assert found["validation accuracy"].tolist() == pytest.approx([0.72, 0.62, 0.52])
    for name in ("above dense", "from", "to"):  # the same in each seed, so without any width
        assert found[name].tolist() == pytest.approx([0.1, 0, -0.1])
    assert found["FLOPs"].tolist() == [7.0] * 3
    assert found["searched"][GATE] == best.value
    assert found["trials"][:2].tolist() == [6, len(SCHEDULES)]
    assert found["gain"][GATE] == best.params["gain"]
    assert found["schedule"].tolist()[:2] == ["constant"] * 2
