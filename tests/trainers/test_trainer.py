"""The one loop: left anywhere it goes on as if nothing had been, and it leaves nothing open."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import asdict
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from astkit import rng
from astkit.datasets import Images, Loader, load
from astkit.gating import Gate, RandomSubset, Selection
from astkit.gating.selection import everything
from astkit.trainers import (
    Budget,
    DenseStep,
    GatedStep,
    SampleStep,
    TrainConfig,
    Trainer,
    evaluator,
)
from astkit.trainers.evaluator import Evaluator
from tests.trainers.states import same

DIGITS = load("digits")[0]
TRAIN, VALIDATION = DIGITS.subset(range(40)), DIGITS.subset(range(40, 52))  # 5 and 2 batches of 8
LIMIT = 1_000  # records; no run here has as many, so reaching it means that the loop never ends


def network(seed=0):
    """A linear network with dropout."""
    with rng.isolated("cpu", seed):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)
        )


def loader(images=TRAIN, **options):
    options = {"augment": ("crop", "flip"), "pad": 1, "seed": 3, **options}
    return Loader(images, 8, **options)


def foreign(images, shuffle):
    """An ordinary DataLoader, which draws its order from torch's default generator."""
    return DataLoader(TensorDataset(images.images / 255, images.labels), 8, shuffle=shuffle)


