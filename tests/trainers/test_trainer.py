"""The one loop: left anywhere it goes on as if nothing had been, and it leaves nothing open."""

from __future__ import annotations

import copy
import itertools
import math
import re
from dataclasses import asdict
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from astkit.trainers.batch_order import Feed
from astkit.trainers.evaluator import Evaluator
from astkit.trainers.state import Position
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from astkit import rng
from astkit.datasets import Images, Loader, indexed, load
from astkit.gating import CachedLoss, Gate, Policy, RandomSubset, RunInfo, Selection
from astkit.gating.policies.selective_backprop import SelectiveBackprop
from astkit.trainers import Budget, SampleStep, TrainConfig, Trainer, choose_device
from tests.trainers.states import hand_over, leave_after, same, timeless

DIGITS = load("digits")[0]
TRAIN, VALIDATION = DIGITS.subset(range(40)), DIGITS.subset(range(40, 52))  # 5 and 2 batches of 8
LIMIT = 1_000  # records; no run here has as many, so reaching it means that the loop never ends


def network(seed=0):
    """A linear network with dropout."""
    with rng.isolated("cpu", seed):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)
        )


def foreign(images, shuffle):
    """An ordinary DataLoader, which draws its order from torch's default generator."""
    return DataLoader(TensorDataset(images.images / 255, images.labels), 8, shuffle=shuffle)


class Noisy(Dataset):
    """Images with noise from torch's default generator, as random transforms add it."""

    def __len__(self):
        return len(TRAIN)

    def __getitem__(self, row):
        return TRAIN.images[row] / 255 + 0.1 * torch.rand(1, 8, 8), TRAIN.labels[row]


