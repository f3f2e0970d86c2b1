"""`compare`: fair arms, equal cost, the entries, and a folder that continues."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import signal
import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import astkit
from astkit import Budget, Comparison, Gate, Metric, Policy, Selection, TrainConfig
from astkit.gating import CachedLoss, LogIntegral
from astkit.identity import READS
from astkit.runs import comparison_arm, comparison_plan
from astkit.runs.comparison_task import Task
from astkit.trainers.autotune import SettingsInUse
from astkit.trainers.learner import Learner
from tests.runs import small_tasks
from tests.runs.small_tasks import HELD, ROWS, TRAIN, make_model, run, timeless


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison") / "out"


class Read(TensorDataset):
    """Test data that count how often their rows are read."""

    reads = 0

    def __getitem__(self, row):
        self.reads += 1
        return super().__getitem__(row)


TEST = Read(*small_tasks.TEST.tensors)


@pytest.fixture(scope="module")
def report(folder):
    before = torch.get_rng_state()
    report = run(out=folder, test=TEST)
    assert TEST.reads == HELD * len(report.entries) + 3 * READS  # by the identity
    assert torch.equal(torch.get_rng_state(), before)
    return report


def test_all_arms_of_a_seed_have_dense_flops_and_their_own_control(report):
    labels = list(dict.fromkeys(entry["policy"] for entry in report.entries))
    rates = [f"{entry['rate']:.2f}" for entry in report.entries if entry["seed"] == 0]
    assert labels[0] == "dense"
    assert labels[-2:] == ["cached_loss", "gate(0.25)"]
    assert labels[1:-2] == [f"random at {rate}" for rate in rates[-2:]]
    assert [entry["seed"] for entry in report.entries] == [0] * 5 + [1] * 5
    dense = report.entries[0]["flops"]
    assert report.entries[0]["trained"] == 2 * ROWS
    batch = 16 * dense / (2 * ROWS)
    for entry in report.entries:
        assert dense <= entry["flops"] < dense + 1.4 * batch
        assert (entry["scored"] > 0) == (entry["policy"] == "gate(0.25)")
        assert 0 <= entry["worst_class"] <= entry["value"] <= 1
        assert entry["seconds"] > 0
        assert (entry["joules"] is None) == bool(entry["joules_reason"])


def test_joules_are_a_column_where_they_were_measured(report, monkeypatch):
    measured = [{**entry, "joules": 2.0 + entry["seed"]} for entry in report.entries]
    monkeypatch.setattr(report, "entries", measured)
    assert report.table().loc["dense", "joules"] == 2.5
    monkeypatch.setattr(report, "entries", [{**entry, "joules": None} for entry in measured])
    assert "joules" not in report.table()


def test_the_curve_follows_the_run_to_its_end(report):
    for entry in report.entries:
        flops, seconds, values = zip(*entry["curve"], strict=True)
        assert list(flops) == sorted(set(flops))
        assert list(seconds) == sorted(set(seconds))
        assert (flops[-1], seconds[-1]) == (entry["flops"], entry["seconds"])
        assert min(8, entry["steps"]) <= len(flops) <= comparison_arm.POINTS
        assert {value * HELD == pytest.approx(round(value * HELD)) for value in values} == {True}


def test_visits_count_the_rows_trained_on(report):
    for entry in report.entries:
        found = report.visits(entry["policy"], entry["seed"])
        assert (found["trained"].dtype, found["trained"].shape) == (torch.int32, (8, ROWS))
        assert int(found["trained"].sum()) == entry["trained"]
        seen = found["losses"].isfinite()
        assert (found["trained"].sum(0) > 0).logical_not().logical_or(seen).all()
        if entry["policy"] == "dense":  # every row once in each epoch, of four parts
            assert (found["trained"].view(2, 4, ROWS).sum(1) == 1).all()
        if entry["policy"] == "gate(0.25)":  # scored rows have losses too
            assert seen.sum() > (found["trained"].sum(0) > 0).sum()
    with pytest.raises(ValueError, match=r"no arm 'rho' with seed 0: choose one of"):
        report.visits("rho", 0)


def test_results_are_shown_saved_and_loaded(report, folder, tmp_path):
    table = report.table()
    assert list(table.loc["dense", ["n", "trained"]]) == [2, 2 * ROWS]
    assert table.columns[1] == report.metric == "accuracy"
    assert "cached_loss" in report.verdict
    for text in (repr(report), report.to_markdown(), report.to_html(tmp_path / "a").read_text()):
        assert "gate(0.25)" in text
    path = report.save(tmp_path / "there" / "mine.json")
    for place in (path, folder):
        loaded = Comparison.load(place)
        assert (loaded.entries, loaded.verdict) == (report.entries, report.verdict)
        assert (loaded.settings, loaded.pilot) == (report.settings, report.pilot)
        losses = loaded.visits("cached_loss", 1)["losses"]
        assert torch.equal(losses, report.visits("cached_loss", 1)["losses"])
    other = tmp_path / "other.json"
    other.write_text(path.read_text().replace('"curve"', '"bend"'))
    with pytest.raises(ValueError, match="is no comparison: its entries lack curve"):
        Comparison.load(other)
    with pytest.raises(FileNotFoundError, match="does not exist: give a file that `save` wrote"):
        Comparison.load(tmp_path / "nothing.json")


def test_the_same_call_continues_and_more_may_be_asked(report, folder, monkeypatch):
    trained = []
    original = comparison_plan.run_arm
    monkeypatch.setattr(
        comparison_plan, "run_arm", lambda *a, **k: trained.append(a[1]) or original(*a, **k)
    )
    assert run(out=folder, test=TEST).entries == report.entries
    assert trained == []
    more = run(out=folder, test=TEST, policies=[Gate(0.25)], seeds=[0, 2])
    assert {arm.seed for arm in trained} == {2}
    assert {entry["seed"] for entry in more.entries} == {0, 2}


def test_policy_objects_give_what_their_names_give_and_keep_no_memory(report):
    gate, memory = Gate(0.25), CachedLoss()
    again = run(policies=[memory, gate])
    assert timeless(again.entries) == timeless(report.entries)
    assert memory.losses is None
    assert (gate.seen, memory.begun) == (0, 0)
    folder = again._folder
    assert folder.exists()
    del again
    gc.collect()
    assert not folder.exists()


def test_an_interrupted_comparison_ends_with_the_same_table(report, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison_arm, "PAUSE", 0.0)
    calls, stops = [0], [150, 210, 260]

    class Stopped(nn.Linear):
        def forward(self, x):
            calls[0] += 1
            if stops and calls[0] >= stops[0]:
                stops.pop(0)
                raise KeyboardInterrupt
            return super().forward(x)

    def make():
        model = make_model()
        model[0].__class__ = Stopped
        return model

    interrupted = 0
    while True:
        try:
            found = run(make_model=make, out=tmp_path, seeds=range(2))
            break
        except KeyboardInterrupt:
            interrupted += 1
            assert not (tmp_path / "comparison.json").exists()
    assert interrupted == 3
    assert timeless(found.entries) == timeless(report.entries)
    for entry in report.entries:
        arm = (entry["policy"], entry["seed"])
        for name, value in report.visits(*arm).items():
            assert torch.equal(found.visits(*arm)[name].nan_to_num(-1), value.nan_to_num(-1))
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.full
def test_a_killed_comparison_ends_with_the_same_table(report, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison_arm, "PAUSE", 0.0)
    randomly = random.Random(3)
    torch.set_num_threads(1)  # a forked process cannot use the threads of its parent
    for _ in range(3):
        process = os.fork()
        if process == 0:
            run(out=tmp_path)
            os._exit(0)
        time.sleep(randomly.uniform(0.1, 0.4))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert not (tmp_path / "comparison.json").exists()
    assert timeless(run(out=tmp_path).entries) == timeless(report.entries)


class Diverges(Policy):
    """Weights that make the loss infinite in the second batch."""

    def __init__(self):
        self.batches = 0

    def choose(self, batch):
        self.batches += 1
        weight = torch.full((batch.rows,), 1.0 if self.batches < 2 else 3e38)
        return Selection(torch.arange(batch.rows), weight)


def test_a_policy_that_diverges_is_reported_beside_the_others():
    report = run(policies=["infobatch", Diverges()], seeds=[0])
    failed = [entry for entry in report.entries if entry["policy"] == "Diverges"]
    assert [entry["value"] for entry in failed] == [None]
    assert any(note.startswith("Diverges, seed 0: the ") for note in report.notes)
    with pytest.raises(FloatingPointError, match="lower lr, or set clip_norm"):
        run(config=astkit.TrainConfig(lr=1e30), seeds=[0], policies=["cached_loss"])


class Halves(Policy):
    """All rows in the first epoch, then half of them; diverges there with some seeds."""

    rounds = 1

    def __init__(self, diverging, seed=0):
        self.diverging, self.seed = diverging, seed

    def plan(self, run):
        if run.epoch == 0:
            return None
        kept = torch.arange(len(run.rows) // 2)
        weight = torch.full((len(kept),), 3e38 if self.seed in self.diverging else 1.0)
        return Selection(kept, weight, normaliser=float(len(kept)), candidates=len(run.rows))


def test_the_random_control_has_the_rate_of_the_first_seed_that_did_not_fail(capsys):
    report = run(policies=[Halves([0])], seeds=[0, 1])
    rates = {
        (entry["policy"], entry["seed"]): entry["rate"]
        for entry in report.entries
        if "failed" not in entry
    }
    (label,) = {name for name, _ in rates if name.startswith("random at")}
    assert label == f"random at {rates[report.verdicts[0].policy, 1]:.2f}"
    assert (label, 0) in rates
    assert report.verdicts[0].to_random.n == 1
    assert "arm 6 of 6" in capsys.readouterr().out
    lost = run(policies=[Halves([0, 1])], seeds=[0, 1])
    assert {entry["policy"] for entry in lost.entries if "failed" not in entry} == {"dense"}
    name = lost.verdicts[0].policy
    assert f"{name} failed with all seeds, so that it has no random control" in lost.notes


def squared_error(outputs, targets):
    return (outputs.squeeze(1) - targets).square()


def absolute(outputs, targets):
    return (outputs.squeeze(1) - targets).abs()


def test_what_is_compared_is_the_first_metric_else_accuracy_else_the_loss(report):
    data = {
        part: TensorDataset(x, x.sum(1))
        for part, (x, _) in (
            ("train", TRAIN.tensors),
            ("validation", small_tasks.VALIDATION.tensors),
            ("test", small_tasks.TEST.tensors),
        )
    }
    usual = {
        **data,
        "make_model": lambda: nn.Sequential(nn.Linear(4, 1)),
        "criterion": squared_error,
        "policies": "infobatch",
        "seeds": [0],
    }
    plain = run(**usual)
    assert (plain.metric, plain.higher, plain.entries[0]["worst_class"]) == ("loss", False, None)
    for metrics, higher in (
        (Metric("distance", absolute, higher_is_better=False), False),
        ({"distance": absolute, "other": squared_error}, True),
    ):
        found = run(**usual, metrics=metrics)
        assert (found.metric, found.higher) == ("distance", higher)
        assert found.entries[0]["curve"][-1][2] != plain.entries[0]["curve"][-1][2]
    assert (report.metric, report.higher) == ("accuracy", True)


class Uncounted(nn.Module):
    """A recurrent network, whose operation on the CPU has no formula."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.linalg.solve(torch.eye(4) + 0.01 * x.mean(), x.T).T)


