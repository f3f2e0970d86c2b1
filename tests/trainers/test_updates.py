"""From gradients to weights, held to a plain loop: add up, unscale, divide, clip, step."""

from __future__ import annotations

import copy
import io
import math
from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from astkit.trainers.updates import FIRST_SCALE, Updates
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.datasets import Loader
from astkit.gating import Gate, Policy, Selection
from astkit.profiling.ledger import Ledger
from astkit.trainers import Learner, TrainConfig, Trainer
from tests.trainers.states import same

SPLIT = (5, 11, 2, 7)  # the rows of four batches that add up to one of 25, as a gate leaves them
STEPS = 5
CLIPS = (None, 0.05, 1e3)  # 0.05 always clips here, 1000 never


def network(dtype=torch.float64):
    with rng.isolated("cpu", 0):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def batches(dtype=torch.float64, weights="none", number=STEPS, rows=25):
    """``(x, y, weight)`` for each step; "none" has no weights at all."""
    with rng.isolated("cpu", 1):
        for _ in range(number):
            weight = {
                "none": lambda: None,
                "float32": lambda: torch.randint(1, 17, (rows,)) / 8,  # sums of them are exact
                "float64": lambda: 0.1 + torch.rand(rows, dtype=torch.float64),
            }[weights]()
            yield torch.randn(rows, 6, dtype=dtype), torch.randint(0, 4, (rows,)), weight


def parts(x, y, weight, split=SPLIT):
    ends = list(accumulate(split))
    for first, last in zip([0, *ends], ends, strict=False):
        rows = slice(first, last)
        yield x[rows], y[rows], None if weight is None else weight[rows]