class Hardest(Policy):
    """Of each third of an epoch the half with the highest losses so far; scores the others."""

    rounds = 3
    needs_index = True
    state = ("losses",)

    def __init__(self):
        self.losses = torch.full((40,), math.inf)

    def plan(self, run: RunInfo):
        ranked = run.rows[self.losses[run.rows].argsort(descending=True, stable=True)]
        best, rest = ranked.tensor_split([len(ranked) // 2])
        return Selection(best, 1.0 + best % 3, float(len(best)), score_only=rest)

    def observe(self, visit):
        self.losses[visit.index] = visit.losses


class Both(RandomSubset):
    """Chooses before loading and after scoring."""

    def choose(self, batch):
        return Selection(batch.losses.topk(len(batch.losses) // 2).indices)


KINDS = {
    "dense": dict,
    "gated": lambda: {"policy": Gate(0.4, "loss_and_contrast")},
    "gated, top k": lambda: {"policy": Gate(0.4, controller="top_k")},
    "per batch": lambda: {"step": SampleStep(Gate(0.4), "per_batch")},
    "per sample": lambda: {"step": SampleStep(Gate(0.4, "loss_and_contrast"))},
    "random": lambda: {"policy": {"name": "random", "rate": 0.45}},
    "random, then chosen": lambda: {"policy": Both(0.6)},
    "random, gated": lambda: {
        "policy": RandomSubset(0.6),
        "step": SampleStep(Gate(0.4), "per_batch"),
    },
    "foreign": lambda: {"train": foreign(TRAIN, True), "validation": foreign(VALIDATION, True)},
    "hardest": lambda: {"policy": Hardest()},
    "noisy": lambda: {"train": Loader(Noisy(), 8, seed=3), "policy": Hardest()},
    "noisy, foreign": lambda: {"train": DataLoader(Noisy(), 8, shuffle=True)},
}
FAST = ["dense", "gated", "per sample", "random, then chosen", "foreign", "hardest", "noisy"]
FAST += ["noisy, foreign"]


def build(kind="dense", **options):
    options = {
        "train": Loader(TRAIN, 8, augment=("crop", "flip"), pad=1, seed=3),
        "validation": Loader(VALIDATION, 8, shuffle=False),
        "config": TrainConfig(lr=1e-2, seed=5),
        **KINDS[kind](),
        **options,
    }
    if "budget" not in options:
        options.setdefault("epochs", 2)
    return Trainer(options.pop("model", None) or network(), device="cpu", **options)


def finish(trainer):
    records = list(itertools.islice(trainer.steps(), LIMIT))
    assert trainer.done, "the loop went on and on"
    return records


def outcome(trainer):
    """All that a run leaves behind and that is no time: weights, optimizer, history, counts."""
    optimizer = trainer.optimizer.state_dict()["state"]
    memory = {} if trainer.policy is None else trainer.policy.state_dict()
    return {
        "weights": {n: t.tolist() for n, t in trainer.model.state_dict().items()},
        "optimizer": {k: {n: t.tolist() for n, t in s.items()} for k, s in optimizer.items()},
        "steps": timeless(trainer.history.steps),
        "epochs": timeless(trainer.history.epochs),
        "samples": asdict(trainer.ledger.samples),
        "flops": asdict(trainer.ledger.flops),
        "position": asdict(trainer.position),
        "step": trainer.step.state_dict(),
        "policy": {n: v.tolist() if hasattr(v, "tolist") else v for n, v in memory.items()},
    }


def test_a_policy_is_told_which_rows_were_trained_and_which_only_scored():
    planned, told = {True: [], False: []}, {True: [], False: []}

    class Telling(Hardest):
        def plan(self, run):
            chosen = super().plan(run)
            planned[True] += chosen.index.tolist()
            planned[False] += chosen.score_only.tolist()
            return chosen

        def observe(self, visit):
            super().observe(visit)
            told[visit.trained] += visit.index.tolist()

    finish(build(policy=Telling(), validation=None, epochs=1))
    assert sorted(told[True]) == sorted(planned[True])
    assert sorted(planned[False]) != sorted(planned[True])
    assert told[False]
    assert set(told[False]) <= set(planned[False])


@cache
def uninterrupted(kind):
    trainer = build(kind)
    records = finish(trainer)
    return outcome(trainer), len(records)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_does_what_it_says(kind):
    result, records = uninterrupted(kind)
    assert result["steps"]
    assert len(result["epochs"]) == 2
    assert records == len(result["steps"]) + 4  # two validation batches an epoch
    initial = {n: t.tolist() for n, t in network().state_dict().items()}
    assert result["weights"].keys() == initial.keys()
    assert all(result["weights"][name] != initial[name] for name in initial)


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_after_every_record_changes_nothing(kind):
    expected, records = uninterrupted(kind)
    trainer = build(kind)
    for _ in range(records):
        leave_after(trainer, 1)
    finish(trainer)
    assert outcome(trainer) == expected


def check_resuming(kind, cut):
    first, second = build(kind), build(kind, model=network(seed=9))
    steps = first.steps()
    for _ in itertools.islice(steps, cut):
        pass
    # not closed: what a checkpoint sees while the loop is suspended
    state, before = copy.deepcopy(first.state_dict()), copy.deepcopy(first.history.steps)
    hand_over(first, second)
    assert same(second.state_dict(), state)
    steps.close()
    finish(second)
    after = outcome(second)
    after["steps"] = timeless(before) + after["steps"]
    assert after == uninterrupted(kind)[0]


@pytest.mark.parametrize("kind", FAST)
def test_a_new_trainer_resumes_bit_identically(kind):
    for cut in (3, 5, 8):
        check_resuming(kind, cut)


def test_weights_lie_on_the_device_of_the_batch():
    there = torch.device("meta")
    feed, position = Feed(Loader(TRAIN, 8), Hardest(), there, 0), Position()
    feed.plan(position)
    weight = feed.weight(position, next(Loader(TRAIN, 8).batches(0)))
    assert weight.device == there
    x, y = torch.empty(8, 1, 8, 8, device=there), torch.empty(8, dtype=torch.int64, device=there)
    policy = SelectiveBackprop(start=0.5)
    policy.progress = 0.0  # before the start: all rows
    chosen = policy(network().to(there), x, y)
    assert chosen.weight.device == chosen.index.device == there


def test_a_policy_is_saved_once():
    assert "policy" not in build("gated").state_dict()
    assert "policy" in build("random").state_dict()


def test_rows_that_are_only_scored_are_not_counted_as_never_loaded():
    trainer = build("hardest", validation=None)
    finish(trainer)
    counts = trainer.ledger.samples
    assert counts.skipped == counts.scored > 0
    assert counts.unloaded == 0


def test_passes_over_a_part_of_a_batch_are_counted():
    class HalfScored(Policy):
        def prepare(self, make_model, data):
            self.prepared = [batch.losses for batch in data]

        def choose(self, batch):
            half = torch.arange(batch.rows // 2)
            return Selection(batch.take(half).losses.topk(2).indices)

    trainer = build(policy=HalfScored(), validation=None, epochs=1)
    finish(trainer)
    forward = trainer._cost(trainer.feed.peek()).scoring
    assert trainer.ledger.flops.helper == forward * (len(TRAIN) + len(TRAIN) // 2)


def test_a_policy_of_single_correctness_is_no_policy_for_single_rows():
    policy = {"name": "kakurenbo"}
    with pytest.raises(ValueError, match="correctness of the rows of a batch"):
        build(policy=policy, step=SampleStep(Gate(0.4)))


@pytest.mark.parametrize("option", ["augment", "normalize", "criterion", "tensors", "forward"])
def test_a_run_is_not_resumed_with_other_data_or_code(option, tmp_path):
    def run(changed, **more):
        class Net(nn.Sequential):
            if changed == "forward":

                def forward(self, x):
                    return 2 * super().forward(x)

            else:

                def forward(self, x):
                    return super().forward(x)

        loader = {"augment": ("flip",) if changed == "augment" else ("crop",)}
        loader |= {"normalize": ((0.5,), (0.3 if changed == "normalize" else 0.2,))}
        train = Loader(TRAIN, 8, **loader)
        if option == "tensors":
            images = TRAIN.images / (250 if changed else 255)
            train = DataLoader(indexed(TensorDataset(images, TRAIN.labels)), 8)
        smooth = partial(F.cross_entropy, reduction="none", label_smoothing=0.1 * bool(changed))
        criterion = {"criterion": smooth} if option == "criterion" else {}
        model = Net(*network()) if option == "forward" else network()
        return build(train=train, model=model, checkpoints=tmp_path, **criterion, **more)

    finish(run(""))
    run("", resume=True)
    with pytest.raises(ValueError, match="was made with other settings"):
        run(option, resume=True)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_trainer_resumes_bit_identically_after_every_record(kind):
    for cut in range(15):
        check_resuming(kind, cut)


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("dense", "fp32"), ("gated", "bf16"), ("per sample", "bf16"), ("foreign", "fp32"),
     ("hardest", "bf16")],
)  # fmt: skip
def test_nothing_is_open_between_records(kind, precision):
    model = network()
    model[1].eval()  # frozen by its owner
    trainer = build(kind, model=model, config=TrainConfig(lr=1e-2, precision=precision))
    state = torch.get_rng_state()
    for _ in trainer.steps():
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert [module.training for module in model.modules()] == [True, True, False] + [True] * 3
        assert torch.equal(torch.get_rng_state(), state)
    trainer.evaluate(foreign(VALIDATION, True))
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == [True, True, False] + [True] * 3


@pytest.mark.parametrize("kind", ["dense", "gated", "per sample", "foreign", "noisy"])
def test_the_default_generator_decides_nothing(kind):
    with rng.isolated("cpu", "elsewhere"):
        trainer = build(kind)
        for _ in trainer.steps():
            torch.rand(7)  # what a notebook might do between two records
    assert outcome(trainer) == uninterrupted(kind)[0]


def test_the_seed_decides_dropout_and_every_step_drops_other_units():
    model, dropped = network(), []
    other = build(config=TrainConfig(lr=1e-2, seed=6), model=model, validation=None)
    other._cost(next(other.train.batches(0)))
    model[3].register_forward_hook(lambda module, inputs, output: dropped.append(output == 0))
    finish(other)
    assert outcome(other)["weights"] != uninterrupted("dense")[0]["weights"]
    assert len({str(mask.tolist()) for mask in dropped}) == len(dropped) == 10


@pytest.mark.parametrize("kind", ["dense", "gated"])
def test_a_frozen_part_stays_frozen_and_evaluation_leaves_statistics_alone(kind, unchanged):
    def batch_normed():
        with rng.isolated("cpu", 0):
            return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10))

    model, thawed = batch_normed(), batch_normed()
    model[0].eval()
    statistics = model[0].running_mean.clone()
    finish(build(kind, model=model))
    assert torch.equal(model[0].running_mean, statistics)
    trainer = build(kind, model=thawed)
    finish(trainer)
    assert not torch.equal(thawed[0].running_mean, statistics)
    with unchanged(thawed):
        trainer.evaluate(Loader(VALIDATION, 8))


def test_modes_are_restored_whichever_way_it_ends():
    for leave in ("end", "close", "error"):
        model = network().eval()
        steps = build(model=model).steps()
        next(steps)
        assert all(module.training for module in model.modules())
        if leave == "end":
            assert len(list(steps)) == 13
        elif leave == "close":
            steps.close()
        else:
            with torch.no_grad():
                model[4].weight.fill_(math.nan)
            with pytest.raises(FloatingPointError):
                next(steps)
        assert not any(module.training for module in model.modules())


class Listener:
    def __init__(self):
        self.heard, self.closed = [], 0

    def log(self, step, *, phase, **metrics):
        self.heard.append((step, phase, metrics))

    def close(self):
        self.closed += 1


def test_records_and_observers_tell_the_same_story(unchanged):
    listener = Listener()
    trainer = build(observers=[listener])
    records = finish(trainer)
    epoch = ["train"] * 5 + ["validate"] * 2
    assert [record.phase for record in records] == epoch * 2
    assert [phase for _, phase, _ in listener.heard] == [*epoch, "epoch"] * 2
    assert [(r.step, r.phase, r.metrics) for r in records] == [
        entry for entry in listener.heard if entry[1] != "epoch"
    ]
    train = [record for record in records if record.phase == "train"]
    assert [record.step for record in train] == list(range(1, 11))
    progress = [record.metrics["progress"] for record in train]
    assert progress == pytest.approx([number / 10 for number in range(1, 11)])
    assert [r.metrics["trained"] for r in train] == [r.metrics["seen"] for r in train] == [8] * 10
    assert listener.closed == 1
    with unchanged(trainer.model):  # a spent trainer has nothing more to do
        assert list(trainer.steps()) == []
    leave_after(build(observers=[listener]), 1)
    assert listener.closed == 3


def by_hand(model, images):
    """Accuracy and mean loss, row by row."""
    model.eval()
    hits, losses = [], []
    with torch.no_grad():
        for x, y in zip(images.images, images.labels, strict=True):
            logits = model(x[None] / 255)[0]
            hits.append(int(logits.argmax()) == int(y))
            losses.append(-float(F.log_softmax(logits, 0)[y]))
    return sum(hits) / len(hits), sum(losses) / len(losses)


def test_validation_is_the_plain_average():
    model = network()
    trainer = build(model=model, epochs=3)
    history = finish(trainer) and trainer.history
    accuracy, loss = by_hand(model, VALIDATION)
    assert history.epochs[-1]["val_accuracy"] == accuracy
    assert history.epochs[-1]["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert history.epochs[0]["val_loss"] != history.epochs[-1]["val_loss"]
    accuracy, loss = by_hand(model, DIGITS)
    report = trainer.evaluate(Loader(DIGITS, 100))
    assert report["accuracy"] == pytest.approx(accuracy, abs=1.5 / len(DIGITS))
    assert report["loss"] == pytest.approx(loss, rel=1e-4)


class Norm(Evaluator):
    """Finds something else than what a classifier is judged by."""

    def found(self):
        weights = torch.cat([w.detach().flatten() for w in self.learner.model.parameters()])
        return {"val_norm": float(weights.norm())}


def test_without_validation_an_epoch_tells_what_the_evaluator_finds():
    for evaluator, expected in ((None, set()), (Norm, {"val_norm"})):
        trainer = build(validation=None, evaluator=evaluator)
        assert {record.phase for record in finish(trainer)} == {"train"}
        epochs = trainer.history.epochs
        assert [{n for n in epoch if n.startswith("val")} for epoch in epochs] == [expected] * 2
        assert trainer.ledger.samples.evaluated == 0


# --- data as they come


def test_the_callers_loader_stays_as_it_was():
    loader = Loader(TRAIN, 8, seed=3)
    loader.device = torch.device("meta")  # as if it delivered elsewhere
    for data, options in ((loader, {"batch_size": 4}), (foreign(TRAIN, True), {})):
        before = dict(vars(data))
        trainer = Trainer(network(), data, data, epochs=1, device="cpu", **options)
        trainer.run()
        assert trainer.train is not data
        assert vars(data).keys() == before.keys()
        assert [name for name in before if vars(data)[name] is not before[name]] == []
    assert (loader.batch_size, loader.device.type, loader._outputs) == (8, "meta", None)


def test_plain_data_sets_are_batched_and_shuffled_by_the_seed():
    pairs = TensorDataset(TRAIN.images / 255, TRAIN.labels)
    runs = [
        Trainer(network(), data, epochs=2, batch_size=8, config=TrainConfig(seed=seed))
        for data, seed in ((pairs, 0), (TRAIN, 0), (pairs, 1))
    ]
    for run in runs:
        assert len(finish(run)) == 10
    first, second, third = (outcome(run)["weights"] for run in runs)
    assert all(torch.allclose(torch.tensor(first[n]), torch.tensor(second[n])) for n in first)
    assert first != third


class Endless(IterableDataset):
    """Cannot say how long it is."""

    def __iter__(self):
        return iter(zip(TRAIN.images / 255, TRAIN.labels, strict=True))


def test_a_loader_of_unknown_length_trains_whole_passes():
    trainer = build(train=DataLoader(Endless(), 8))
    records = [record for record in finish(trainer) if record.phase == "train"]
    assert [record.metrics["epoch"] for record in records] == [0] * 5 + [1] * 5
    assert trainer.ledger.samples.trained == 80


# --- selection before loading


class Watched(Dataset):
    """Row ``i`` is three times the number ``i``; remembers which rows were fetched."""

    def __init__(self, rows):
        self.rows, self.fetched = rows, []

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        self.fetched.append(row)
        return torch.full((3,), float(row)), row % 4


def linear():
    with rng.isolated("cpu", 0):
        return nn.Linear(3, 4)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 60),
    size=st.integers(1, 20),
    rate=st.floats(0.01, 1),
    cut=st.integers(0, 20),
)
def test_only_selected_rows_are_fetched(rows, size, rate, cut):
    data, policy = Watched(rows), RandomSubset(rate, seed=1)
    trainer = Trainer(linear(), Loader(data, size), epochs=3, policy=policy)
    leave_after(trainer, cut)
    records = finish(trainer)
    chosen = max(1, round(rate * rows))
    assert len(data.fetched) == 3 * chosen
    plans = [policy.plan(RunInfo(rows, torch.arange(rows), epoch, 0, 0.0)) for epoch in range(3)]
    assert data.fetched == torch.cat([plan.index for plan in plans]).tolist()
    samples = trainer.ledger.samples
    assert (samples.trained, samples.unloaded) == (3 * chosen, 3 * (rows - chosen))
    if cut == 0:
        assert len(records) == 3 * math.ceil(chosen / size)


def test_an_epoch_over_a_subset_ends():
    for rows, size, rate, drop_last in (
        (33, 32, 30 / 33, False),  # one batch instead of two
        (1293, 128, 128 / 1293, False),  # one instead of a tenth of eleven
        (100, 30, 1.0, True),
        (100, 30, 0.7, True),
    ):
        data = Loader(Watched(rows), size, drop_last=drop_last)
        policy = None if rate == 1.0 else RandomSubset(rate)
        trainer = Trainer(linear(), data, epochs=2, policy=policy)
        records = finish(trainer)
        batches = (math.floor if drop_last else math.ceil)(round(rate * rows) / size)
        expected = [(number + 1) / (2 * batches) for number in range(2 * batches)]
        assert [record.metrics["progress"] for record in records] == pytest.approx(expected)
        if drop_last:
            assert trainer.ledger.samples.trained == size * len(records)


def test_choosing_settings_does_not_use_up_a_plan():
    class Counting(RandomSubset):
        asked = 0

        def plan(self, run):
            self.asked += 1
            return super().plan(run)

    policy = Counting(0.5)
    trainer = build(policy=policy, config=TrainConfig(channels_last="auto", precision="fp32"))
    next(trainer.steps())
    assert trainer.setting_up.decisions
    assert policy.asked == 1


# --- what cannot work is refused before any weight changes


class Returning(nn.Module):
    """A trainable model that returns whatever ``make`` turns its logits into."""

    def __init__(self, make):
        super().__init__()
        self.linear, self.make = nn.Linear(64, 10), make

    def forward(self, x):
        return self.make(self.linear(x.flatten(1)), self.training)


def labelled(labels):
    names = tuple(str(number) for number in range(10))
    return Images(DIGITS.images[: len(labels)], torch.tensor(labels), names, "made up")


def ordinary(labels, rows=None):
    x = TRAIN.images / 255 if rows is None else rows
    return DataLoader(TensorDataset(x[: len(labels)], torch.tensor(labels)), 4)


NINE = nn.Sequential(nn.Flatten(), nn.Linear(64, 9))
EMPTY = TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.long))
BAD = {
    "scalar": ({"model": Returning(lambda out, _: out.mean())}, "criterion refused outputs of"),
    "averaged": ({"model": Returning(lambda out, _: out.mean(0, keepdim=True))}, "refused outputs"),
    "flat": ({"model": Returning(lambda out, _: out.flatten())}, "refused outputs of shape"),
    "nothing": ({"model": Returning(lambda out, _: None)}, "returned NoneType without logits"),
    "one column": (
        {"model": Returning(lambda out, _: out[:, :1])},
        "labels must lie in|labels 0 to 0",
    ),
    "averaging": (
        {"criterion": nn.CrossEntropyLoss()},
        r"returned shape \[\].*averaging.*reduction='none'",
    ),
    "no fit": (
        {"criterion": nn.L1Loss(reduction="none")},
        "the criterion refused outputs of .* convert one of them to the shape and type",
    ),
    "late label": (
        {"model": NINE, "train": Loader(labelled([0] * 15 + [9]), 8, shuffle=False)},
        r"[Ll]abel 9.*9 outputs|has 9",
    ),
    "first label": ({"model": NINE, "train": ordinary([9, 0, 1, 2])}, r"[Ll]abel 9.*9 outputs"),
    "negative": ({"train": ordinary([-1, 0, 1, 2])}, r"[Ll]abel -1\b"),
    "high": ({"train": ordinary([0, 10, 1, 2])}, r"[Ll]abel 10\b"),
    "empty": ({"train": DataLoader(EMPTY, 8)}, "yielded no batch"),
    "NaN loss": (
        {"model": Returning(lambda out, training: out + (math.nan if training else 0.0))},
        "training loss became nan: the weights were not changed.*lower lr",
    ),
    "NaN in inputs": (
        {"train": ordinary([0, 1], torch.full((2, 64), math.nan))},
        "inputs for NaN|are NaN or infinite",
    ),
    "too few rows": (
        {"train": Loader(Watched(40), 50, drop_last=True), "model": linear(), "epochs": 1},
        r"no batch.*drop_last",
    ),
}