def test_uncountable_flops_give_equal_seconds():
    with pytest.warns(UserWarning, match="cannot be counted"):
        report = run(make_model=Uncounted, seeds=[0], policies=["infobatch"])
    assert any("cannot be counted: arms have equal seconds" in note for note in report.notes)
    dense, *others = report.entries
    assert dense["uncounted"]
    assert all(entry["seconds"] >= dense["seconds"] for entry in others)
    for entry in report.entries:  # of what was counted, the sum would be too low
        assert entry["flops"] is None
        assert {point[0] for point in entry["curve"]} == {None}
    assert report.verdicts[0].flops is None
    assert math.isnan(report.table().loc["dense", "flops"])
    assert "at the same budget" in report.to_markdown() + report._repr_html_()


def test_helper_models_that_cost_more_than_the_budget_are_told():
    report = run(policies=[{"name": "rho", "epochs": 9}], seeds=[0])
    assert any(note.startswith("rho(epochs=9), seed 0 cost ") for note in report.notes)


def test_parallel_arms_give_no_seconds(report, monkeypatch, tmp_path):
    import joblib

    asked = []

    def config(*place, **options):
        asked.append((place, options))
        return nullcontext()  # in this process; the full test has others

    monkeypatch.setattr(joblib, "parallel_config", config)
    found = run(jobs=2, out=tmp_path)
    assert asked[0] == (("loky",), {"n_jobs": 2, "inner_max_num_threads": 1})
    assert {entry["seconds"] for entry in found.entries} == {None}
    assert timeless(found.entries) == timeless(report.entries)
    assert "of its FLOPs" in found.verdict or "equal FLOPs" in found.verdict
    assert "seconds [" not in found.verdict