def plain_gradients(model, x, y, weight, clip_norm):
    """Of the weighted mean loss, one row after the other and in float64; and their norm.

    Clipping as in torch: by ``clip_norm / (norm + 1e-6)``, at most 1.
    """
    model = copy.deepcopy(model).double()
    weight = torch.ones(len(y)) if weight is None else weight
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for row in range(len(y)):
        loss = F.cross_entropy(model(x[row : row + 1].double()), y[row : row + 1])
        for total, gradient in zip(
            sums, torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            total += float(weight[row]) * gradient
    means = [total / math.fsum(weight.tolist()) for total in sums]
    norm = math.sqrt(sum(float(mean.square().sum()) for mean in means))
    scale = 1.0 if clip_norm is None else min(1.0, clip_norm / (norm + 1e-6))
    return [mean * scale for mean in means], norm


def losses_of(learner, x, y):
    return F.cross_entropy(learner.model(x), y, reduction="none")


def sgd(model, lr=0.5):
    return torch.optim.SGD(model.parameters(), lr=lr)


def config(**settings):
    return TrainConfig(**{"lr": 1e-2, **settings})


def same_bits(first, second):
    return same(dict(first.state_dict()), dict(second.state_dict()))


def assert_same_state(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


# --- sums, divided


@pytest.mark.parametrize(
    ("weights", "clip_norm", "micro_batch"),
    [("none", 0.05, 3), ("float32", None, 3), ("float64", 1e3, None)],
)  # fmt: skip
def test_accumulation_equals_one_batch_and_a_plain_loop(
    difference, weights, clip_norm, micro_batch
):
    options = {"clip_norm": clip_norm, "weight_decay": 0.1}
    parted = Learner(network(), config(accumulation_steps=4, micro_batch=micro_batch, **options))
    whole = Learner(network(), config(**options))
    plain = network()
    plain_adamw = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1, foreach=False)
    start = network()
    norms = []
    for x, y, weight in batches(weights=weights):
        losses = [parted.train(*part) for part in parts(x, y, weight)]
        torch.testing.assert_close(torch.cat(losses), whole.train(x, y, weight), rtol=0, atol=1e-10)
        gradients, norm = plain_gradients(plain, x, y, weight, clip_norm)
        for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
            parameter.grad = gradient
        plain_adamw.step()
        norms.append(norm)
    assert difference(parted.model, whole.model) < 1e-10
    assert difference(parted.model, plain) < 1e-10
    assert difference(plain, start) > 1e-2
    assert parted.updates.steps == whole.updates.steps == STEPS
    if clip_norm is not None:
        assert all((norm > clip_norm) == (clip_norm == 0.05) for norm in norms)


@settings(deadline=None, max_examples=20)
@given(
    split=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    clip_norm=st.sampled_from(CLIPS),
    micro_batch=st.none() | st.integers(1, 8),
)
def test_it_does_not_matter_how_rows_are_split(split, clip_norm, micro_batch):
    model = network()
    options = {"clip_norm": clip_norm, "micro_batch": micro_batch}
    learner = Learner(model, config(accumulation_steps=len(split), **options), optimizer=sgd(model))
    x, y, weight = next(batches(weights="float64", rows=sum(split)))
    gradients, _ = plain_gradients(model, x, y, weight, clip_norm)
    expected = [p.detach() - 0.5 * g for p, g in zip(model.parameters(), gradients, strict=True)]
    for part in parts(x, y, weight, split):
        if len(part[1]):
            learner.train(*part)
        else:
            learner.end_batch(Ledger())  # as a gate does that chose nothing
    torch.testing.assert_close(list(model.parameters()), expected, rtol=0, atol=1e-12)
    assert learner.updates.pending == 0


def test_a_batch_that_gave_no_rows_counts_as_a_batch_and_steps_on_nothing():
    model = network()
    learner = Learner(model, config(accumulation_steps=2))
    before = copy.deepcopy(model)
    learner.end_batch(Ledger())
    assert learner.updates.pending == 1
    learner.end_batch(Ledger())
    assert (learner.updates.pending, learner.updates.steps) == (0, 0)
    assert same_bits(model, before)
    assert not learner.optimizer.state  # AdamW's decay and counts have not moved either


def test_rows_that_weigh_nothing_change_nothing(difference, unchanged):
    x, y, weight = next(batches(weights="float64"))
    weight[::3] = 0
    some, kept = Learner(network(), config()), Learner(network(), config())
    some.train(x, y, weight)
    kept.train(x[weight > 0], y[weight > 0], weight[weight > 0])
    assert difference(some.model, kept.model) < 1e-12
    with unchanged(some.model):  # and without any weight there is no step
        some.train(x, y, torch.zeros(len(y)))
    assert some.updates.steps == 1


# --- through the trainer


class HandMade(Policy):
    """Was told beforehand which rows of the data set to take, at which weight."""

    def __init__(self, chosen):
        self.chosen = chosen

    def choose(self, batch):
        rows = [row for row, each in enumerate(batch.index.tolist()) if each in self.chosen]
        weight = torch.tensor([self.chosen[int(batch.index[row])] for row in rows])
        return Selection(torch.tensor(rows, dtype=torch.int64), weight)


class Weighted(HandMade):
    """Loads every row, some of them heavier; None chooses all of them."""

    def plan(self, run):
        rows = torch.arange(run.samples)
        return Selection(rows, 0.5 + rows % 5)

    def choose(self, batch):
        return None if self.chosen is None else super().choose(batch)


def chosen_rows(rows):
    """About a third of the rows, none of the micro-batch 40..47, weights in sixteenths."""
    drawn = rng.uniform(torch.arange(rows), 0, "chosen").tolist()
    return {
        row: (1 + row % 7) / 16
        for row, each in enumerate(drawn)
        if each < 0.3 and not 40 <= row < 48
    }


@pytest.mark.parametrize(
    ("gated", "weighted", "clip_norm"),
    [(False, True, 0.02), (True, False, 0.02), (True, True, None)],
)
def test_the_trainer_accumulates_to_one_big_batch(
    cnn, double_loader, difference, gated, weighted, clip_norm
):
    rows = 152  # the last pass leaves 3 batches of 8, which still get their step
    chosen = chosen_rows(rows) if gated else None
    policy = Weighted(chosen) if weighted else HandMade(chosen) if gated else None

    def train(batch_size, steps, clip_norm=clip_norm):
        trainer = Trainer(
            cnn(),
            double_loader(rows, batch_size, shuffle=False),
            epochs=2,
            policy=copy.deepcopy(policy),
            config=config(schedule="constant", clip_norm=clip_norm, accumulation_steps=steps),
        )
        trainer.run()
        return trainer

    parted, whole = train(8, 4), train(32, 1)
    assert difference(parted.model, whole.model) < 1e-10
    assert difference(whole.model, cnn()) > 1e-2
    assert parted.learner.updates.steps == whole.learner.updates.steps == 10
    assert parted.learner.updates.pending == 0
    trained = 2 * (len(chosen) if gated else rows)
    assert parted.ledger.samples.trained == whole.ledger.samples.trained == trained
    if clip_norm is not None:
        assert difference(whole.model, train(32, 1, None).model) > 1e-4


# --- the loss scale


def scaled(model, optimizer, clip_norm=None, every=1, growth_interval=2, **options):
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=growth_interval, **options)
    assert scaler.is_enabled()
    return Updates(model, optimizer, clip_norm, every, scaler)