@pytest.mark.filterwarnings("ignore:Using a target size", "ignore:all scores")
@pytest.mark.parametrize("kind", ["dense", "gated", "per batch", "per sample"])
def test_what_cannot_work_is_refused_before_any_weight_changes(kind, unchanged):
    failed = []
    for case, (options, sentence) in BAD.items():
        trainer = build(kind, **{"validation": None, **options})
        with unchanged(trainer.model), pytest.raises((ValueError, FloatingPointError)) as caught:
            finish(trainer)
        if not re.search(sentence, str(caught.value)) or trainer.optimizer.state_dict()["state"]:
            failed.append((case, str(caught.value)))
    assert not failed


def test_a_late_label_in_an_ordinary_loader_is_refused_when_it_comes(unchanged):
    steps = build(train=ordinary([0, 1, 2, 3, 0, 1, 2, 10]), validation=None).steps()
    trainer = next(steps) and steps.gi_frame.f_locals["self"]
    with unchanged(trainer.model), pytest.raises(ValueError, match="Label 10 occurs 1 time in bat"):
        next(steps)


class Unsized:
    """A source of batches that does not say how large they are."""

    def __init__(self, data):
        self.inner, self.num_samples = Loader(data, 8), len(data)
        self.order, self.batches = self.inner.order, self.inner.batches
        self.check_labels = self.inner.check_labels

    def __len__(self):
        return len(self.inner)