@pytest.mark.full
def test_processes_give_the_same_entries(report):
    assert timeless(run(jobs=2).entries) == timeless(report.entries)


def test_seeds_are_added_while_they_fit(monkeypatch):
    task = Task(make_model, TRAIN, None, None, None)
    for jobs, expected in ((1, [[0], [1], [2]]), (2, [[0, 1], [2, 3], [4, 5]])):
        plan = comparison_plan.Plan(task, {}, Budget(epochs=1), [], minutes=1.0, jobs=jobs)
        now, groups = [100.0], []
        with monkeypatch.context() as patch:
            patch.setattr(comparison_plan.time, "monotonic", lambda now=now: now[0])
            for group in plan.groups(100.0):
                groups.append(group)
                now[0] += 18.0  # three fit into a minute, a fourth would not
        assert groups == expected
    assert {entry["seed"] for entry in run(minutes=1e-9).entries} == {0}


def test_the_number_of_arms_grows_with_the_seeds_that_are_added(monkeypatch, capsys):
    monkeypatch.setattr(comparison_plan.Plan, "groups", lambda plan, start: iter([[0], [1]]))
    run(minutes=1, seeds=[0])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("arm ")]
    expected = [f"arm {arm} of {5 if arm <= 5 else 10}:" for arm in range(1, 11)]
    assert [line[: line.index(":") + 1] for line in lines] == expected
    task = Task(make_model, TRAIN, None, None, None)
    one, more = (
        comparison_plan.Plan(task, {}, Budget(epochs=1), seeds, minutes)._steps()
        for seeds, minutes in (([0], None), ([*range(5)], 1.0))
    )
    assert one == more


