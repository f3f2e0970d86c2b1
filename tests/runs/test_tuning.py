"""Tuning: what is searched, at whose cost, beside what control; and that nothing is lost."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState
from torch.utils.data import TensorDataset

from astkit.gating import LogIntegral
from astkit.runs.comparison_task import Task
from astkit.runs.tuning import DENSE, GATE, RANDOM, Tuning
from astkit.trainers import Budget, TrainConfig
from astkit.trainers.state import SCHEDULES
from tests.runs import small_tasks

TASK = Task(
    small_tasks.make_model,
    small_tasks.TRAIN,
    small_tasks.VALIDATION,
    small_tasks.TEST,
    config=TrainConfig(lr=1e-2),
    batch_size=16,
    device="cpu",
)


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def search(tmp_path):
    return Tuning(TASK, 2, tmp_path / "search.journal")


class Fake:
    """In the place of a trainer: its validation accuracy, or its error."""

    def __init__(self, accuracy):
        self.accuracy = accuracy
        self.ledger = SimpleNamespace(flops=SimpleNamespace(total=7.0))

    def run(self):
        if isinstance(self.accuracy, BaseException):
            raise self.accuracy

    def evaluate(self, data):
        return {"accuracy": self.accuracy}


@pytest.fixture
def faked(monkeypatch):
    """Accuracies by (arm, parameters, seed) in the place of training; the trainers made."""

    def fake(accuracy):
        made = []

        def trainer(self, arm, parameters, seed):
            made.append(Fake(accuracy(arm, parameters, seed)))
            return made[-1]

        monkeypatch.setattr(Tuning, "trainer", trainer)
        return made

    return fake


def trials(search, arm=GATE, *states):
    return search.study(arm).get_trials(states=states or None)


# --- what a trial is -------------------------------------------------------------------------


def test_the_budget_is_what_dense_training_spends(search):
    dense = TASK.trainer(None, 0, Budget(epochs=2))
    dense.run()
    assert search.flops == pytest.approx(dense.ledger.flops.total, rel=1e-9)
    assert replace(search, epochs=5).flops == pytest.approx(2.5 * search.flops)


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
    assert search.trainer(RANDOM, parameters, 4).policy.rate == 0.2


def test_a_search_spends_equal_flops_and_never_reads_the_test_data(tmp_path):
    class Sealed(TensorDataset):
        def __getitem__(self, row):
            raise AssertionError("the test data are not for tuning")

    sealed = Sealed(*small_tasks.TEST.tensors)
    search = Tuning(replace(TASK, test=sealed), 2, tmp_path / "search.journal")
    search.run(2)
    found = search.best(2)
    a_batch = search.flops / (2 * 4)
    assert (found["FLOPs"] >= search.flops).all()
    assert (found["FLOPs"] <= search.flops + 1.5 * a_batch).all()
    # a trial's value is the accuracy at the end of its own training
    trial = search.study(DENSE).best_trial
    again = search.trainer(DENSE, trial.params, 0)
    again.run()
    assert again.evaluate(TASK.held("validation"))["accuracy"] == trial.value


def test_trials_lie_within_the_space(search, faked, tmp_path):
    faked(lambda arm, parameters, seed: 0.5)
    search.run(12)
    found = [trial.params for trial in trials(search)]
    assert all(0.05 <= params["target_rate"] <= 0.6 for params in found)
    assert all(0.1 <= params["gain"] <= 2 for params in found)
    assert {params["schedule"] for params in found} == set(SCHEDULES)
    assert len({params["target_rate"] for params in found}) == 12
    dense = [trial.params for trial in trials(search, DENSE)]
    assert sorted(params["schedule"] for params in dense) == sorted(SCHEDULES)
    with_lr = Tuning(TASK, 2, tmp_path / "lr.journal", lr=True)
    with_lr.run(5)
    for arm in (DENSE, GATE):
        rates = [trial.params["lr"] for trial in trials(with_lr, arm)]
        assert len(set(rates)) == 5
        assert all(1e-3 <= rate <= 1e-1 for rate in rates)


# --- failing and resuming --------------------------------------------------------------------


def test_a_trial_that_diverges_is_kept_and_replaced(search, faked, capsys):
    def accuracy(arm, parameters, seed):
        diverged = len(made) == len(SCHEDULES) + 1
        return FloatingPointError("the training loss became nan") if diverged else 0.6

    made = faked(accuracy)
    search.run(3)
    said = capsys.readouterr().out.splitlines()
    assert said[-2].endswith(": failed")
    assert said[-1].endswith("validation accuracy 60.00%")
    search.run(3)
    states = [trial.state for trial in trials(search)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, *[TrialState.COMPLETE] * 2]


@pytest.mark.parametrize("arm", [DENSE, GATE])
def test_an_interrupted_trial_is_made_up_for(search, faked, arm):
    first = 1 if arm == DENSE else len(SCHEDULES) + 1
    made = faked(lambda *_: KeyboardInterrupt() if len(made) == first else 0.6)
    with pytest.raises(KeyboardInterrupt):
        search.run(4)
    search.run(4)
    for name, count in ((DENSE, len(SCHEDULES)), (GATE, 4)):
        assert len(trials(search, name, TrialState.COMPLETE)) == count
    complete = trials(search, DENSE, TrialState.COMPLETE)
    assert sorted(t.params["schedule"] for t in complete) == sorted(SCHEDULES)


def test_a_search_continues_and_finds_what_is_best(tmp_path, faked):
    faked(lambda arm, parameters, seed: 1 - abs(math.log(parameters.get("target_rate", 0.3) / 0.2)))
    search, other = (Tuning(TASK, 2, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    for count in (5, 5, 25):
        search.run(count)
        assert len(trials(search)) == count
    found = trials(search)
    assert len({trial.params["target_rate"] for trial in found}) == 25  # no draw twice
    # the last ten lie closer to the best rate than the first ten, which are random
    values = [trial.value for trial in found]
    assert sum(values[-10:]) > sum(values[:10])
    other.run(3)
    assert trials(other)[0].params != found[0].params


CHILD = """
import sys
from pathlib import Path
from types import SimpleNamespace
from astkit.runs import tuning

