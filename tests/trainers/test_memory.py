"""When memory runs out: fewer rows at a time, the same rows, the same gradients."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from astkit.trainers.learner import out_of_memory
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import rng
from astkit.datasets.batch import Batch
from astkit.gating import Gate
from astkit.trainers import Learner, TrainConfig, Trainer

ROWS, BATCH, CLASSES = 56, 16, 4  # 4 batches, the last of 8 rows
EXHAUSTED = "CUDA out of memory. Tried to allocate 2.00 GiB (a simulated one)"


class Exhausting(torch.autograd.Function):
    """Passes values on, and finds no memory for the gradients of more than ``limit`` rows."""

    @staticmethod
    def forward(context, x, limit):
        context.limit = limit
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if len(gradient) > context.limit:
            raise torch.OutOfMemoryError(EXHAUSTED)
        return gradient, None


class Limited(nn.Module):
    """A network with memory for ``limit`` rows; ``where`` says which pass takes more.

    The first column of its inputs numbers the rows. Its last output is the row's entry in
    ``tally``, which `counting` adds to the row's loss: so ``tally.grad`` holds what each row has
    counted for in the gradients. "training": only passes with gradients run out of memory.
    """

    def __init__(self, where="forward", limit=ROWS):
        super().__init__()
        with rng.isolated("cpu", 0):
            layers = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES)
        self.net = nn.Sequential(*layers).double()
        self.tally = nn.Parameter(torch.zeros(ROWS, dtype=torch.float64))
        self.where, self.limit = where, limit
        self.sizes: list[int] = []

    def forward(self, x):
        self.sizes.append(len(x))
        needs = {
            "forward": True,
            "backward": False,
            "training": torch.is_grad_enabled(),
            "scoring": not torch.is_grad_enabled(),
        }
        if needs[self.where] and len(x) > self.limit:
            raise torch.OutOfMemoryError(EXHAUSTED)
        logits = self.net(x[:, 1:])
        if self.where == "backward":
            logits = Exhausting.apply(logits, self.limit)
        return torch.cat([logits, self.tally[x[:, 0].long()][:, None]], 1)


def counting(outputs, targets):
    return F.cross_entropy(outputs[:, :-1], targets, reduction="none") + outputs[:, -1]


def rows(number=ROWS, weighted=False):
    with rng.isolated("cpu", 1):
        x = torch.randn(number, 7, dtype=torch.float64)
        y = torch.randint(0, CLASSES, (number,))
        weight = 0.1 + torch.rand(number, dtype=torch.float64)
    x[:, 0] = torch.arange(number)
    return x, y, weight if weighted else None


def build(where="forward", limit=ROWS, **options):
    config = TrainConfig(**{"lr": 1e-2, **options})
    return Learner(Limited(where, limit), config, criterion=counting)


def assert_same_gradients(ours, theirs):
    pairs = zip(ours.model.named_parameters(), theirs.model.named_parameters(), strict=True)
    for (name, first), (_, second) in pairs:
        assert second.grad.abs().sum() > 0
        torch.testing.assert_close(
            first.grad, second.grad, rtol=0, atol=1e-12, msg=lambda text, name=name: name + text
        )


# --- the learner


@pytest.mark.parametrize(
    ("where", "limit", "shrunk", "weighted"),
    [
        ("forward", 56, [], True),
        ("training", 55, [28], False),
        ("forward", 13, [28, 14, 7], True),
        ("backward", 1, [28, 14, 7, 4, 2, 1], False),
    ],
)
def test_gradients_are_those_of_enough_memory(where, limit, shrunk, weighted):
    short, enough = build(where, limit), build()
    batch = rows(weighted=weighted)
    losses = short.gradients(*batch)
    torch.testing.assert_close(losses, enough.gradients(*batch), rtol=0, atol=1e-12)
    assert_same_gradients(short, enough)
    counted = torch.ones(ROWS) if batch[2] is None else batch[2]  # each row once, at its weight
    torch.testing.assert_close(short.model.tally.grad, counted.double(), rtol=0, atol=1e-15)
    assert short.shrunk == shrunk
    assert short.micro_batch == (shrunk[-1] if shrunk else None)
    assert enough.shrunk == []
    # a further batch is not tried at a size that did not fit
    short.model.sizes.clear()
    short.gradients(*batch)
    assert max(short.model.sizes) <= limit
    assert short.shrunk == shrunk


@pytest.mark.parametrize(("where", "call"), [("forward", 4), ("backward", 7)])
def test_memory_may_run_out_anywhere_in_a_batch(where, call):
    """In the middle of a batch some gradients are there already: they must not count twice."""
    short, enough = (build(micro_batch=8, accumulation_steps=3) for _ in range(2))
    batch = rows(weighted=True)
    short.train(*batch)
    enough.train(*batch)
    failing = FailOnce(short.model, call, where)
    short.train(*batch)
    enough.train(*batch)
    assert failing.failed
    assert_same_gradients(short, enough)
    torch.testing.assert_close(short.model.tally.grad, 2 * batch[2], rtol=0, atol=1e-14)
    assert (short.shrunk, short.micro_batch) == ([4], 4)
    assert short.updates.pending == 2


class FailOnce:
    """Lets memory run out in one forward or backward pass: the ``call``-th from now."""

    def __init__(self, model, call, where):
        self.left, self.failed = call, False
        if where == "forward":
            model.register_forward_hook(self.count)
        else:
            model.net[0].weight.register_hook(self.count)

    def count(self, *_):
        self.left -= 1
        if self.left == 0:
            self.failed = True
            raise torch.OutOfMemoryError(EXHAUSTED)


def test_other_errors_and_a_row_that_does_not_fit_leave_no_trace(unchanged):
    def failing(*_):
        calls.append(1)
        raise error

    for error in (RuntimeError("of another kind"), KeyboardInterrupt(), None):
        learner, calls = build(accumulation_steps=2), []
        learner.train(*rows())
        grads = [p.grad.clone() for p in learner.model.parameters()]
        state = copy.deepcopy(learner.updates.state_dict())
        learner.model.limit = 0
        if error is not None:
            learner.model.register_forward_hook(failing)
            learner.model.limit = ROWS
        kind = torch.OutOfMemoryError if error is None else type(error)
        with unchanged(learner.model), pytest.raises(kind):
            learner.train(*rows())
        assert len(calls) == (error is not None)  # tried once, and no more
        assert learner.micro_batch == (1 if error is None else None)
        after = [p.grad for p in learner.model.parameters()]
        torch.testing.assert_close(after, grads, rtol=0, atol=0)
        torch.testing.assert_close(learner.updates.state_dict(), state, rtol=0, atol=0)


class Held:
    """A tensor that a graph keeps for its backward pass."""

    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize(("where", "call"), [("forward", 3), ("backward", 1)])
def test_nothing_of_a_failed_attempt_is_alive_in_the_next(where, call):
    """Or the memory that it took would be missing for good."""
    learner = build(micro_batch=8)
    held, alive = [], []

    def pack(tensor):
        kept = Held(tensor.detach())  # or a tensor would hold the graph that holds it
        held.append(weakref.ref(kept))
        return kept

    def watch(*_):
        alive.append(sum(ref() is not None for ref in held))

    learner.model.register_forward_pre_hook(watch)
    failing = FailOnce(learner.model, call, where)
    x, y, _ = rows(24)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        learner.gradients(x, y)
    assert failing.failed
    assert len(held) > 6  # each pass keeps something
    assert alive == [0] * (call + 6)


def test_what_runs_out_of_memory():
    assert out_of_memory(torch.OutOfMemoryError(EXHAUSTED))
    assert out_of_memory(MemoryError())
    assert out_of_memory(RuntimeError("HIP out of memory. Tried to allocate 1.0 GiB"))
    assert out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError) as caught:  # what torch really says where a CPU has no more
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory(caught.value)


# --- scoring and evaluation


def test_scoring_backs_off_to_the_same_scores():
    short, enough = build("scoring", 13), build()
    x, y, _ = rows()
    gates = [Gate(0.3, "loss_and_contrast", criterion=counting) for _ in range(2)]
    scores, expected = (
        gate.scores(learner.scored(Batch(None, x, y)))
        for gate, learner in zip(gates, (short, enough), strict=True)
    )
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12)
    assert short.shrunk == [28, 14, 7]
    ours, theirs = (gate.select(scores) for gate in gates)
    assert ours.index.tolist() == theirs.index.tolist()
    assert 0 < len(ours) < ROWS
    assert short.model.training


def test_outputs_back_off_in_the_mode_that_the_model_is_in():
    short, enough = build("forward", 10), build()
    x, _, _ = rows()
    for mode in (True, False):
        short.model.train(mode)
        torch.testing.assert_close(short.outputs(x), enough.outputs(x), rtol=0, atol=1e-12)
        assert short.model.training is mode
    assert short.shrunk == [28, 14, 7]


# --- the trainer


POLICIES = {
    "dense": lambda: None,
    "gated": lambda: Gate(0.4),
    "top_k": lambda: Gate(0.4, "loss", "top_k"),
}


class Kept:
    """An observer that keeps all that it is told, and which rows each optimizer step took."""

    def __init__(self):
        self.told, self.counted = [], []

    def log(self, step, *, phase, **metrics):
        self.told.append((step, phase, metrics))

    def close(self):
        pass

    def before_step(self, optimizer, *_):
        (tally,) = (
            p for group in optimizer.param_groups for p in group["params"] if p.shape == (ROWS,)
        )
        self.counted.append(tally.grad.clone())


def epochs(where, limit, step, accumulation_steps=1, number=2):
    """A trainer after its run, and what was told and counted meanwhile."""
    x, y, _ = rows()
    kept = Kept()
    trainer = Trainer(
        Limited(where, limit),
        DataLoader(TensorDataset(x, y), BATCH, shuffle=True),
        DataLoader(TensorDataset(x, y), 40),
        epochs=number,
        policy=POLICIES[step](),
        config=TrainConfig(lr=1e-2, clip_norm=None, accumulation_steps=accumulation_steps),
        criterion=counting,
        observers=[kept],
        device="cpu",
    )
    trainer.learner.optimizer.register_step_pre_hook(kept.before_step)
    trainer.run()
    return trainer, kept


@pytest.mark.parametrize(
    ("step", "where", "accumulation_steps"),
    [("dense", "forward", 2), ("gated", "training", 1), ("top_k", "scoring", 2)],
)
def test_a_run_loses_and_doubles_no_row(step, where, accumulation_steps, difference):
    limit = 3
    short, told = epochs(where, limit, step, accumulation_steps)
    enough, expected = epochs("forward", ROWS, step, accumulation_steps)
    assert len(told.counted) == len(expected.counted) == 8 // accumulation_steps
    for ours, theirs in zip(told.counted, expected.counted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15)
        counts = ours[ours != 0]  # a mean over the rows of the step: each of them once
        torch.testing.assert_close(counts, torch.full_like(counts, 1 / len(counts)))
    trained = [int((counted != 0).sum()) for counted in told.counted]
    assert sum(trained) == short.ledger.samples.trained
    assert short.ledger.samples == enough.ledger.samples
    assert short.ledger.flops == enough.ledger.flops
    if step == "dense":
        assert sum(trained) == 2 * ROWS
        for number in range(2):
            once = torch.stack(told.counted).unflatten(0, (2, -1))[number] != 0
            assert (once.sum(0) == 1).all()
    else:
        assert 0 < sum(trained) < 2 * ROWS
        for ours, theirs in zip(short.history.steps, enough.history.steps, strict=True):
            assert (ours["trained"], ours["rate"]) == (theirs["trained"], theirs["rate"])
            assert ours["threshold"] == pytest.approx(theirs["threshold"], rel=1e-9)
        assert short.step.gate.active == enough.step.gate.active
    assert difference(short.model, enough.model) < 1e-9
    assert short.learner.micro_batch is not None
    assert short.learner.micro_batch <= limit
    for ours, theirs in zip(short.history.epochs, enough.history.epochs, strict=True):
        for name in ("val_accuracy", "val_loss", "trained", "flops"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-9)


def test_each_halving_is_an_event_of_the_run():
    trainer, kept = epochs("forward", 3, "gated")
    events = [(at, metrics) for at, phase, metrics in kept.told if phase == "event"]
    values = [metrics["value"] for _, metrics in events]
    assert {metrics["name"] for _, metrics in events} == {"micro_batch"}
    assert values == sorted(values, reverse=True)
    assert values[0] == 8  # half of the first batch
    assert values[-1] == trainer.learner.micro_batch <= 3
    assert events[0][0] == 1  # with the first batch
    assert trainer.learner.shrunk == []
    _, quiet = epochs("forward", ROWS, "gated")
    assert not [phase for _, phase, _ in quiet.told if phase == "event"]


def test_evaluation_backs_off_to_the_same_answers():
    x, y, _ = rows()
    data = DataLoader(TensorDataset(x, y), ROWS)
    short, _ = epochs("scoring", ROWS, "dense", number=1)
    enough, _ = epochs("scoring", ROWS, "dense", number=1)
    short.model.limit = 20
    ours, theirs = short.evaluate(data), enough.evaluate(data)
    assert ours["accuracy"] == theirs["accuracy"]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
    assert short.learner.micro_batch == 14
    assert enough.learner.micro_batch is None