def add(updates, x, y, weight=None):
    """What a learner does with a batch, in full precision."""
    losses = F.cross_entropy(updates.model(x), y, reduction="none")
    weight = torch.ones_like(losses) if weight is None else weight
    updates.backward((losses * weight).sum(), weight.sum(), len(y))
    updates.end_batch()


@pytest.mark.parametrize(
    ("dtype", "within", "weights", "clip_norm"),
    [(torch.float64, 1e-12, "float32", 0.05), (torch.float32, 1e-5, "none", None)],
)
def test_unscale_then_divide_then_clip_then_step(dtype, within, weights, clip_norm):
    """Any other order moves the weights elsewhere: the scale is 1024 and more, the weight 25."""
    model = network(dtype)
    updates = scaled(model, sgd(model), clip_norm, every=4)
    scales = []
    for x, y, weight in batches(dtype, weights):
        gradients, _ = plain_gradients(model, x, y, weight, clip_norm)
        expected = [
            p.detach().double() - 0.5 * g
            for p, g in zip(model.parameters(), gradients, strict=True)
        ]
        for part in parts(x, y, weight):
            add(updates, *part)
        scales.append(updates.scaler.get_scale())
        found = [p.detach().double() for p in model.parameters()]
        torch.testing.assert_close(found, expected, rtol=0, atol=within)
    # the scale moves with steps, not with the batches that they are made of
    assert scales == [1024.0, 2048.0, 2048.0, 4096.0, 4096.0]
    assert (updates.steps, updates.skipped, updates.take_lost()) == (STEPS, 0, 0)


class Overflowing:
    """Makes one gradient of ``parameter`` infinite, or NaN, for as long as it is switched on."""

    def __init__(self, parameter, value=math.inf):
        self.on, self.value = False, value
        parameter.register_hook(self.spoil)

    def spoil(self, gradient):
        if not self.on:
            return None
        spoiled = gradient.clone()
        spoiled.view(-1)[0] = self.value
        return spoiled


@pytest.mark.parametrize(
    ("kind", "clip_norm", "value"),
    [("sgd", None, math.inf), ("adamw", 1.0, math.nan), ("fused", None, math.inf)],
)
def test_an_overflow_skips_the_step_and_nothing_else(kind, clip_norm, value):
    model = network(torch.float32)
    optimizer = {
        "sgd": lambda: sgd(model),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=False),
        "fused": lambda: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
    }[kind]()
    updates = scaled(model, optimizer, clip_norm, every=2)
    overflowing = Overflowing(model[0].weight, value)
    rows = list(batches(torch.float32, number=4, rows=10))

    def step(x, y, _):
        for part in (slice(3), slice(3, None)):
            add(updates, x[part], y[part])
            overflowing.on = False

    for batch in rows[:2]:
        step(*batch)
    before, remembered = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    assert updates.scaler.get_scale() == 2048.0

    overflowing.on = True  # in the first of two batches: the rows of both are lost
    step(*rows[2])
    assert same_bits(model, before)
    assert_same_state(copy.deepcopy(optimizer.state_dict()), remembered)
    assert updates.scaler.get_scale() == 1024.0
    assert (updates.steps, updates.skipped, updates.pending) == (2, 1, 0)
    assert updates.take_lost() == 10
    assert updates.take_lost() == 0
    assert all(p.grad is None for p in model.parameters())

    x, y, _ = rows[3]  # the next step works, as if nothing had been
    twin = copy.deepcopy(before)
    twin_optimizer = type(optimizer)(twin.parameters(), lr=optimizer.param_groups[0]["lr"])
    twin_optimizer.load_state_dict(remembered)
    for parameter, gradient in zip(
        twin.parameters(), plain_gradients(twin, x, y, None, clip_norm)[0], strict=True
    ):
        parameter.grad = gradient.float()
    twin_optimizer.step()
    step(*rows[3])
    assert (updates.steps, updates.skipped, updates.take_lost()) == (3, 1, 0)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))
    assert not same_bits(model, before)