class Slow:
    def run(self):
        import time
        time.sleep(0.05)

    def evaluate(self, data):
        return {"accuracy": 0.5}

tuning.Tuning.flops = 1.0
tuning.Tuning.trainer = lambda *_: Slow()
task = SimpleNamespace(settings=lambda *_: {}, held=lambda part: None)
search = tuning.Tuning(task, 2, Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
search.run(10)
"""


@pytest.mark.full
def test_processes_share_one_count(tmp_path):
    command = [sys.executable, "-c", CHILD, str(tmp_path / "shared.journal")]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    said = []
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        said.append(child.communicate(timeout=120)[0].splitlines())
        assert child.returncode == 0
    made = [sum(GATE in line for line in lines) for lines in said]
    assert min(made) > 0  # both took part
    assert 10 <= sum(made) <= 11


def test_searches_of_other_settings_are_not_mixed(search, faked):
    faked(lambda arm, parameters, seed: 0.5)
    search.run(2)
    for changes in (
        {"epochs": 3},
        {"task": replace(TASK, config=TrainConfig(lr=1e-3))},
        {"lr": True},
        {"seed": 1},
    ):
        with pytest.raises(ValueError, match="contains a search with other epochs"):
            replace(search, **changes).run(3)
    assert len(trials(search)) == 2


def test_what_cannot_be_searched_is_refused_and_kept(search):
    with pytest.raises(ValueError, match="trials is 0: give 1 or more"):
        search.run(0)
    with pytest.raises(ValueError, match="No trials are completed"):
        search.best()
    for content in ("hello\n", '{"results": []}', '{"op_code": 0}\n', '{"op_code": "0"}\n'):
        search.storage.write_text(content)
        with pytest.raises(ValueError, match=r"search.journal contains no search .*: choose"):
            search.run(1)
        assert search.storage.read_text() == content
    link = search.storage.with_name("link")
    link.symlink_to("/dev/null")
    with pytest.raises(ValueError, match="link is a link and not a regular file"):
        replace(search, storage=link).run(1)


# --- the best --------------------------------------------------------------------------------


def test_the_best_is_trained_anew_on_seeds_that_the_search_did_not_see(search, faked):
    asked = []

    def accuracy(arm, parameters, seed):
        asked.append((arm, parameters, seed))
        if seed == 0:  # the search: the constant schedule wins, and so does the last gate
            return 0.5 + len(asked) / 1000 if parameters["schedule"] == "constant" else 0.2
        return {GATE: 0.7, DENSE: 0.6, RANDOM: 0.5}[arm] + 0.01 * seed

    faked(accuracy)
    search.run(6)
    assert {seed for _, _, seed in asked} == {0}
    asked.clear()
    found = search.best(3)
    best = search.study(GATE).best_trial
    assert asked == [
        *((DENSE, {"schedule": "constant"}, seed) for seed in (1, 2, 3)),
        *((GATE, best.params, seed) for seed in (1, 2, 3)),
        *((RANDOM, best.params, seed) for seed in (1, 2, 3)),
    ]
    assert found.index.tolist() == [DENSE, GATE, RANDOM]
    assert found["n"].tolist() == [3] * 3
    assert found["validation accuracy"].tolist() == pytest.approx([0.62, 0.72, 0.52])
    assert found["above dense"][GATE] == "+10.00% [+10.00%, +10.00%], n = 3"
    assert found["above dense"][RANDOM].startswith("-10.00% ")
    assert found["FLOPs"].tolist() == [7.0] * 3
    assert found["searched"][GATE] == best.value
    assert found["gain"][GATE] == best.params["gain"]