class Hardest:
    """The half of the rows whose loss was highest when it was last seen; learns as it goes."""

    def __init__(self):
        self.losses = {}

    def select(self, epoch, num_samples):
        ranked = sorted(range(num_samples), key=lambda row: -self.losses.get(row, math.inf))
        return everything(torch.tensor(ranked[: num_samples // 2]), 0.5, num_samples)

    def observe(self, index, losses):
        self.losses.update(zip(index.tolist(), losses.tolist(), strict=True))

    def state_dict(self):
        return {"losses": list(self.losses.items())}

    def load_state_dict(self, state):
        self.losses = dict(state["losses"])


KINDS = {
    "dense": dict,
    "gated": lambda: {"step": GatedStep(Gate(0.4, "loss_and_contrast"))},
    "gated, top k": lambda: {"step": GatedStep(Gate(0.4, controller="top_k"))},
    "per batch": lambda: {"step": SampleStep(Gate(0.4), "per_batch")},
    "per sample": lambda: {"step": SampleStep(Gate(0.4, "loss_and_contrast"))},
    "random": lambda: {"sampler": RandomSubset(0.45)},
    "random, gated": lambda: {"sampler": RandomSubset(0.6), "step": GatedStep(Gate(0.4))},
    "foreign": lambda: {"train": foreign(TRAIN, True), "validation": foreign(VALIDATION, True)},
    "hardest": lambda: {"sampler": Hardest()},
}
RESUMABLE = sorted(set(KINDS) - {"hardest"})  # a new trainer cannot know what it had selected


def build(kind="dense", **options):
    options = {
        "train": loader(),
        "validation": Loader(VALIDATION, 8, shuffle=False),
        "budget": Budget(epochs=2),
        "config": TrainConfig(lr=1e-2, seed=5),
        **KINDS[kind](),
        **options,
    }
    return Trainer(options.pop("model", None) or network(), **options)


def finish(trainer):
    records = list(itertools.islice(trainer.steps(), LIMIT))
    assert trainer.done, "the loop went on and on"
    return records


def without_seconds(epochs):
    return [{name: value for name, value in e.items() if name != "seconds"} for e in epochs]


def outcome(trainer):
    """All that a run leaves behind and that is no time: weights, optimizer, history, counts."""
    optimizer = trainer.learner.optimizer.state_dict()["state"]
    return {
        "weights": {n: t.tolist() for n, t in trainer.model.state_dict().items()},
        "optimizer": {k: {n: t.tolist() for n, t in s.items()} for k, s in optimizer.items()},
        "steps": trainer.history.steps,
        "epochs": without_seconds(trainer.history.epochs),
        "samples": asdict(trainer.ledger.samples),
        "flops": asdict(trainer.ledger.flops),
        "position": asdict(trainer.position),
        "step": trainer.step.state_dict(),
        "sampler": trainer.sampler and trainer.sampler.state_dict(),
    }


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


def check_leaving(kind, cuts):
    trainer = build(kind)
    for count in cuts:
        steps = trainer.steps()
        for _ in itertools.islice(steps, count):
            pass
        steps.close()
    finish(trainer)
    assert outcome(trainer) == uninterrupted(kind)[0]


CUTS = st.lists(st.integers(0, 14), max_size=4)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(cuts=CUTS)
def test_leaving_anywhere_changes_nothing(kind, cuts):
    check_leaving(kind, cuts)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(cuts=CUTS)
def test_leaving_anywhere_changes_nothing_in_full(kind, cuts):
    check_leaving(kind, cuts)


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_after_every_record_changes_nothing(kind):
    check_leaving(kind, [1] * uninterrupted(kind)[1])


def check_resuming(kind, cut):
    first, second = build(kind), build(kind, model=network(seed=9))
    steps = first.steps()
    for _ in itertools.islice(steps, cut):
        pass
    # not closed: what a checkpoint sees while the loop is suspended
    second.model.load_state_dict(copy.deepcopy(first.model.state_dict()))
    second.learner.optimizer.load_state_dict(copy.deepcopy(first.learner.optimizer.state_dict()))
    state = copy.deepcopy(first.state_dict())
    before = copy.deepcopy(first.history.steps)
    second.load_state_dict(state)
    assert same(second.state_dict(), state)
    steps.close()
    finish(second)
    after = outcome(second)
    expected, _ = uninterrupted(kind)
    after["steps"] = before + after["steps"]
    assert after == expected


@pytest.mark.parametrize("kind", RESUMABLE)
@settings(max_examples=4, deadline=None)
@given(cut=st.integers(0, 14))
def test_a_new_trainer_resumes_bit_identically(kind, cut):
    check_resuming(kind, cut)


@pytest.mark.full
@pytest.mark.parametrize("kind", RESUMABLE)
@pytest.mark.parametrize("cut", range(15))
def test_a_new_trainer_resumes_bit_identically_in_full(kind, cut):
    check_resuming(kind, cut)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", ["dense", "gated", "per sample", "foreign"])
def test_the_default_generator_decides_nothing(kind):
    with rng.isolated("cpu", "elsewhere"):
        trainer = build(kind)
        for _ in trainer.steps():
            torch.rand(7)  # what a notebook might do between two records
    assert outcome(trainer) == uninterrupted(kind)[0]


def test_the_seed_decides_dropout():
    runs = [build(config=TrainConfig(lr=1e-2, seed=seed)) for seed in (5, 6)]
    for trainer in runs:
        finish(trainer)
    same, other = (outcome(trainer)["weights"] for trainer in runs)
    assert same == uninterrupted("dense")[0]["weights"]
    assert other != same


def test_every_step_drops_other_units():
    model, dropped = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.5)), []
    model[2].register_forward_hook(lambda module, inputs, output: dropped.append(output == 0))
    trainer = build(model=model, validation=None)
    trainer._cost(next(trainer.train.batches(0)))
    dropped.clear()
    finish(trainer)
    masks = {str(mask.tolist()) for mask in dropped}
    assert len(masks) == len(dropped) == 10


def batch_normed():
    with rng.isolated("cpu", 0):
        return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


@pytest.mark.parametrize("kind", ["dense", "gated"])
def test_a_frozen_part_stays_frozen(kind):
    model = batch_normed()
    model[0].eval()
    statistics = model[0].running_mean.clone()
    finish(build(kind, model=model))
    assert torch.equal(model[0].running_mean, statistics)
    thawed = batch_normed()
    finish(build(kind, model=thawed))
    assert not torch.equal(thawed[0].running_mean, statistics)


def test_evaluation_leaves_batch_statistics_alone():
    model = batch_normed()
    trainer = build(model=model)
    before = copy.deepcopy(model.state_dict())
    trainer.evaluate(Loader(VALIDATION, 8))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("leave", ["end", "close", "error"])
def test_modes_are_put_back_whichever_way_it_ends(leave):
    model = network().eval()
    trainer = build(model=model)
    steps = trainer.steps()
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


def test_records_and_observers_tell_the_same_story():
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
    steps = build(observers=[listener]).steps()
    next(steps)
    steps.close()
    assert listener.closed == 2


def test_a_spent_trainer_has_nothing_more_to_do(unchanged):
    trainer = build()
    finish(trainer)
    with unchanged(trainer.model):
        assert list(trainer.steps()) == []


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
    trainer = build(model=model, budget=Budget(epochs=3))
    history = finish(trainer) and trainer.history
    accuracy, loss = by_hand(model, VALIDATION)
    assert history.epochs[-1]["val_accuracy"] == accuracy
    assert history.epochs[-1]["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert history.epochs[0]["val_loss"] != history.epochs[-1]["val_loss"]
    accuracy, loss = by_hand(model, DIGITS)
    report = trainer.evaluate(Loader(DIGITS, 100))
    assert report["accuracy"] == pytest.approx(accuracy, abs=1.5 / len(DIGITS))
    assert report["loss"] == pytest.approx(loss, rel=1e-4)


def test_a_way_to_evaluate_is_tried_out_once_and_finds_the_same(monkeypatch):
    trainer, data, tried = build(), Loader(DIGITS, 100), []
    choose = evaluator.choose
    monkeypatch.setattr(evaluator, "choose", lambda *args: tried.append(1) or choose(*args))
    plain = trainer.evaluate(data)
    for _ in range(2):
        found = trainer.evaluate(data, "auto")
        assert found["accuracy"] == plain["accuracy"]
        assert found["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert len(tried) == 1
    assert trainer.ledger.samples.evaluated == 3 * len(DIGITS)
    assert trainer.evaluate(data, "threads")["accuracy"] == plain["accuracy"]


def test_what_is_settled_first_does_not_use_up_a_turn_of_the_sampler():
    class Counting(RandomSubset):
        asked = 0

        def select(self, epoch, num_samples):
            self.asked += 1
            return super().select(epoch, num_samples)

    sampler = Counting(0.5)
    trainer = build(sampler=sampler, config=TrainConfig(batch_size="auto"))
    next(trainer.steps())
    assert trainer.setting_up.decisions
    assert sampler.asked == 1


class Norm(Evaluator):
    """Finds something else than what a classifier is judged by."""

    def found(self):
        weights = torch.cat([w.detach().flatten() for w in self.learner.model.parameters()])
        return {"val_norm": float(weights.norm())}


def test_an_evaluator_of_ones_own_finds_what_is_told_of_a_pass():
    trainer = build(validation=None, evaluator=Norm)
    finish(trainer)
    assert [set(e) & {"val_norm", "val_accuracy"} for e in trainer.history.epochs] == [
        {"val_norm"}
    ] * 2
    assert trainer.history.epochs[-1]["val_norm"] == trainer.evaluator.found()["val_norm"]


def test_without_validation_nothing_is_said_of_it():
    trainer = build(validation=None)
    records = finish(trainer)
    assert {record.phase for record in records} == {"train"}
    assert not any(name.startswith("val") for epoch in trainer.history.epochs for name in epoch)
    assert trainer.ledger.samples.evaluated == 0


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


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 60),
    size=st.integers(1, 20),
    rate=st.floats(0.01, 1),
    cut=st.integers(0, 20),
)
def test_only_selected_rows_are_fetched(rows, size, rate, cut):
    data, sampler = Watched(rows), RandomSubset(rate, seed=1)
    trainer = Trainer(
        linear(),
        Loader(data, size),
        Loader(VALIDATION_ROWS, 4),
        budget=Budget(epochs=3),
        sampler=sampler,
    )
    steps = trainer.steps()
    for _ in itertools.islice(steps, cut):
        pass
    steps.close()
    records = finish(trainer)
    chosen = max(1, round(rate * rows))
    assert len(data.fetched) == 3 * chosen
    selected = [sampler.select(epoch, rows).index for epoch in range(3)]
    assert data.fetched == torch.cat(selected).tolist()
    samples = trainer.ledger.samples
    assert (samples.trained, samples.unloaded) == (3 * chosen, 3 * (rows - chosen))
    if cut == 0:
        trained = [r for r in records if r.phase == "train"]
        assert len(trained) == 3 * math.ceil(chosen / size)


VALIDATION_ROWS = TensorDataset(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("rows", "size", "rate"),
    [
        (33, 32, 30 / 33),  # one batch instead of two
        (1293, 128, 128 / 1293),  # one instead of a tenth of eleven
        (100, 7, 0.5),
    ],
)
def test_a_pass_over_a_subset_ends(rows, size, rate):
    trainer = Trainer(
        linear(),
        Loader(Watched(rows), size),
        Loader(VALIDATION_ROWS, 4),
        budget=Budget(epochs=2),
        sampler=RandomSubset(rate),
    )
    records = finish(trainer)
    batches = math.ceil(round(rate * rows) / size)
    progress = [record.metrics["progress"] for record in records if record.phase == "train"]
    expected = [(number + 1) / (2 * batches) for number in range(2 * batches)]
    assert progress == pytest.approx(expected)


@pytest.mark.parametrize("rate", [None, 0.7, 0.5])
def test_incomplete_batches_can_be_dropped(rate):
    trainer = Trainer(
        linear(),
        Loader(Watched(100), 30, drop_last=True),
        Loader(VALIDATION_ROWS, 4),
        budget=Budget(epochs=2),
        sampler=None if rate is None else RandomSubset(rate),
    )
    records = [record for record in finish(trainer) if record.phase == "train"]
    assert len(records) == 2 * int(100 * (rate or 1) // 30)
    assert trainer.ledger.samples.trained == 30 * len(records)


@pytest.mark.parametrize("budget", [{"epochs": 2}, {"flops": 1e6}])
@pytest.mark.parametrize("sampler", [None, RandomSubset(0.1)])
def test_a_pass_without_a_batch_is_refused(budget, sampler, unchanged):
    size = 50 if sampler is None else 20
    trainer = Trainer(
        linear(),
        Loader(Watched(40), size, drop_last=True),
        Loader(VALIDATION_ROWS, 4),
        budget=Budget(**budget),
        sampler=sampler,
    )
    with unchanged(trainer.model), pytest.raises(ValueError, match=r"no batch.*drop_last"):
        list(itertools.islice(trainer.steps(), LIMIT))


class Telltale(RandomSubset):
    def __init__(self, rate):
        super().__init__(rate)
        self.told = []

    def observe(self, index, losses):
        self.told.append((index.tolist(), losses.tolist()))


@pytest.mark.parametrize(
    "make",
    [
        DenseStep,
        lambda: GatedStep(Gate(0.3, "loss")),
        lambda: SampleStep(Gate(0.3, "loss"), "per_batch"),
        lambda: SampleStep(Gate(0.3, "loss")),
    ],
)
def test_the_sampler_hears_of_the_rows_that_were_trained_on(make):
    inner, seen = make(), []

    class Spy:
        def __call__(self, learner, batch, weight, ledger):
            result = inner(learner, batch, weight, ledger)
            # the inputs name their rows, whatever any index says
            seen.append((batch.x[result.rows, 0].long().tolist(), result.losses.tolist()))
            return result

        state_dict, load_state_dict = inner.state_dict, inner.load_state_dict

    sampler = Telltale(0.6)
    data = Loader(Watched(50), 8)
    Trainer(linear(), data, budget=Budget(epochs=2), step=Spy(), sampler=sampler).run()
    assert sampler.told == seen
    assert sum(len(rows) for rows, _ in seen) > 0
    assert len({row for rows, _ in seen for row in rows}) > 8


# --- what cannot work is refused before any weight changes


class Returning(nn.Module):
    """A trainable model that returns whatever ``make`` turns its logits into."""

    def __init__(self, make):
        super().__init__()
        self.linear, self.make = nn.Linear(64, 10), make

    def forward(self, x):
        return self.make(self.linear(x.flatten(1)))


def labelled(labels, classes=10):
    names = tuple(str(number) for number in range(classes))
    count = len(labels)
    return Images(DIGITS.images[:count], torch.tensor(labels), names, "made up")


LATE = [0] * 15 + [9]  # the bad label comes in the second batch of 8
BAD_MODELS = {
    "scalar": (lambda out: out.mean(), r"the model returned \[\] for a batch of 2 rows"),
    "averaged": (lambda out: out.mean(0, keepdim=True), r"returned \[1, 10\] for a batch of 2"),
    "flat": (lambda out: out.flatten(), r"returned \[20\] for a batch of 2 rows"),
    "pair": (lambda out: (out, out), "the model returned tuple for a batch of 2 rows"),
    "mapping": (lambda out: {"logits": out}, "the model returned dict for a batch of 2 rows"),
    "nothing": (lambda out: None, "the model returned NoneType for a batch of 2 rows"),
    "one column": (lambda out: out[:, :1], "labels must lie in|labels 0 to 0"),
}


@pytest.mark.parametrize("step", ["dense", "gated", "per batch", "per sample"])
@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_of_the_wrong_shape_is_refused(case, step, unchanged):
    make, sentence = BAD_MODELS[case]
    model = Returning(make)
    trainer = build(step, model=model)
    with unchanged(model), pytest.raises(ValueError, match=sentence):
        trainer.run()
    assert trainer.learner.optimizer.state_dict()["state"] == {}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("step", ["dense", "gated", "per batch", "per sample"])
@pytest.mark.parametrize(
    ("criterion", "sentence"),
    [
        (nn.CrossEntropyLoss(), r"returned shape \[\].*averaged already.*reduction='none'"),
        (nn.MSELoss(reduction="none"), "the criterion refused outputs of shape"),
    ],
)
def test_a_criterion_that_gives_no_loss_a_row_is_refused(criterion, sentence, step, unchanged):
    trainer = build(step, criterion=criterion)
    with unchanged(trainer.model), pytest.raises(ValueError, match=sentence):
        trainer.run()


@pytest.mark.parametrize("labels", [LATE, [9, *LATE]])
def test_any_label_out_of_range_is_refused_at_once(labels, unchanged):
    images = labelled(labels)
    trainer = build(
        model=nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
        train=Loader(images, 8, shuffle=False),
    )
    with unchanged(trainer.model), pytest.raises(ValueError, match=r"[Ll]abel 9.*9 outputs|has 9"):
        trainer.run()


@pytest.mark.parametrize("bad", [-1, 10])
def test_a_label_out_of_range_in_an_ordinary_loader_is_refused(bad, unchanged):
    labels = torch.tensor([bad, 0, 1, 2])
    data = DataLoader(TensorDataset(DIGITS.images[:4] / 255, labels), 4)
    trainer = build(train=data, validation=None)
    with unchanged(trainer.model), pytest.raises(ValueError, match=rf"[Ll]abel {bad}\b"):
        trainer.run()


def test_a_late_label_in_an_ordinary_loader_is_refused_when_it_comes():
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 10])
    data = DataLoader(TensorDataset(DIGITS.images[:8] / 255, labels), 4)
    trainer = build(train=data, validation=None)
    steps = trainer.steps()
    next(steps)
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(ValueError, match="Label 10 occurs 1 time in batch 1"):
        next(steps)
    after = trainer.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_empty_data_are_refused(unchanged):
    empty = TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="data is empty"):
        Loader(empty, 8)
    trainer = build(train=DataLoader(empty, 8), validation=None)
    with unchanged(trainer.model), pytest.raises(ValueError, match="yielded no batch"):
        trainer.run()