def test_rows_of_an_overflow_count_as_overflowed_and_not_as_trained(cnn, digits):
    model = cnn(dtype=torch.float32)
    trainer = Trainer(
        model,
        Loader(digits.subset(range(160)), 16),
        epochs=1,
        policy=Gate(0.5),
        config=config(precision="fp32", accumulation_steps=2),
        device="cpu",
    )
    trainer.learner.updates.scaler = GradScaler("cpu")
    overflowing = Overflowing(next(model.parameters()))
    trained = []
    for number, record in enumerate(trainer.steps(), start=1):
        if number <= 10:
            trained.append(record.metrics["trained"])
        overflowing.on = number in (3, 8)  # the batches 4 and 9, so the steps of 3, 4 and 9, 10
    samples = trainer.ledger.samples
    lost = trained[2] + trained[3] + trained[8] + trained[9]
    assert samples.overflowed == lost > 0
    assert samples.trained == sum(trained) - lost > 0
    assert samples.trained + samples.overflowed + samples.skipped == 160
    assert (trainer.learner.updates.steps, trainer.learner.updates.skipped) == (3, 2)
    cost = trainer._cost(next(trainer.train.batches(0)))  # what was lost was paid for all the same
    assert trainer.ledger.flops.backward == pytest.approx(sum(trained) * cost.backward)


def test_fp16_finds_its_scale_and_learns():
    """On a CPU, where it is no use, the same code runs: half precision, scaled sums, one step."""
    half = Learner(network(torch.float32), config(precision="fp16", accumulation_steps=4))
    assert half.updates.scaler.get_scale() == FIRST_SCALE
    seen = set()
    half.model[0].register_forward_hook(lambda *arguments: seen.add(arguments[2].dtype))
    # gradients that are scaled up like this do not fit into float16
    half.updates.scaler = GradScaler("cpu", init_scale=2.0**24)
    x, y, _ = next(batches(torch.float32))
    while half.updates.steps == 0 and half.updates.skipped < 24:
        for part in parts(x, y, None):
            half.train(*part)
    skipped = half.updates.skipped
    assert 0 < skipped < 24
    assert half.updates.take_lost() == 25 * skipped
    assert half.updates.scaler.get_scale() == 2.0 ** (24 - skipped)
    assert seen == {torch.float16}
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    full = Learner(network(torch.float32), config())
    full.train(x, y)
    ours, theirs = (
        nn.utils.parameters_to_vector(learner.model.parameters())
        - nn.utils.parameters_to_vector(network(torch.float32).parameters())
        for learner in (half, full)
    )
    assert F.cosine_similarity(ours, theirs, dim=0) > 0.99


# --- an attempt