class Nothing(Policy):
    def plan(self, run):
        return Selection(run.rows[:0], candidates=len(run.rows))


def test_impossible_policies_and_arguments_are_refused(unchanged):
    cases = [
        ({"train": DataLoader(Endless(), 8), "policy": RandomSubset(0.5)}, "selects rows before"),
        ({"train": foreign(TRAIN, False), "policy": RandomSubset(0.5)}, "pass the data set inst"),
        ({"policy": Nothing()}, "no batch"),
        ({"train": Loader(TRAIN, 8, drop_last=True), "policy": RandomSubset(0.1)}, "no batch"),
        ({"policy": "perplexity"}, "unknown policy 'perplexity'"),
        ({"policy": {"name": "random", "share": 0.1}}, r"cannot be made with .*share.*rate, seed"),
        ({"epochs": 1, "budget": Budget(epochs=2)}, "epochs is 1, but a budget is given too"),
        ({"epochs": None}, "neither epochs nor budget is given"),
        ({"train": foreign(TRAIN, True), "batch_size": 4}, "own loader"),
        ({"train": 7}, "cannot be iterated"),
        ({"metrics": F.mse_loss}, r"metrics holds a function: give functions \(outputs,"),
        ({"train": Unsized(TRAIN), "policy": RandomSubset(0.5)}, "Unsized has no batch_size"),
        ({"epochs": "5"}, "epochs is '5': pass a number"),
        ({"epochs": None, "budget": 5}, r"budget is 5: pass a budget, such as Budget\(epochs=5"),
        ({"config": {"lr": 1}}, r"config is {'lr': 1}: pass a configuration"),
        ({"optimizer": torch.optim.SGD}, "optimizer is <class .*: pass an optimizer, such as SGD"),
        ({"criterion": "mse"}, "criterion is 'mse': pass a function"),
        ({"step": "gated"}, "step is 'gated': pass a step"),
        ({"observers": print}, "observers is <built-in function print>: pass a list"),
        ({"metrics": dict.fromkeys(["loss"], F.mse_loss)}, "the name loss twice, or one that is"),
    ]
    for options, sentence in cases:
        model = network()
        with unchanged(model), pytest.raises(ValueError, match=sentence):
            finish(build(model=model, **options))
    with pytest.raises(ValueError, match=r"model is <function network .*: pass a torch module"):
        build(model=network)
    with pytest.raises(ValueError, match="device is 'gpu': pass auto"):
        choose_device("gpu")