def test_arms_of_other_policies_in_the_folder_are_not_progress(tmp_path, monkeypatch, capsys):
    run(out=tmp_path, policies=["cached_loss"], seeds=[0])
    capsys.readouterr()
    monkeypatch.setattr(comparison_plan.pilot.Pilot, "arm_seconds", lambda *_: 60.0)
    made, turns = [], comparison_plan.Turns
    monkeypatch.setattr(comparison_plan, "Turns", lambda: made.append(turns()) or made[-1])
    for kept, left in ((1, "2:00"), (3, "0:00")):  # dense, then all three
        run(out=tmp_path, policies=[Gate(0.25)], seeds=[0])
        assert (made[-1].kept, made[-1].done) == (kept, 3)
        first = capsys.readouterr().out.splitlines()[0]
        assert first == f"compare: at most 3 arms for each of 1 seeds, about {left}"


def test_values_on_the_training_data_are_said_to_be_such(report):
    found = run(test=DataLoader(TRAIN, 8), seeds=[0], policies=["infobatch"])
    assert found.notes == ["test is the training data: pass samples that are not trained on"]
    assert not any("training data" in note for note in report.notes)


def test_auto_without_class_labels_is_said_to_miss_them(report):
    class Rows(Dataset):
        def __len__(self):
            return ROWS

        def __getitem__(self, row):
            return TRAIN[row]

    found = run(train=Rows(), seeds=[0], policies=["auto"])
    assert len(found.notes) == 1
    assert found.notes[0].startswith("train has no class labels that auto could read, so it ")
    held = run(validation=Rows(), seeds=[0], policies=["auto"])
    assert len(held.notes) == 1
    assert held.notes[0].startswith("validation has no class labels that auto could read, so ")
    assert run(seeds=[0], policies=["auto"]).notes == []
    assert not any("class labels" in note for note in report.notes)