def test_a_bare_data_set_is_refused():
    with pytest.raises(ValueError, match=r"does not say how to batch its rows.*Loader\("):
        build(train=TRAIN)


@pytest.mark.parametrize("step", ["dense", "gated", "per batch", "per sample"])
def test_a_loss_that_is_not_finite_stops_before_the_weights_change(step, unchanged):
    class Exploding(nn.Module):
        """Finite in eval mode, so that only the training loss is not."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            return self.linear(x.flatten(1)) + (math.nan if self.training else 0.0)

    trainer = build(step, model=Exploding())
    sentence = "training loss became nan: the weights are as they were.*lower lr"
    with unchanged(trainer.model), pytest.raises(FloatingPointError, match=sentence):
        trainer.run()
    assert trainer.learner.optimizer.state_dict()["state"] == {}


def test_not_a_number_in_the_inputs_stops_before_the_weights_change(unchanged):
    x = TRAIN.images / 255
    x[5, 0, 3, 3] = math.nan
    data = DataLoader(TensorDataset(x, TRAIN.labels), 8)
    trainer = build(train=data, validation=None)
    with unchanged(trainer.model), pytest.raises(FloatingPointError, match="inputs for NaN"):
        trainer.run()


class Endless(IterableDataset):
    """Cannot say how long it is."""

    def __iter__(self):
        return iter(zip(TRAIN.images / 255, TRAIN.labels, strict=True))


def test_a_loader_of_unknown_length_trains_whole_passes():
    trainer = build(train=DataLoader(Endless(), 8))
    records = [record for record in finish(trainer) if record.phase == "train"]
    assert [record.metrics["epoch"] for record in records] == [0] * 5 + [1] * 5
    assert trainer.ledger.samples.trained == 80


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (lambda: DataLoader(Endless(), 8), "cannot tell how many rows"),
        (lambda: foreign(TRAIN, False), "an ordinary loader, which loads every row itself"),
    ],
)
def test_a_sampler_needs_rows_to_choose_from(data, sentence, unchanged):
    trainer = build(train=data(), validation=None, sampler=RandomSubset(0.5))
    with unchanged(trainer.model), pytest.raises(ValueError, match=sentence):
        trainer.run()


def test_a_sampler_that_selects_nothing_is_refused(unchanged):
    nothing = SimpleNamespace(
        select=lambda epoch, rows: Selection(
            torch.zeros(0, dtype=torch.long), torch.zeros(0), 40, 0
        )
    )
    trainer = build(sampler=nothing)
    with unchanged(trainer.model), pytest.raises(ValueError, match="no batch"):
        list(itertools.islice(trainer.steps(), LIMIT))
