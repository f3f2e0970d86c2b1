"""`compare`: fair controls, equal cost, the entries, and a folder that continues."""

import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler, Subset, SubsetRandomSampler, TensorDataset

from astkit import Budget, Comparison, Gate, InfoBatch, Metric, Policy, Selection, TrainConfig
from astkit.aim.decisions import OLD
from astkit.comparison import baseline, forecast, runs, training
from astkit.comparison.baseline import Baseline
from astkit.comparison.compare import checked_methods
from astkit.comparison.plan import label_of
from astkit.gating import LogIntegral, OriginPI
from astkit.trainers import Trainer
from tests import build
from tests.build import refused, with_dropout
from tests.comparison import small_tasks
from tests.comparison.small_tasks import HELD, ROWS, TRAIN, run, timeless
from tests.comparison.test_units import Spread


class Read(TensorDataset):
    """Test data that count how often their rows are read."""

    reads = 0

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        return super().__getitem__(row)


TEST = Read(*small_tasks.TEST.tensors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison") / "out"


@pytest.fixture(scope="module")
def report(folder: Path) -> Comparison:
    before = torch.get_rng_state()
    report = run(out=folder, test=TEST)
    assert torch.equal(torch.get_rng_state(), before)
    return report


def test_flops_of_a_row_may_be_given(tmp_path: Path) -> None:
    options = {"seeds": [0], "policies": [Gate(0.25)], "out": tmp_path}
    dense = run(flops=600.0, **options).entries[0]
    assert (dense["flops"], dense["uncounted"]) == (600.0 * 2 * ROWS, [])
    with pytest.raises(ValueError, match=r"flops was 600.0 and is 700.0"):
        run(flops=700.0, **options)
    with pytest.raises(ValueError, match="flops is 0: give the FLOPs of training on one row"):
        run(flops=0)


def test_random_subsets_among_the_policies_are_the_control_of_their_rate() -> None:
    report = run(policies=[{"name": "random", "rate": 0.25}, Gate(0.25)], seeds=[0])
    assert list(report.table().index) == ["dense", "random(0.25)", "gate(0.25)"]
    own, gate = report.verdicts
    assert (own.to_random.n, gate.to_random.n) == (0, 1)


def test_test_data_are_evaluated_once_a_run() -> None:
    single = Read(*small_tasks.TEST.tensors)
    few = run(test=single, policies=["auto"], seeds=[0])
    one = single.reads
    more = run(test=single, policies=["auto"], seeds=[0, 1])
    added = len(more.entries) - len(few.entries)
    assert single.reads - 2 * one == HELD * added


def test_all_runs_of_a_seed_have_the_flops_of_dense_training_and_a_control(report):
    labels = list(dict.fromkeys(entry["policy"] for entry in report.entries))
    rates = {entry["policy"]: entry["rate"] for entry in report.entries if entry["seed"] == 0}
    controls = [f"random at {rates[name]:.3g}" for name in ("cached_loss", "gate(0.25)")]
    assert labels == ["dense", *controls, "cached_loss", "gate(0.25)"]
    assert [entry["seed"] for entry in report.entries] == [0] * 5 + [1] * 5
    dense = report.entries[0]["flops"]
    assert report.entries[0]["trained"] == 2 * ROWS
    batch = 16 * dense / (2 * ROWS)
    for entry in report.entries:
        assert dense <= entry["flops"] < dense + 1.4 * batch
        assert (entry["scored"] > 0) == (entry["policy"] == "gate(0.25)")
        assert entry["seconds"] > 0
        assert (entry["joules"] is None) == bool(entry["joules_reason"])


def test_the_curve_follows_the_run_to_its_end(report: Comparison) -> None:
    for entry in report.entries:
        flops, seconds, values = zip(*entry["curve"], strict=True)
        assert list(flops) == sorted(set(flops))
        assert list(seconds) == sorted(set(seconds))
        assert (flops[-1], seconds[-1]) == (entry["flops"], entry["seconds"])
        assert min(8, entry["steps"]) <= len(flops) <= training.POINTS
        assert {value * HELD == pytest.approx(round(value * HELD)) for value in values} == {True}


def test_records_count_the_rows_trained_on_and_keep_the_test_rows(report: Comparison) -> None:
    for entry in report.entries:
        record = report.visits(entry["policy"], entry["seed"])
        trained, losses = record["trained"], record["losses"]
        assert (trained.dtype, trained.shape) == (torch.int32, (8, ROWS))
        assert int(trained.sum()) == entry["trained"]
        assert (losses.isfinite() | (trained == 0)).all()
        assert ((record["predicted"] >= 0) == (trained.sum(0) > 0)).all()
        if entry["policy"] == "dense":  # every row once in each epoch, of four parts
            assert (trained.view(2, 4, ROWS).sum(1) == 1).all()
        if entry["policy"] == "gate(0.25)":  # scored rows have losses too
            assert losses.isfinite().sum() > (trained > 0).sum()
        assert float(record["test"].mean()) == pytest.approx(entry["value"])
    assert all(each.test_rows for each in report.verdicts)
    some = training.RunRecord(2, torch.device("cpu"))
    assert some.predicted.dtype == torch.int32  # more classes than int16 has
    refused((partial(report.visits, "rho", 0), r"no run of 'rho' with seed 0: choose one of"))


def test_results_are_shown_saved_and_loaded(report, folder, tmp_path):
    table = report.table()
    assert list(table.loc["dense", ["n", "trained"]]) == [2, 2 * ROWS]
    assert table.columns[1] == report.metric == "accuracy"
    assert "cached_loss" in report.verdict
    for text in (repr(report), report.to_html(tmp_path / "a").read_text()):
        assert "gate(0.25)" in text
    path = report.save(tmp_path / "there" / "mine.json")
    for place in (path, folder):
        loaded = Comparison.load(place)
        assert (loaded.entries, loaded.verdict) == (report.entries, report.verdict)
        assert loaded.settings == report.settings
        trained = loaded.visits("cached_loss", 1)["trained"]
        assert torch.equal(trained, report.visits("cached_loss", 1)["trained"])
    alone = tmp_path / "alone.json"
    alone.write_text(path.read_text())
    other = tmp_path / "other.json"
    other.write_text(path.read_text().replace('"curve"', '"bend"'))
    words = "is not complete: copy the file and this folder together"
    refused(
        (partial(Comparison.load, alone), words),
        (partial(Comparison.load, other), "is no comparison: its entries lack curve"),
    )
    with pytest.raises(FileNotFoundError, match="does not exist: give a file that `save` wrote"):
        Comparison.load(tmp_path / "nothing.json")


def test_the_same_call_continues_and_more_may_be_asked(report, folder, monkeypatch):
    trained: list[tuple[str, int]] = []
    original = runs.train_method

    def counted(task: Any, method: Any, seed: int, *rest: Any, **options: Any) -> Any:
        trained.append((method.label, seed))
        return original(task, method, seed, *rest, **options)

    monkeypatch.setattr(runs, "train_method", counted)
    assert run(out=folder, test=TEST).entries == report.entries
    assert trained == []
    more = run(out=folder, test=TEST, policies=[Gate(0.25)], seeds=[0, 2])
    assert {seed for _, seed in trained} == {2}
    kept = [entry for entry in more.entries if entry["seed"] == 0]
    assert [entry for entry in kept if entry not in report.entries] == []
    other = run(out=folder, test=TEST, policies=[Gate(0.25)], seeds=[2, 0])
    assert {entry["seed"] for entry in other.entries} == {0, 2}


def test_a_run_stopped_before_its_test_is_tested_as_the_others(tmp_path, monkeypatch):
    def stopped(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    settings: dict[str, Any] = {
        "make_model": partial(nn.Linear, 4, 1),
        "criterion": squared,
        "policies": ["infobatch"],
        "out": tmp_path,
    }
    with monkeypatch.context() as context:
        context.setattr(training, "_tested", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(**settings)
    again, whole = run(**settings), run(**{**settings, "out": None})
    assert timeless(again.entries) == timeless(whole.entries)
    assert again.metric == "loss"


def test_the_baseline_of_a_refused_call_is_not_kept(tmp_path: Path) -> None:
    ordered = DataLoader(TRAIN, 16, sampler=range(ROWS))
    new: dict[str, Any] = {"config": None, "check_baseline": True, "out": tmp_path}
    with pytest.raises(ValueError, match="selects rows before loading"):
        run(train=ordered, batch_size=None, policies=["infobatch"], **new)
    assert not (tmp_path / "baseline.json").exists()


def test_a_baseline_that_was_not_checked_is_checked_when_it_is_asked_for(tmp_path, monkeypatch):
    given: list[bool] = []

    def checked(*arguments: Any) -> Baseline:
        given.append(arguments[1])
        return Baseline(notes=["untuned"])

    monkeypatch.setattr(baseline, "check_baseline", checked)
    settings: dict[str, Any] = {"config": None, "policies": ["infobatch"], "out": tmp_path}
    assert run(**settings).baseline == []
    for _ in range(2):
        assert run(check_baseline=True, **settings).baseline == ["untuned"]
    assert given == [True]  # the runs that exist have the default rate


class Diverges(Policy):
    """Selects rows with weights that make the loss infinite."""

    def choose(self, batch: Any) -> Selection:
        weight = torch.full((batch.rows,), 3e38)
        return batch.select(torch.arange(batch.rows), weight, normaliser=1e-30)


def test_a_policy_that_diverges_is_reported_beside_the_others() -> None:
    report = run(policies=[Diverges(), "auto"])
    failed = [entry for entry in report.entries if entry["policy"] == "Diverges"]
    assert [entry["value"] for entry in failed] == [None, None]
    assert any(note.startswith("Diverges, seed 1: the") for note in report.notes)
    assert report.table().loc["Diverges", "failed"] == 2
    assert "2 seeds without a finite accuracy" in report.verdict
    # what is known by row comes from the seeds that did not fail
    next(e for e in report.entries if (e["policy"], e["seed"]) == ("dense", 1))["value"] = None
    alone = report.visits("dense", 0)["losses"]
    assert torch.equal(report.samples("dense").losses.nan_to_num(), alone.nan_to_num())


def test_dense_training_that_diverges_at_one_seed_does_not_end_the_comparison() -> None:
    def brittle() -> nn.Module:
        model = with_dropout()
        first: Any = model[0]  # type: ignore[index]
        with torch.no_grad():
            first.weight[first.weight < -0.497] = 1e38  # with some of the seeds
        return model

    report = run(make_model=brittle, policies=["auto"], seeds=range(6))
    dense = [entry for entry in report.entries if entry["policy"] == "dense"]
    failed = [entry["seed"] for entry in dense if entry["value"] is None]
    assert 0 < len(failed) < 6
    assert [note for note in report.notes if note.startswith(f"dense, seed {failed[0]}: the")]
    assert {entry["seed"] for entry in report.entries[len(dense) :]} <= set(range(6))
    assert report.verdicts[0].n == 6 - len(failed)


def test_what_is_compared_is_the_first_metric_else_accuracy_else_the_loss(report):
    def distance(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) - targets).abs().float()

    near = Metric("closeness", lambda outputs, targets: -distance(outputs, targets), True)
    both = [Metric("distance", distance, higher_is_better=False), near]
    named = run(seeds=[0], metrics=both, policies=["auto"])
    assert (named.metric, named.higher) == ("distance", False)
    assert (report.metric, report.higher) == ("accuracy", True)
    values = TensorDataset(TRAIN.tensors[0], TRAIN.tensors[0][:, 0])
    squared = run(
        make_model=lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        train=values,
        validation=values,
        test=values,
        criterion=nn.MSELoss(reduction="none"),
        seeds=[0],
        policies=["auto"],
    )
    assert (squared.metric, squared.higher) == ("loss", False)
    assert squared.notes[0].startswith("rows with equal inputs: 64 of train in validation, remove")


class MacroRecall:
    """Mean recall over the classes: an aggregate, not a mean over rows."""

    def __init__(self) -> None:
        self.hits, self.counts = torch.zeros(3), torch.zeros(3)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.counts += targets.bincount(minlength=3)
        self.hits += targets[outputs.argmax(1) == targets].bincount(minlength=3)

    def compute(self) -> Tensor:
        if not self.counts.all():
            raise ValueError("a class is missing")
        return (self.hits / self.counts.clamp_min(1)).mean()


def test_a_metric_with_update_and_compute_has_an_interval_over_test_rows(monkeypatch):
    x, y = small_tasks.TEST.tensors
    rare = TensorDataset(x, y.clone().where(torch.arange(len(y)) > 0, 2).where(y != 2, 1))
    rare.tensors[1][0] = 2  # without this row a class is missing
    report = run(metrics=Metric("recall", MacroRecall(), True), policies=["auto"], test=rare)
    assert report.metric == "recall"
    assert report.verdicts[0].test_rows
    for entry in report.entries:
        values = report.visits(entry["policy"], entry["seed"])["test"]
        assert values.isnan().tolist() == [True] + [False] * (len(y) - 1)
    monkeypatch.setattr(training, "KEPT", 10)
    short = run(metrics=Metric("recall", MacroRecall(), True), policies=["auto"])
    assert not short.verdicts[0].test_rows
    assert "seeds only" in short._repr_html_()


def test_groups_count_in_a_metric_that_is_no_mean_over_rows() -> None:
    """Half of the test rows are copies of the others, in other places: nothing is known twice."""
    x, y = small_tasks.TEST.tensors
    few = len(y) // 2
    order = torch.randperm(2 * few, generator=torch.Generator().manual_seed(0))
    copies = TensorDataset(x[:few].repeat(2, 1)[order], y[:few].repeat(2)[order])
    part = Subset(copies, range(2 * few))
    part.groups = (torch.arange(2 * few) % few)[order]  # type: ignore[attr-defined]
    metric = Metric("spread", Spread(), higher_is_better=False)
    once = run(policies=["auto"], metrics=metric, test=TensorDataset(x[:few], y[:few]))
    twice = run(policies=["auto"], metrics=metric, test=DataLoader(part, 7))
    for entry, other in zip(once.entries, twice.entries, strict=True):
        expected, found = once.test_rows(entry), twice.test_rows(other)
        assert expected is not None
        assert found is not None
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-4)


def test_groups_that_cannot_be_used_are_refused_before_training(tmp_path: Path) -> None:
    known = TensorDataset(*small_tasks.TEST.tensors)
    known.groups = [str(row // 5) for row in range(HELD)]  # type: ignore[attr-defined]
    missing = TensorDataset(*small_tasks.TEST.tensors)
    missing.groups = [None, *known.groups[1:]]  # type: ignore[attr-defined]
    for arguments, words in (
        ({"validation": known, "policies": ["infobatch", "aim"]}, "not for the training data"),
        ({"train": known, "policies": ["auto"]}, "not for the target"),
        ({"test": missing}, "groups of the test data is None in row 0"),
        ({"validation": missing}, "groups of the validation data is None in row 0"),
        ({"test": DataLoader(known, 8, sampler=Dice())}, "test has groups, but its loader"),
    ):
        refused((partial(run, **{"policies": ["infobatch"], **arguments}, out=tmp_path), words))
    assert not list(tmp_path.glob("entries/*"))


def test_accuracies_in_percent_are_refused_before_the_first_run_ends(tmp_path: Path) -> None:
    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        return 100.0 * (outputs.argmax(1) == targets)

    metric, words = Metric("accuracy", accuracy, True), r"accuracy has the value [\d.]+: return sh"
    refused((partial(run, metrics=metric, policies=["auto"], out=tmp_path), words))
    assert not list(tmp_path.glob("entries/*"))


def test_rows_that_parts_share_are_the_first_note(report: Comparison) -> None:
    x, _ = TRAIN.tensors
    known = TensorDataset(torch.cat([x[:6], TEST.tensors[0][6:]]), TEST.tensors[1])
    (first, *_) = run(test=known, policies=["auto"], seeds=[0]).notes
    assert first.startswith("rows with equal inputs: 6 of train in test, remove them from train:")
    (first, *_) = run(validation=known, test=TEST, policies=["auto"], seeds=[0]).notes
    parts = "6 of train in validation, remove them from train; "
    parts += "18 of validation in test, remove them from validation: a model that has seen"
    assert first.startswith(f"rows with equal inputs: {parts}")
    assert not any("equal inputs" in note for note in report.notes)


def test_break_even_is_computed_from_the_first_seed(report: Comparison) -> None:
    notes = [note for note in report.notes if note.startswith("gate(0.25)")]
    assert len(notes) == 1
    pattern = r"break-even rate ([\d.]+): .* took (\S+) ms, its .* passes (\S+) ms"
    numbers = re.findall(pattern, notes[0])
    for rate, scoring, training_passes in numbers:
        assert float(rate) == pytest.approx(1 - float(scoring) / float(training_passes), abs=0.1)
    assert numbers or "saves no time" in notes[0]


class Mixup(DataLoader):  # type: ignore[type-arg]
    """A loader that changes its batches: all labels become 0."""

    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield x, torch.zeros_like(y)


def test_a_loader_with_its_own_iteration_is_passed_through_or_refused() -> None:
    own = Mixup(TRAIN, 16, shuffle=True)
    with pytest.raises(ValueError, match="cached_loss selects rows before loading, but train is a"):
        run(train=own, policies=["cached_loss"], batch_size=None)
    test = Mixup(small_tasks.TEST, 8)
    options = {"policies": [Gate(0.25)], "batch_size": None, "seeds": [0], "epochs": 9}
    report = run(train=own, test=test, budget=None, **options)
    refused((report.suspects, "nothing is known by row: pass a map-style data set"))
    dense = report.entries[0]
    assert dense["policy"] == "dense"
    assert dense["value"] > 0.9  # all labels are 0, in the test loader too


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets.float()).square()


DECIMALS = TensorDataset(TRAIN.tensors[0], torch.randn(ROWS, 1))
NEEDS: dict[str, tuple[dict[str, Any], str]] = {
    "labels": (
        {"policies": ["infobatch", "class_balanced"], "criterion": squared},
        "ClassBalanced chooses by class, but the criterion takes the targets as numbers",
    ),
    "classes": (
        {
            **dict.fromkeys(("train", "validation", "test"), DECIMALS),
            "policies": ["infobatch", Gate(0.5, "entropy")],
            "criterion": nn.MSELoss(reduction="none"),
            "make_model": partial(nn.Linear, 4, 1),
        },
        "this score needs .* at least two classes",
    ),
    "a target": ({"policies": ["infobatch", "aim"]}, "the target has 24 rows, too few"),
    "scores": ({"policies": ["infobatch", {"name": "weighted", "weights": torch.rand(9)}]}, "9"),
}


@pytest.mark.parametrize("kind", NEEDS)
def test_all_policies_are_checked_against_the_data_before_anything_is_trained(kind, monkeypatch):
    options, sentence = NEEDS[kind]

    def train(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a run has begun")

    monkeypatch.setattr(runs, "train_method", train)
    refused((partial(run, **options), sentence))


@pytest.mark.parametrize("kind", ["counts", "column", "one logit"])
def test_the_forecast_knows_whether_targets_are_classes(kind, monkeypatch):
    told: list[Any] = []

    def told_classes(*given: Any) -> Any:
        told.append(given[3])
        raise ValueError("enough is known")

    monkeypatch.setattr(forecast, "forecast_of", told_classes)
    y = TRAIN.tensors[1]
    y = {"counts": y, "column": y[:, None], "one logit": (y > 0).long()}[kind]
    train = TensorDataset(TRAIN.tensors[0], y)

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        if kind != "one logit":
            return squared(outputs, targets.flatten())
        losses = nn.BCEWithLogitsLoss(reduction="none")
        return losses(outputs[:, 0], targets.float())

    parts = dict.fromkeys(("train", "validation", "test"), train)
    options = {"make_model": partial(nn.Linear, 4, 1), "policies": ["auto"], "seeds": [0]}
    run(**parts, **options, criterion=criterion)
    assert told == [kind == "one logit"]


def test_test_rows_of_a_group_are_one_number() -> None:
    grouped = TensorDataset(*small_tasks.TEST.tensors)
    grouped.groups = [str(row // 5) for row in range(HELD)]  # type: ignore[attr-defined]
    plain = run(policies=["auto"], seeds=[0])
    for test in (grouped, DataLoader(grouped, 7)):
        report = run(policies=["auto"], seeds=[0], test=test)
        for each, other in zip(plain.entries, report.entries, strict=True):
            rows, groups = plain.test_rows(each), torch.arange(HELD) // 5
            without = [float(rows[groups != group].mean()) for group in range(5)]
            expected = [5 * each["value"] - 4 * mean for mean in without]
            assert report.test_rows(other).tolist() == pytest.approx(expected)


class Dice(Sampler):  # type: ignore[type-arg]
    """Rows in an order that depends on nothing else."""

    def __iter__(self) -> Any:
        return iter(random.SystemRandom().sample(range(HELD), HELD))


def padded(rows: list[Any]) -> dict[str, Tensor]:
    """A batch of texts of different lengths."""
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(each) for each, _ in rows], batch_first=True)
    return {"tokens": tokens, "labels": torch.tensor([label for _, label in rows])}


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.words(tokens).mean(1))
        return outputs


def test_loaders_with_a_collate_function_of_texts() -> None:
    rows: Any = [([1 + i % 7] * (1 + i % 5) + [8] * (i % 2), i % 2) for i in range(120)]
    parts = [
        DataLoader(part, 16, collate_fn=padded) for part in (rows[:64], rows[64:96], rows[96:])
    ]
    names = ("train", "validation", "test")
    given = dict(zip(names, parts, strict=True))
    report = run(make_model=Texts, **given, batch_size=None, seeds=[0])
    assert report.metric == "accuracy"
    assert {"cached_loss", "gate(0.25)"} <= {entry["policy"] for entry in report.entries}


def test_each_run_has_its_own_policy_criterion_and_optimizer() -> None:
    policy = {"name": "gate", "controller": LogIntegral(0.25)}
    first = run(policies=[policy], seeds=[0])
    again = run(policies=[policy], seeds=[0])
    assert timeless(first.entries) == timeless(again.entries)

    def sgd(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)

    scheduled = run(make_optimizer=sgd, policies=["auto"], seeds=[0])
    fixed = run(make_optimizer=lambda m: sgd(m)[0], policies=["auto"], seeds=[0])
    assert scheduled.entries[0]["curve"] != fixed.entries[0]["curve"]


def test_a_torch_scheduler_made_for_dense_training_ends_with_methods_of_more_steps() -> None:
    made: list[list[int]] = []

    def sgd(model: nn.Module) -> Any:
        optimizer, places = torch.optim.SGD(model.parameters(), lr=0.1), list[int]()
        made.append(places)
        return optimizer, LambdaLR(optimizer, lambda place: places.append(place) or 1.0)

    report = run(make_optimizer=sgd, policies=[Gate(0.25)], seeds=[0])
    dense, random, gate = (entry["optimizer_steps"] for entry in report.entries)
    assert dense == 8
    assert min(random, gate) > 9
    assert [places[-1] for places in made if len(places) > 1] == [8, 7, 7]  # dense, gate, random


def test_labels_name_the_arguments_given() -> None:
    class Mine(Policy):
        def __init__(self, first: float = 1.0, score: Any = None) -> None:
            self.first, self.score = first, score

    for policy, label in (
        (InfoBatch(seed=4), "infobatch"),
        ({"name": "gate", "score": "margin", "rate": 0.25}, "gate(0.25, score=margin)"),
        ({"name": "gate", "rate": 0.1, "seed": 3}, "gate(0.1)"),
        (Gate(0.2, "margin", fallback=0), "gate(0.2, score=margin, fallback=0)"),
        (Gate(controller=OriginPI(0.3)), "gate(0.3, controller=OriginPI)"),
        (Mine(), "Mine"),
        (Mine(2.0, print), "Mine(2.0, score=builtin_function_or_method)"),
    ):
        assert label_of(policy) == label


@pytest.mark.parametrize("policy", [InfoBatch(), Gate(0.25)])
def test_a_policy_that_observed_another_run_is_refused(policy: Policy) -> None:
    assert list(checked_methods(policy)) == [label_of(policy)]
    Trainer(with_dropout(), TRAIN, build.rows(100), policy=policy, budget=Budget(epochs=3)).run()
    with pytest.raises(ValueError, match="with what it observed in another run: pass a new one"):
        checked_methods([policy])


FEW = DataLoader(Subset(TRAIN, range(5)), batch_size=16, shuffle=True, drop_last=True)
ONE = nn.Module()
ONE.inner = with_dropout()
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"make_model": with_dropout()}, "make_model is a Sequential: pass a function"),
    ({"make_model": partial(getattr, ONE, "inner")}, "returns models that share .*: build the"),
    ({"make_model": lambda: 3}, "make_model returns a int: return a torch module"),
    ({"test": None}, "test is missing"),
    ({"policies": []}, "policies is \\[\\]: name at least one"),
    ({"policies": ["auto", "auto"]}, "policies holds auto twice"),
    ({"policies": ["autos"]}, "unknown policy 'autos'"),
    ({"seeds": [0, 0]}, "seeds is \\[0, 0\\]: give how many, such as 5, or different whole"),
    ({"seeds": []}, "seeds is \\[\\]"),
    ({"seeds": 0}, "seeds is 0: give how many"),
    ({"seeds": True}, "seeds is True: give how many"),
    ({"budget": Budget(steps=3), "epochs": 2}, "epochs is 2, and budget is Budget.*give one"),
    ({"config": TrainConfig(lr=0.1), "lr": 0.2}, "lr is 0.2, and config.lr is given too: give one"),
    ({"make_optimizer": len, "config": None, "lr": 0.2}, "lr is 0.2, and an optimizer is given"),
    ({"config": None, "lr": -1}, "lr is -1: give a number above 0"),
    ({"policies": None}, "policies is None: name at least one"),
    ({"make_model": nn.Linear}, "make_model cannot be called without arguments"),
    ({"make_optimizer": torch.optim.SGD}, "make_optimizer is .*SGD.*: pass a function"),
    ({"make_optimizer": lambda model: None}, "make_optimizer returns a NoneType"),
    ({"out": 3}, "out is 3: pass a str"),
    ({"smallest_gain": -1.0}, "smallest_gain is -1.0: give"),
    ({"smallest_gain": "0.01"}, "smallest_gain is '0.01': give"),
    ({"budget": Budget(seconds=3)}, "budget is in seconds, which depend on the load"),
    ({"budget": 3}, "budget is 3: pass a Budget"),
    ({"train": FEW, "batch_size": None}, "drop_last"),
]