def test_mistakes_are_one_sentence(report, folder, tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(TRAIN)

    model, table = make_model(), torch.zeros(4, 3)
    norm = nn.BatchNorm1d(4).requires_grad_(False)
    for options, sentence in (
        ({"policies": []}, "policies is []: name at least one beside dense"),
        ({"policies": ["dense"]}, "policies is ['dense']: name at least one beside dense"),
        ({"policies": "infobach"}, "unknown policy 'infobach': choose one of"),
        ({"policies": [Gate(0.25), Gate(0.25)]}, "policies holds gate(0.25) twice: give each"),
        ({"policies": [3]}, "policy is 3: pass a policy such as"),
        ({"seeds": []}, "seeds is []: give different whole numbers"),
        ({"seeds": [1, 1]}, "seeds is [1, 1]: give different whole numbers"),
        ({"seeds": [0.5]}, "seeds is [0.5]: give different whole numbers"),
        ({"seeds": 5}, "seeds is 5: pass whole numbers, such as range(5)"),
        ({"budget": 5}, "budget is 5: pass a budget, such as Budget(epochs=5)"),
        (
            {"config": {"lr": 0.1}},
            "config is {'lr': 0.1}: pass a configuration, such as TrainConfig",
        ),
        (
            {"criterion": "mse"},
            "criterion is 'mse': pass a function, such as nn.MSELoss(reduction='none')",
        ),
        (
            {"make_optimizer": torch.optim.SGD(model.parameters())},
            "make_optimizer is SGD ( Parameter Group 0 dampening: 0 differentiable: False f: pass",
        ),
        ({"jobs": "2"}, "jobs is '2': pass a whole number"),
        ({"minutes": "5"}, "minutes is '5': pass a number"),
        ({"minutes": 0}, "minutes is 0: give a number above 0"),
        ({"jobs": 0}, "jobs is 0: give the number of processes"),
        ({"budget": Budget(seconds=3)}, "budget is in seconds, which depend on the load"),
        ({"make_model": model}, "make_model is a Sequential: pass a function without arguments"),
        ({"make_model": None}, "make_model is a NoneType: pass a function without arguments"),
        ({"make_model": lambda: 3}, "make_model returns a int: return a torch module"),
        ({"make_model": lambda: model}, "make_model returns the same model twice: build a new"),
        (
            {"make_model": lambda: nn.Sequential(model, nn.Linear(3, 3))},
            "make_model returns models that share 0.0.weight, so that one arm would train",
        ),
        (
            {"make_model": lambda: nn.Embedding.from_pretrained(table, freeze=False)},
            "make_model returns models that share weight, so that one arm would train",
        ),
        (
            {"make_model": lambda: nn.Sequential(norm, nn.Linear(4, 3))},  # frozen, but it counts
            "make_model returns models that share 0.running_mean, so that one arm would",
        ),
        ({"make_model": _counting()}, "make_model returns different weights for the same seed"),
        ({"test": None}, "test is missing: pass data for it, or dataset='digits'"),
        ({"dataset": "digits"}, "dataset is 'digits', but train is given too: pass only one"),
        ({"metrics": [squared_error]}, "metrics holds a function: give functions (outputs,"),
        ({"train": DataLoader(Stream(), 16)}, "train is a DataLoader that loads all rows in its"),
        ({"criterion": nn.CrossEntropyLoss()}, "the criterion returned shape [] for"),
        (
            {"out": folder, "test": TEST, "batch_size": 8},
            f"out is {folder}, whose results were made with",
        ),
        (
            {"out": folder, "test": TEST, "budget": Budget(epochs=3)},
            f"out is {folder}, whose results were",
        ),
        (
            {"out": folder, "test": TEST, "make_model": lambda: make_model()},
            f"out is {folder}, whose results were made with another make_model:",
        ),
        (
            {"out": folder, "test": TEST, "metrics": {"accuracy of rows": squared_error}},
            f"out is {folder}, whose results were made with another metrics:",
        ),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the table says what
            run(**options)
        text = str(caught.value)
        assert text.startswith(sentence), text
        assert "\n" not in text
    parts = dict.fromkeys(("train", "validation", "test"))
    with pytest.raises(ValueError, match="dataset is 'mnist': choose one of digits, cifar10"):
        run(**parts, dataset="mnist")
    with comparison_lock(tmp_path), pytest.raises(ValueError, match="another process is using"):
        run(out=tmp_path)


def _counting():
    made = []

    def make():
        made.append(1)
        model = make_model()
        nn.init.constant_(model[0].weight, float(len(made)))
        return model

    return make


def comparison_lock(folder):
    from filelock import FileLock

    return FileLock(folder / ".lock", is_singleton=False)


def test_each_arm_has_a_copy_of_the_objects_in_a_mapping():
    policy = {"name": "gate", "target_rate": 0.25, "controller": LogIntegral(0.25)}
    both, alone = (run(policies=[policy], seeds=seeds) for seeds in ([0, 1], [1]))
    label = "gate(0.25, controller=LogIntegral)"
    one, other = (
        next(e for e in report.entries if (e["policy"], e["seed"]) == (label, 1))
        for report in (both, alone)
    )
    assert (one["trained"], one["value"]) == (other["trained"], other["value"])
    assert policy["controller"].state_dict() == LogIntegral(0.25).state_dict()


def test_arms_of_another_environment_are_noted(tmp_path, monkeypatch):
    run(out=tmp_path, seeds=[0], policies=["infobatch"])
    here = comparison_arm.stamp()
    monkeypatch.setattr(comparison_arm, "stamp", lambda: here | {"cpu": "another"})
    report = run(out=tmp_path, seeds=[0, 1], policies=["infobatch"])
    assert {e["stamp"]["cpu"] for e in report.entries if e["seed"] == 0} == {here["cpu"]}
    assert {e["stamp"]["cpu"] for e in report.entries if e["seed"] == 1} == {"another"}
    assert any(note.startswith("arms differ in source, torch, cpu or dev") for note in report.notes)


def test_auto_settings_are_resolved_once_for_all_arms(tmp_path, monkeypatch):
    def changing(*_):
        answers.append({"precision": ("fp32", "bf16")[len(answers) % 2]})
        return answers[-1], "as the noise will have it", {}

    def train(learner, *arguments, **options):
        used.add((learner.config.precision, learner.config.seed))
        return before(learner, *arguments, **options)

    answers, used, before = [{}], set(), Learner.train
    monkeypatch.setattr(SettingsInUse, "_precision_and_layout", changing)
    monkeypatch.setattr(Learner, "train", train)
    config = TrainConfig(lr=0.02, precision="auto")
    report = run(out=tmp_path, config=config, policies=["cached_loss"])
    assert report.pilot.config["precision"] == "bf16"
    assert (len(answers), used) == (2, {("bf16", 0), ("bf16", 1)})
    run(out=tmp_path, config=config, policies=["cached_loss", "infobatch"])  # measured again
    assert (len(answers), used) == (2, {("bf16", 0), ("bf16", 1)})


def test_a_policy_that_saves_no_time_is_left_out_unless_asked_for(tmp_path, monkeypatch):
    def slow(*arguments):
        found = measure(*arguments)
        made = tuple(
            comparison_plan.pilot.Prediction(
                each.policy, each.rate, 1.2, 1.1, 1.3, 1.0, 1.5, 0.2, ""
            )
            if each.policy.startswith("gate")
            else each
            for each in found.predictions
        )
        return comparison_plan.pilot.Pilot(**{**vars(found), "predictions": made})

    measure = comparison_plan.pilot.measure
    monkeypatch.setattr(comparison_plan.pilot, "measure", slow)
    report = run(all_policies=False, out=tmp_path, seeds=[0])
    assert {entry["policy"] for entry in report.entries} >= {"dense", "cached_loss"}
    assert not any(entry["policy"].startswith("gate") for entry in report.entries)
    assert report.notes[0].startswith("gate(0.25) is left out, since it saves no time here")
    assert json.loads((tmp_path / "pilot.json").read_text())["predictions"][1]["low"] == 1.1
    monkeypatch.setattr(comparison_plan.pilot, "measure", None)  # the folder holds it
    assert run(all_policies=False, out=tmp_path, seeds=[0]).notes == report.notes
    with pytest.raises(ValueError, match="no policy is left to compare: gate"):
        run(all_policies=False, out=tmp_path, policies=[Gate(0.25)], seeds=[0])