def grads(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def fail(learner, x, y, error):
    with learner.updates.attempt():
        learner.updates.backward(losses_of(learner, x, y).sum(), 25.0, 25)
        raise error


class Stopped(BaseException):
    """Nothing that a handler of ordinary errors would see: as an interrupt from the keyboard."""


@pytest.mark.parametrize(
    ("error", "waiting", "weights"),
    [(RuntimeError, False, "none"), (RuntimeError, True, "float64"), (Stopped, True, "none")],
)
def test_an_attempt_that_fails_leaves_no_trace(error, waiting, weights):
    learner = Learner(network(), config(accumulation_steps=3))
    (x, y, weight), (x2, y2, weight2) = batches(weights=weights, number=2)
    if waiting:
        learner.gradients(x, y, weight)
    before, state = grads(learner.model), copy.deepcopy(learner.updates.state_dict())
    for _ in range(2):
        with pytest.raises(error):
            fail(learner, x2, y2, error)
        assert_same_state(grads(learner.model), before)
        assert_same_state(learner.updates.state_dict(), state)
    # and what follows is as if it had never been
    learner.gradients(x2, y2, weight2)
    twin = Learner(network(), config(accumulation_steps=3))
    if waiting:
        twin.gradients(x, y, weight)
    twin.gradients(x2, y2, weight2)
    assert_same_state(grads(learner.model), grads(twin.model))
    assert_same_state(learner.updates.state_dict(), twin.updates.state_dict())


def test_parameters_that_one_batch_does_not_reach_keep_what_waits():
    class TwoHeads(nn.ModuleList):
        head = 0

        def forward(self, x):
            return self[self.head](x)

    with rng.isolated("cpu", 0):
        model = TwoHeads(nn.Linear(6, 4, dtype=torch.float64) for _ in "ab")
    learner = Learner(model, config())
    x, y, _ = next(batches())
    expected = []
    for model.head in (0, 1):
        learner.gradients(x, y)
        loss = F.cross_entropy(model(x), y, reduction="sum")
        expected += torch.autograd.grad(loss, list(model[model.head].parameters()))
    torch.testing.assert_close(grads(model), expected, rtol=0, atol=1e-13)


def test_a_broken_row_takes_none_of_its_batch_and_all_before_it_stay():
    learner = Learner(network(), config(accumulation_steps=2, micro_batch=5))
    (x, y, _), (x2, y2, _) = batches(number=2)
    learner.train(x, y)
    before, state = grads(learner.model), copy.deepcopy(learner.updates.state_dict())
    x2[12] = math.inf  # in the third of five micro-batches
    with pytest.raises(FloatingPointError, match="training loss became nan"):
        learner.train(x2, y2)
    assert_same_state(grads(learner.model), before)
    assert_same_state(learner.updates.state_dict(), state)
    assert same_bits(learner.model, network())


# --- state


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(("fp16", "weights"), [(False, "none"), (True, "float32")])
@pytest.mark.parametrize("done", [0, 3, 6])
def test_a_state_taken_between_two_batches_goes_on_to_the_same_bits(done, fp16, weights):
    options = config(accumulation_steps=4, precision="fp16" if fp16 else "fp32")
    rows = [part for batch in batches(torch.float32, weights, number=4) for part in parts(*batch)]

    def learner():
        made = Learner(network(torch.float32), options)
        made.model[0].bias.requires_grad_(False)  # one without a gradient
        if fp16:
            made.updates.scaler.set_growth_interval(2)
        return made

    first = learner()
    for part in rows[:done]:
        first.train(*part)
    state = through_a_file(
        {
            "model": first.model.state_dict(),
            "optimizer": first.optimizer.state_dict(),
            "updates": first.updates.state_dict(),
        }
    )
    second = learner()
    second.gradients(*rows[-1])  # left over from something else, and to be forgotten
    second.model.load_state_dict(state["model"])
    second.optimizer.load_state_dict(state["optimizer"])
    second.updates.load_state_dict(state["updates"])
    kept = copy.deepcopy(state["updates"])
    for part in rows[done:]:
        first.train(*part)
        second.train(*part)
    assert same_bits(first.model, second.model)
    assert_same_state(first.updates.state_dict(), second.updates.state_dict())
    assert first.updates.steps + first.updates.skipped == 4
    assert not same_bits(first.model, network(torch.float32))
    assert_same_state(state["updates"], kept)  # and belongs to nobody


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_that_wait_at_the_end_of_an_epoch_are_stepped_with(precision):
    options = config(accumulation_steps=4, precision=precision)
    first, second = (Learner(network(torch.float32), options) for _ in range(2))
    first.train(*next(batches(torch.float32)))
    second.updates.load_state_dict(through_a_file(first.updates.state_dict()))
    for learner in (first, second):
        learner.updates.flush()
    assert first.updates.steps == second.updates.steps == 1
    assert same_bits(first.model, second.model)


def test_a_batch_without_rows_is_part_of_the_state(difference):
    """A group of four that began with a batch of which nothing was chosen."""
    first, second = (Learner(network(), config(accumulation_steps=4)) for _ in range(2))
    first.end_batch(Ledger())
    second.updates.load_state_dict(through_a_file(first.updates.state_dict()))
    assert second.updates.pending == 1
    x, y, weight = next(batches())
    for part in [*parts(x, y, weight)][:3]:
        first.train(*part)
        second.train(*part)
    assert first.updates.steps == second.updates.steps == 1
    assert same_bits(first.model, second.model)


def test_gradients_that_somebody_else_left_are_no_part_of_a_step():
    """As of a backward pass that a reader of the notebook made to look at something."""
    learner, plain = (Learner(network(), config(clip_norm=None)) for _ in range(2))
    for batch in batches(number=2):  # before the first step, and between two
        learner.model(batch[0]).square().sum().backward()
        assert learner.model[0].weight.grad.abs().max() > 0
        learner.train(*batch)
        plain.train(*batch)
        assert same_bits(learner.model, plain.model)


# --- what is not finite


@pytest.mark.parametrize(("value", "every", "clip_norm"), [(math.inf, 1, 1.0), (math.nan, 2, None)])
def test_a_gradient_that_is_not_finite_is_refused_before_weights_change(value, every, clip_norm):
    """The loss alone does not tell: its gradient may overflow while it is finite."""
    learner = Learner(network(), config(accumulation_steps=every, clip_norm=clip_norm))
    (x, y, _), (x2, y2, _) = batches(number=2)
    for _ in range(every):
        learner.train(x, y)
    before, remembered = copy.deepcopy(learner.model), copy.deepcopy(learner.optimizer.state_dict())
    overflowing = Overflowing(learner.model[0].weight, value)
    overflowing.on = True
    for _ in range(every - 1):
        learner.train(x2, y2)
    with pytest.raises(FloatingPointError, match=r"gradient's norm became (inf|nan): .*lower lr"):
        learner.train(x2, y2)
    assert same_bits(learner.model, before)
    assert_same_state(copy.deepcopy(learner.optimizer.state_dict()), remembered)
    assert learner.updates.steps == 1
    # who catches it goes on with the next batch as if this one had never been
    overflowing.on = False
    twin = Learner(before, config(accumulation_steps=every, clip_norm=clip_norm))
    twin.optimizer.load_state_dict(remembered)
    for each in (learner, twin):
        for _ in range(every):
            each.train(x, y)
    assert same_bits(learner.model, twin.model)
    assert not same_bits(learner.model, network())


class Elsewhere(torch.Tensor):
    """A tensor on the CPU that says it lies on an accelerator."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self):
        return torch.device("cuda")


@pytest.fixture
def accelerated(monkeypatch):
    """Makes updates guard what they see as on a device: with a flag, and without waiting."""

    def make(updates):
        guard = updates._guard
        monkeypatch.setattr(
            updates, "_guard", lambda value, what: guard(value.as_subclass(Elsewhere), what)
        )
        updates._flagged = True

    return make


def flagged(accelerated, clip_norm=1.0):
    learner = Learner(network(torch.float32), config(clip_norm=clip_norm, fused=True))
    assert learner.updates._flagged  # a fused AdamW is one that looks at the flag
    accelerated(learner.updates)
    return learner


@pytest.mark.parametrize(("broken", "clip_norm"), [("loss", None), ("gradient", 1.0)])
def test_on_a_device_a_flag_keeps_the_weights_until_somebody_asks(accelerated, broken, clip_norm):
    learner = flagged(accelerated, clip_norm)
    rows = list(batches(torch.float32, number=4))
    learner.train(*rows[0])
    learner.updates.check()
    state = learner.updates.state_dict()
    before, remembered = copy.deepcopy(learner.model), copy.deepcopy(learner.optimizer.state_dict())
    assert not same_bits(learner.model, network(torch.float32))
    x, y, _ = rows[1]
    if broken == "loss":
        learner.train(x * math.inf, y)
    else:
        overflowing = Overflowing(learner.model[0].weight)
        overflowing.on = True
        learner.train(x, y)
        overflowing.on = False
    # nobody has waited, so training goes on; on good batches too the weights stay
    learner.train(*rows[2])
    learner.train(*rows[3])
    assert same_bits(learner.model, before)
    assert_same_state(copy.deepcopy(learner.optimizer.state_dict()), remembered)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="loss or the gradient became not finite"):
            learner.updates.check()
    learner.updates.load_state_dict(state)  # which lowers the flag
    learner.train(*rows[2])
    learner.updates.check()
    assert not same_bits(learner.model, before)


def test_rows_that_weigh_nothing_change_nothing_on_a_device(accelerated):
    """There the sum of the weights is unknown until the step, which the flag then skips."""
    learner = flagged(accelerated)
    rows = list(batches(torch.float32, number=3))
    learner.train(*rows[0])
    before, remembered = copy.deepcopy(learner.model), copy.deepcopy(learner.optimizer.state_dict())
    x, y, _ = rows[1]
    learner.gradients(x, y, torch.zeros(len(y)))
    learner.updates._total = torch.zeros(()).as_subclass(Elsewhere)
    learner.end_batch(Ledger())
    learner.updates.check()
    assert same_bits(learner.model, before)
    assert_same_state(copy.deepcopy(learner.optimizer.state_dict()), remembered)
    learner.train(*rows[2])
    learner.updates.check()
    assert not same_bits(learner.model, before)


def test_a_device_whose_fused_kernels_may_ignore_the_flag_is_waited_for():
    model = network(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    assert Updates(model, optimizer)._flagged
    assert not Updates(copy.deepcopy(model).to("meta"), optimizer)._flagged


def test_the_flag_of_a_sound_run_changes_nothing(accelerated):
    """A zero flag goes through the fused kernel to the bit of a step without one."""
    learner = flagged(accelerated)
    plain = Learner(network(torch.float32), config(fused=True))
    for batch in batches(torch.float32):
        learner.train(*batch)
        plain.train(*batch)
        learner.updates.check()
    assert same_bits(learner.model, plain.model)
    assert_same_state(
        copy.deepcopy(learner.optimizer.state_dict()), copy.deepcopy(plain.optimizer.state_dict())
    )


def test_an_optimizer_of_one_layer_clips_and_trains_that_layer_alone():
    model, alone = network(), network()
    learner = Learner(model, config(clip_norm=0.05), optimizer=sgd(model[2]))
    reference = sgd(alone[2])
    for x, y, _ in batches():
        learner.train(x, y)
        alone.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        nn.utils.clip_grad_norm_(alone[2].parameters(), 0.05)
        reference.step()
    torch.testing.assert_close(model.state_dict(), alone.state_dict(), rtol=0, atol=1e-12)
    assert all(p.grad is None for p in model.parameters())


DATA = TensorDataset(torch.randn(32, 6), torch.arange(32) % 4)


def trained_on(model, **options):
    return Trainer(model, DATA, epochs=2, batch_size=8, device="cpu", **options)


class Either(nn.Module):
    """Two layers, of which a batch uses one: that which its first number names."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)])

    def forward(self, x):
        return self.layers[int(x[0, 0])](x)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_batch_that_uses_no_parameter_of_the_optimizer_takes_no_step(precision, unchanged):
    model, y = Either(), torch.tensor([0, 1, 2])
    optimizer = torch.optim.SGD(model.layers[1].parameters(), lr=0.1)
    learner = Learner(model, TrainConfig(precision=precision), optimizer=optimizer)
    with unchanged(model):
        learner.train(torch.zeros(3, 6), y)
    before = model.layers[1].weight.detach().clone()
    learner.train(torch.ones(3, 6), y)
    assert not torch.equal(model.layers[1].weight, before)
    assert learner.updates.steps == 1


def test_an_optimizer_of_parameters_outside_the_model_is_refused():
    model, other = network(torch.float32), network(torch.float32)
    with pytest.raises(ValueError, match=r"4 of the optimizer's 4 .* from model\.parameters\(\)"):
        trained_on(model, optimizer=sgd(other))
    before, model[2] = sgd(model), nn.Linear(16, 4)  # it still holds the layer that was replaced
    with pytest.raises(ValueError, match="2 of the optimizer's 4 parameters are not the model's"):
        trained_on(model, optimizer=before)
    trained_on(model, optimizer=sgd(model[2])).run()


class Proxies(nn.Module):
    """A criterion with a trainable vector per class."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Parameter(torch.eye(4))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs @ self.vectors, targets, reduction="none")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_criterion_with_parameters_is_trained_as_a_part_of_the_model(precision):
    model, criterion = nn.Linear(6, 4), Proxies()
    with pytest.raises(ValueError, match=r"criterion Proxies has .* with model\.loss = criterion"):
        trained_on(model, criterion=criterion)
    trained_on(model, criterion=Proxies().requires_grad_(False))
    model.loss = criterion
    trained_on(model, criterion=criterion, config=TrainConfig(precision=precision)).run()
    assert not torch.equal(criterion.vectors, torch.eye(4))
    assert criterion.vectors.grad is None