@pytest.mark.parametrize(
    "policy", [None, "infobatch", CachedLoss(17 / 33), "auto", "proxy_topk", "gate"]
)
def test_a_single_row_that_batchnorm_refuses_is_skipped(policy):
    data = TensorDataset(torch.rand(33, 4), torch.arange(33) % 3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    work = Trainer(model, data, data, policy=policy, batch_size=16, epochs=3, device="cpu")
    with pytest.warns(UserWarning, match="a batch of one row is skipped, since BatchNorm"):
        records = [record for record in work.steps() if record.phase == "train"]
    counts = work.ledger.samples
    assert counts.trained + counts.skipped + counts.unloaded == 3 * 33
    assert min(record.metrics["trained"] for record in records) == 0
    assert math.isfinite(work.evaluate(work.validation)["loss"])


def test_another_error_about_a_value_is_passed_on():
    class Refusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            if self.training and len(x) == 1:
                raise ValueError("no single row")
            return x * self.weight

    data = TensorDataset(torch.rand(3, 2), torch.zeros(3).long())
    with pytest.raises(ValueError, match="no single row"):
        Trainer(Refusing(), data, batch_size=2, epochs=1, device="cpu").run()


def test_an_optimizer_that_is_used_again_has_its_learning_rate():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = build(model=model, optimizer=optimizer)
    lrs = [record.metrics["lr"] for record in work.steps() if record.phase == "train"]
    assert lrs[-1] < 0.05
    assert optimizer.param_groups[0]["lr"] == 0.1