def test_mistakes_are_one_sentence() -> None:
    refused(*((partial(run, **change), sentence) for change, sentence in MISTAKES))
    loader = DataLoader(small_tasks.TEST, 8, sampler=SubsetRandomSampler(range(HELD)))
    for test in (DataLoader(small_tasks.TEST, 8, shuffle=True), loader):
        refused((partial(run, test=test), "a DataLoader that shuffles"))


def test_epochs_rate_and_a_number_of_seeds_are_shorthands() -> None:
    long = run(policies=["infobatch"], budget=Budget(epochs=1), seeds=[0, 1])
    short = run(policies=["infobatch"], budget=None, config=None, epochs=1, lr=0.02, seeds=2)
    assert timeless(short.entries) == timeless(long.entries)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    from filelock import FileLock

    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(ValueError, match="which another process is using"),
    ):
        run(out=tmp_path)


def test_a_policy_that_chooses_by_the_target_has_a_forecast_first(report, tmp_path, capsys):
    assert report.forecast is None
    held = build.rows(120, seed=3)
    rare = torch.cat([(TRAIN.tensors[1] < 2).nonzero(), (TRAIN.tensors[1] == 2).nonzero()[:2]])
    train = TensorDataset(*(part[rare.squeeze(1)] for part in TRAIN.tensors))
    found = run(train=train, validation=held, policies=["aim"], seeds=[0], out=tmp_path)
    assert found.forecast is not None
    sentence = found.forecast.sentence
    assert sentence.startswith("forecast: ")
    assert capsys.readouterr().out.splitlines()[0] == sentence
    for text in (repr(found), repr(Comparison.load(tmp_path))):
        assert text.splitlines()[0] == sentence
    assert sentence in found.to_html(tmp_path / "page.html").read_text()
    assert found.to_json()["forecast"]["decision"] == found.forecast.decision.name
    assert found.given_forecast == ["aim"] * (found.forecast.decision != OLD)
    assert ("given this forecast" in found.verdict) == bool(found.given_forecast)


class Spectral(nn.Module):
    """A complex filter of the inputs, and a lazy last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.last = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last((torch.fft.rfft(x) * self.filter).abs())
        return outputs


def test_lazy_and_complex_models() -> None:
    report = run(make_model=Spectral, policies=["cached_loss"])
    first = [entry["curve"][0] for entry in report.entries if entry["policy"] == "dense"]
    assert first[0][2] != first[1][2]  # seeds have weights of their own
    assert any("_fft_" in note and "runs have equal seconds" in note for note in report.notes)
