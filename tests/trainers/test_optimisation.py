"""From a batch to new weights, held to a plain loop: sum, unscale, divide, clip, step."""

import copy
import math
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR

from astkit import rng
from astkit.datasets import Batch
from astkit.gating import Gate, Policy, Selection, cross_entropy_rows
from astkit.trainers import TrainConfig, Trainer
from astkit.trainers.optimisation import Optimisation
from tests import build
from tests.build import refused
from tests.trainers.states import flagged, same

SPLIT = (5, 11, 2, 7)  # the rows of four batches that add up to one of 25, as a gate leaves them
STEPS = 5
CLIPS = (None, 0.05, 1e3)  # 0.05 always clips here, 1000 never
Parts = Iterator[tuple[Tensor, Tensor, Tensor | None]]


def network(dtype: torch.dtype = torch.float64) -> Any:
    with rng.isolated("cpu", 0):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def made(model: nn.Module | None = None, **options: Any) -> Optimisation:
    optimizer = options.pop("optimizer", None)
    config = TrainConfig(**{"lr": 1e-2, **options})
    return Optimisation(model or network(), config, cross_entropy_rows, optimizer)


def batches(
    dtype: torch.dtype = torch.float64, weights: str = "none", number: int = STEPS, rows: int = 25
) -> Parts:
    """``(x, y, weight)`` for each step; "none" has no weights at all."""
    with rng.isolated("cpu", 1):
        for _ in range(number):
            weight = None
            if weights == "float32":
                weight = torch.randint(1, 17, (rows,)) / 8  # sums of them are exact
            elif weights == "float64":
                weight = 0.1 + torch.rand(rows, dtype=torch.float64)
            yield torch.randn(rows, 6, dtype=dtype), torch.randint(0, 4, (rows,)), weight


def parts(x: Tensor, y: Tensor, weight: Tensor | None, split: Any = SPLIT) -> Parts:
    ends = list(accumulate(split))
    for first, last in zip([0, *ends], ends, strict=False):
        rows = slice(first, last)
        yield x[rows], y[rows], None if weight is None else weight[rows]


def train(work: Optimisation, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    return work.train(Batch(None, x, y), weight)


def add(work: Optimisation, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Add gradients, without counting a batch."""
    total = float(len(x)) if weight is None else weight.sum()
    return work.accumulate(Batch(None, x, y), weight, total)


def plain_gradients(
    model: nn.Module, x: Tensor, y: Tensor, weight: Tensor | None, clip_norm: float | None
) -> tuple[list[Tensor], float]:
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


def sgd(model: nn.Module, lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def same_bits(first: nn.Module, second: nn.Module) -> bool:
    return same(dict(first.state_dict()), dict(second.state_dict()))


def grads(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


# --- sums, divided


@settings(deadline=None, max_examples=20)
@given(
    split=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    clip_norm=st.sampled_from(CLIPS),
    micro_batch=st.none() | st.integers(1, 8),
)
def test_it_does_not_matter_how_rows_are_split(split, clip_norm, micro_batch):
    model = network()
    options: dict[str, Any] = {"clip_norm": clip_norm, "micro_batch": micro_batch}
    work = made(model, accumulation_steps=len(split), optimizer=sgd(model), **options)
    x, y, weight = next(batches(weights="float64", rows=sum(split)))
    gradients, _ = plain_gradients(model, x, y, weight, clip_norm)
    expected = [p.detach() - 0.5 * g for p, g in zip(model.parameters(), gradients, strict=True)]
    for part in parts(x, y, weight, split):
        if len(part[1]):
            train(work, *part)
        else:
            work.end_batch()  # as for a gate that chose nothing
    torch.testing.assert_close(list(model.parameters()), expected, rtol=0, atol=1e-12)
    assert work.accumulated.pending == 0


def test_rows_without_weight_change_nothing(difference: Any, unchanged: Any) -> None:
    x, y, weight = next(batches(weights="float64"))
    assert weight is not None
    weight[::3] = 0
    some, kept = made(), made()
    train(some, x, y, weight)
    train(kept, x[weight > 0], y[weight > 0], weight[weight > 0])
    assert difference(some.model, kept.model) < 1e-12
    with unchanged(some.model):  # and without any weight there is no step
        train(some, x, y, torch.zeros(len(y)))
    assert some.steps == 1


class Kept(Policy):
    """Of each batch about a third of the rows, weighted twice, and of the batch 40..47 none."""

    def plan(self, run: Any) -> Selection:
        rows = torch.arange(run.samples)
        return Selection(rows, 0.5 + rows % 5)

    def choose(self, batch: Any) -> Selection:
        drawn = rng.uniform(batch.index, 0, "kept") < 0.3
        rows = (drawn & (batch.index // 8 != 5)).nonzero().squeeze(1)
        return Selection(rows, (1 + batch.index[rows] % 7) / 16)


@pytest.mark.parametrize("policy", [None, Kept()])
def test_the_trainer_accumulates_to_one_big_batch(cnn, double_loader, difference, policy):
    def trained(batch_size: int, steps: int) -> Trainer:
        config = TrainConfig(lr=1e-2, schedule="constant", accumulation_steps=steps)
        # the last pass leaves 3 batches of 8, which still get their step
        data = double_loader(152, batch_size, shuffle=False)
        trainer = Trainer(cnn(), data, epochs=2, policy=policy, config=config)
        trainer.run()
        return trainer

    parted, whole = trained(8, 4), trained(32, 1)
    assert difference(parted.model, whole.model) < 1e-10
    assert difference(whole.model, cnn()) > 1e-2
    assert parted.optimisation.steps == whole.optimisation.steps == 10
    assert parted.ledger.samples == whole.ledger.samples
    assert (whole.ledger.samples.trained < 152) == (policy is not None)


def test_an_optimizer_of_one_layer_clips_and_trains_that_layer_alone() -> None:
    model, alone = network(), network()
    work = made(model, clip_norm=0.05, optimizer=sgd(model[2]))
    reference = sgd(alone[2])
    for x, y, _ in batches():
        train(work, x, y)
        alone.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        nn.utils.clip_grad_norm_(alone[2].parameters(), 0.05)
        reference.step()
    torch.testing.assert_close(model.state_dict(), alone.state_dict(), rtol=0, atol=1e-12)


def test_gradients_that_somebody_else_left_are_no_part_of_a_step() -> None:
    """As of a backward pass that a reader of the notebook made to look at something."""
    work, plain = made(clip_norm=None), made(clip_norm=None)
    for batch in batches(number=2):  # before the first step, and between two
        work.model(batch[0]).square().sum().backward()
        train(work, *batch)
        train(plain, *batch)
        assert same_bits(work.model, plain.model)


# --- the loss scale of fp16


def scaled(model: nn.Module, **options: Any) -> Optimisation:
    """With a loss scale as for fp16, in full precision."""
    work = made(model, **options)
    work.scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    return work


@pytest.mark.parametrize(
    ("dtype", "within", "weights", "clip_norm"),
    [(torch.float64, 1e-12, "float32", 0.05), (torch.float32, 1e-5, "none", None)],
)
def test_unscale_then_divide_then_clip_then_step(dtype, within, weights, clip_norm):
    """Any other order moves the weights elsewhere: the scale is 1024 and more, the weight 25."""
    model = network(dtype)
    work = scaled(model, optimizer=sgd(model), clip_norm=clip_norm, accumulation_steps=4)
    scales = []
    for x, y, weight in batches(dtype, weights):
        gradients, _ = plain_gradients(model, x, y, weight, clip_norm)
        expected = [
            p.detach().double() - 0.5 * g
            for p, g in zip(model.parameters(), gradients, strict=True)
        ]
        for part in parts(x, y, weight):
            train(work, *part)
        assert work.scaler is not None
        scales.append(work.scaler.get_scale())
        found = [p.detach().double() for p in model.parameters()]
        torch.testing.assert_close(found, expected, rtol=0, atol=within)
    # the scale moves with steps, not with the batches that they are made of
    assert scales == [1024.0, 2048.0, 2048.0, 4096.0, 4096.0]
    assert (work.steps, work.skipped, work.ledger.counts.overflowed) == (STEPS, 0, 0)


class Overflowing:
    """Makes one gradient of ``parameter`` infinite, or NaN, for as long as it is switched on."""

    def __init__(self, parameter: Tensor, value: float = math.inf) -> None:
        self.on, self.value = False, value
        parameter.register_hook(self.spoil)

    def spoil(self, gradient: Tensor) -> Tensor | None:
        if not self.on:
            return None
        spoiled = gradient.clone()
        spoiled.view(-1)[0] = self.value
        return spoiled


@pytest.mark.parametrize(
    ("fused", "clip_norm", "value"), [(False, 1.0, math.nan), (True, None, math.inf)]
)
def test_an_overflow_skips_the_step_and_nothing_else(fused, clip_norm, value):
    def learner() -> Optimisation:
        model = network(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        return scaled(model, optimizer=optimizer, clip_norm=clip_norm, accumulation_steps=2)

    work, rows = learner(), list(batches(torch.float32, number=4, rows=10))
    overflowing = Overflowing(work.model[0].weight, value)
    for number, (x, y, _) in enumerate(rows):
        overflowing.on = number == 2  # in the first of two batches: the rows of both are lost
        before = copy.deepcopy(work.weights())
        for part in (slice(3), slice(3, None)):
            train(work, x[part], y[part])
            overflowing.on = False
        assert same(before, copy.deepcopy(work.weights())) == (number == 2)
        assert work.ledger.counts.overflowed == (10 if number >= 2 else 0)
    assert (work.steps, work.skipped, work.accumulated.pending) == (3, 1, 0)
    # the step after it is as if nothing had been
    twin = learner()
    for x, y, _ in (rows[0], rows[1], rows[3]):
        for part in (slice(3), slice(3, None)):
            train(twin, x[part], y[part])
    torch.testing.assert_close(work.model.state_dict(), twin.model.state_dict())


def test_rows_of_an_overflow_count_as_overflowed_and_not_as_trained(cnn: Any, digits: Any) -> None:
    model = cnn(dtype=torch.float32)
    trainer = Trainer(
        model,
        digits.subset(range(160)),
        batch_size=16,
        epochs=1,
        policy=Gate(0.5),
        config=TrainConfig(accumulation_steps=2),
        device="cpu",
    )
    trainer.optimisation.scaler = GradScaler("cpu")
    overflowing = Overflowing(next(model.parameters()))
    trained: list[int] = []
    for number, record in enumerate(trainer.steps(), start=1):
        if record.phase == "train":
            trained.append(record.metrics["trained"])
        overflowing.on = number in (3, 8)  # the batches 4 and 9, so the steps of 3, 4 and 9, 10
    samples = trainer.ledger.samples
    lost = trained[2] + trained[3] + trained[8] + trained[9]
    assert samples.overflowed == lost > 0
    assert samples.trained == sum(trained) - lost > 0
    assert samples.trained + samples.overflowed + samples.skipped == 160
    assert (trainer.optimisation.steps, trainer.optimisation.skipped) == (3, 2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_what_full_precision_learns(precision: str) -> None:
    x, y, _ = next(batches(torch.float32, rows=64))
    losses = {}
    for kind in ("fp32", precision):
        work = made(network(torch.float32), precision=kind)
        losses[kind] = [float(train(work, x, y).mean()) for _ in range(40)]
        assert work.steps >= 38
        assert {p.dtype for p in work.model.parameters()} == {torch.float32}
    assert losses[precision][-1] == pytest.approx(losses["fp32"][-1], rel=0.03)
    assert losses["fp32"][-1] < 0.9 * losses["fp32"][0]
    assert losses[precision] != losses["fp32"]


# --- attempts that fail


class Stopped(BaseException):
    """Nothing that a handler of ordinary errors would see: as an interrupt from the keyboard."""


@pytest.mark.parametrize("error", [RuntimeError, Stopped])
@pytest.mark.parametrize("waiting", [False, True])
def test_an_attempt_that_fails_leaves_no_trace(error: Any, waiting: bool) -> None:
    (x, y, weight), (x2, y2, weight2) = batches(weights="float64", number=2)
    work, twin = (made(accumulation_steps=3, micro_batch=10) for _ in range(2))
    for each in (work, twin) if waiting else ():
        add(each, x, y, weight)
    before, state = grads(work.model), copy.deepcopy(work.state_dict())
    calls = iter(range(100))

    def fail(*_: Any) -> None:
        if next(calls) % 3 == 1:  # in the second of three micro-batches
            raise error

    hook = work.model.register_forward_hook(fail)
    with pytest.raises(error):
        add(work, x2, y2, weight2)
    hook.remove()
    assert same(grads(work.model), before)
    assert same(work.state_dict(), state)
    for each in (work, twin):  # and what follows is as if it had never been
        add(each, x2, y2, weight2)
    assert same(grads(work.model), grads(twin.model))


@pytest.mark.parametrize(("value", "every", "clip_norm"), [(math.inf, 1, 1.0), (math.nan, 2, None)])
def test_a_gradient_that_is_not_finite_is_refused_before_weights_change(value, every, clip_norm):
    """The loss alone does not tell: its gradient may overflow while it is finite."""
    work, twin = (made(accumulation_steps=every, clip_norm=clip_norm) for _ in range(2))
    (x, y, _), (x2, y2, _) = batches(number=2)
    overflowing = Overflowing(work.model[0].weight, value)
    for _ in range(every):
        train(work, x, y)
        train(twin, x, y)
    overflowing.on = True
    for _ in range(every - 1):
        train(work, x2, y2)
    with pytest.raises(FloatingPointError, match=r"gradient's norm became (inf|nan): .*lower lr"):
        train(work, x2, y2)
    assert same(dict(work.weights()), dict(twin.weights()))
    overflowing.on = False  # who catches it continues with the next batch
    for each in (work, twin):
        for _ in range(every):
            train(each, x, y)
    assert same_bits(work.model, twin.model)
    assert not same_bits(work.model, network())


@pytest.mark.parametrize(("broken", "clip_norm"), [("loss", None), ("gradient", 1.0)])
def test_on_a_device_a_flag_keeps_the_weights_until_somebody_asks(monkeypatch, broken, clip_norm):
    work = flagged(monkeypatch, made(network(torch.float32), clip_norm=clip_norm))
    rows = list(batches(torch.float32, number=4))
    train(work, *rows[0])
    work.finite.read()
    state, before = work.state_dict(), copy.deepcopy(work.weights())
    x, y, _ = rows[1]
    overflowing = Overflowing(work.model[0].weight)
    overflowing.on = broken == "gradient"
    train(work, x * math.inf if broken == "loss" else x, y)
    overflowing.on = False
    # nobody has waited, so training goes on; on good batches too the weights stay
    train(work, *rows[2])
    train(work, *rows[3])
    assert same(copy.deepcopy(work.weights()), before)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="loss or the gradient became not finite"):
            work.finite.read()
    work.load_state_dict(state)  # which lowers the flag
    train(work, *rows[2])
    work.finite.read()
    assert not same(copy.deepcopy(work.weights()), before)


def test_after_a_divergence_on_a_device_the_users_optimizer_moves_again(monkeypatch):
    model = network(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    run = trainer(model, optimizer=optimizer, epochs=1)
    flagged(monkeypatch, run.optimisation)
    steps = run.steps()
    next(steps)
    Overflowing(model[0].weight).on = True
    with pytest.raises(FloatingPointError):
        for _ in steps:
            pass
    steps.close()
    before = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not same_bits(model, before)


def test_kernels_that_may_ignore_the_flag_are_waited_for() -> None:
    model = network(torch.float32)
    assert made(model).finite.flagged
    elsewhere = Optimisation(copy.deepcopy(model), TrainConfig(), cross_entropy_rows, device="meta")
    assert not elsewhere.finite.flagged
    assert not made(model, optimizer=sgd(model)).finite.flagged


trainer = partial(build.trainer, train=build.rows(32, 6, 4))


def rates(run: Trainer) -> list[float]:
    return [record.metrics["lr"] for record in run.steps() if record.phase == "train"]


SCHEDULERS: dict[str, Any] = {
    "steps": lambda optimizer: StepLR(optimizer, 3, gamma=0.1),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.3, total_steps=20),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("pace", [1, 2])
def test_any_scheduler_of_torch_sets_the_rate(kind: str, pace: int, tmp_path: Any) -> None:
    def built(**options: Any) -> Trainer:
        model = network(torch.float32)
        optimizer = sgd(model, 0.1)
        scheduler = SCHEDULERS[kind](optimizer)
        steps = None if pace == 1 else 8 * pace
        options |= {"optimizer": optimizer, "scheduler": scheduler, "schedule_steps": steps}
        return trainer(model, **options)

    plain = sgd(network(torch.float32), 0.1)
    scheduler, expected = SCHEDULERS[kind](plain), []
    with warnings.catch_warnings(action="ignore"):  # the optimizer takes no step here
        for _ in range(8):
            expected.append(plain.param_groups[0]["lr"])
            for _ in range(pace):
                scheduler.step()
    assert rates(built()) == pytest.approx(expected)
    steps = built(checkpoints=tmp_path).steps()
    for _ in range(3):
        next(steps)
    steps.close()
    assert rates(built(checkpoints=tmp_path, resume=True)) == pytest.approx(expected[3:])


class Either(nn.Module):
    """Two layers, of which a batch uses one: that which its first number names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)])

    def forward(self, x: Tensor) -> Any:
        return self.layers[int(x[0, 0])](x)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_batch_that_uses_no_parameter_of_the_optimizer_takes_no_step(precision, unchanged):
    model, y = Either(), torch.tensor([0, 1, 2])
    optimizer = torch.optim.SGD(model.layers[1].parameters(), lr=0.1)
    work = made(model, precision=precision, optimizer=optimizer)
    with unchanged(model):
        train(work, torch.zeros(3, 6), y)
    train(work, torch.ones(3, 6), y)
    assert work.steps == 1


class Proxies(nn.Module):
    """A criterion with a trainable vector per class."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.eye(4))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs @ self.vectors, targets, reduction="none")


def test_a_criterion_with_parameters_is_trained_as_a_part_of_the_model() -> None:
    model, criterion = nn.Linear(6, 4), Proxies()
    words = r"1 parameters of .* with model\.loss = criterion"
    refused((partial(trainer, model, criterion=criterion), words))
    trainer(model, criterion=Proxies().requires_grad_(False))
    model.loss = criterion
    trainer(model, criterion=criterion).run()
    assert not torch.equal(criterion.vectors, torch.eye(4))


def test_a_compiled_model_trains_as_an_eager_one_with_one_graph_for_all_sizes(cnn, monkeypatch):
    from torch._dynamo.utils import counters

    real = torch.compile  # with inductor it takes a minute
    monkeypatch.setattr(torch, "compile", lambda model: real(model, backend="aot_eager"))
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    eager, fast = (made(cnn(batch_norm=True), compile=compiled) for compiled in (False, True))
    for rows in (37, 2, 29):
        x = torch.randn(rows, 1, 8, 8, dtype=torch.float64)
        losses = [train(work, x, torch.arange(rows) % 10) for work in (fast, eager)]
        torch.testing.assert_close(*losses, rtol=0, atol=1e-11)
    torch.testing.assert_close(fast.weights()["model"], eager.weights()["model"])
    assert counters["stats"]["unique_graphs"] - before == 1
    torch._dynamo.reset()


def test_schedules_and_factors_leave_the_rates_of_the_optimizer_as_they_were() -> None:
    model = network(torch.float32)
    optimizer = sgd(model, 0.1)
    assert rates(trainer(model, optimizer=optimizer))[-1] < 0.05
    assert optimizer.param_groups[0]["lr"] == 0.1
    schedule = StepLR(optimizer, 100)
    own = Optimisation(model, TrainConfig(), cross_entropy_rows, optimizer, schedule, lr_scale=3.0)
    for _ in range(2):
        own.rates.set(0.5)
        assert own.rates.lr == pytest.approx(0.3)
        train(own, torch.ones(2, 6), torch.zeros(2).long())
    own.release()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


class Complex(nn.Module):
    """Moduli of a complex linear map, with a real last layer or without."""

    def __init__(self, dtype: torch.dtype, last: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, dtype=dtype))
        self.last = nn.Linear(4, 4).to(torch.float64) if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x.to(self.weight.dtype) @ self.weight).abs().double())


class Bag(nn.Module):
    """A sparse table of words, or its dense twin."""

    def __init__(self, kind: type[nn.Embedding] | type[nn.EmbeddingBag], sparse: bool) -> None:
        super().__init__()
        self.words, self.last = kind(20, 4, sparse=sparse).double(), nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        found = self.words(x)
        return self.last(found if found.ndim == 2 else found.mean(1))


class Looked(Bag):
    """By torch's function in place of its module."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.embedding(x, self.words.weight, sparse=self.words.sparse).sum(1))


UNUSUAL: dict[str, Any] = {
    "complex64": lambda twin: Complex(torch.complex64, False),
    "complex128": lambda twin: Complex(torch.complex128, False),
    "complex and real": lambda twin: Complex(torch.complex64, True),
    "sparse": lambda twin: Bag(nn.Embedding, not twin),
    "sparse sums": lambda twin: Bag(nn.EmbeddingBag, not twin),
    "sparse by a function": lambda twin: Looked(nn.Embedding, not twin),
}


@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("name", UNUSUAL)
def test_complex_and_sparse_parameters_train_as_a_plain_loop(name: str, many: int) -> None:
    """A dense twin's with AdamW, of complex numbers as of pairs of real ones."""
    x = torch.randint(0, 20, (25, 6)) if "sparse" in name else torch.randn(25, 6).double()
    y = torch.arange(25) % 4
    with rng.isolated("cpu", 0):
        model = UNUSUAL[name](False)
    twin = UNUSUAL[name](True)
    twin.load_state_dict(model.state_dict())
    work = made(model, weight_decay=0.1, clip_norm=0.05, accumulation_steps=many)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(4):
        for rows in range(many):
            train(work, x[rows::many], y[rows::many])
        optimizer.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
        optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class Searching(torch.optim.SGD):
    """Evaluates the loss several times, as line searches do."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return closure()


class Detached(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).detach()


def test_what_cannot_be_trained_is_one_sentence() -> None:
    model, other, half = network(torch.float32), network(torch.float32), network()
    before, model[2] = sgd(model), nn.Linear(16, 4)  # it still holds the layer that was replaced
    trainer(model, optimizer=sgd(model[2])).run()
    optimizer, moduli = sgd(model), Complex(torch.complex64, True)
    plateau = {"optimizer": optimizer, "scheduler": ReduceLROnPlateau(optimizer)}
    refused(
        (lambda: trainer(model, optimizer=sgd(other)), r"4 parameters of .* from model\."),
        (lambda: trainer(model, optimizer=before), "2 parameters of the optimizer or the criter"),
        (lambda: trainer(model, **plateau), "ReduceLROnPlateau, which needs a metric"),
        (lambda: made(moduli, precision="fp16"), r"is 'fp16'.* complex parameters: give 'bf16'"),
    )
    for kind in (torch.optim.LBFGS, type("Own", (torch.optim.LBFGS,), {}), Searching):
        call = partial(made, model, optimizer=kind(model.parameters()))
        refused((call, f"optimizer {kind.__name__} needs a closure, "))
    first = list(half[0].requires_grad_(False).parameters())
    for parameters in (first, [{"params": [each]} for each in first]):
        call = partial(made, half, optimizer=torch.optim.SGD(parameters, lr=0.1))
        refused((call, "the optimizer got 2 parameters, all frozen, so the"))
    rows = torch.randn(8, 6), torch.arange(8) % 4
    for each, words in (
        (nn.Identity(), "the Identity has no parameters"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "the Sequential has no parameters"),
        (nn.Linear(6, 4).requires_grad_(False), "the Linear has 2 parameters, all frozen"),
        (network().requires_grad_(False), "the Sequential has 4 parameters, all frozen"),
        (Detached(6, 4), "the loss depends on no parameter that is trained"),
    ):
        words += ", so there is nothing to train: give the model"
        refused((lambda each=each: train(made(each), *rows), words))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_scheduler_waits_where_the_loss_scale_skips_a_step(accumulated: int) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    x, y = build.rows(800).tensors
    data = torch.utils.data.TensorDataset(3e2 * x, y)
    config = TrainConfig(precision="fp16", batch_size=20, accumulation_steps=accumulated)
    run = Trainer(model, data, epochs=1, optimizer=optimizer, scheduler=scheduler, config=config)
    run.optimisation.scaler._init_scale = 2.0**20
    run.run(progress=False)
    work = run.optimisation
    assert work.skipped
    assert work.steps
    assert work.steps + work.skipped == 40 // accumulated
    assert scheduler.last_epoch == work.steps


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_group_that_is_added_between_epochs_is_trained(factor: float) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    first = model[0].requires_grad_(False).weight.clone()
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    options = {"optimizer": optimizer, "batch_size": 16, "epochs": 2}
    config = TrainConfig(schedule=lambda progress: factor)
    run, rates = Trainer(model, build.rows(64), config=config, **options), []
    for record in run.steps():
        if record.phase == "epoch" and record.metrics["epoch"] == 1:
            assert torch.equal(model[0].weight, first)
            before = run.ledger.flops.total
            added = model[0].requires_grad_(True).parameters()
            optimizer.add_param_group({"params": added, "lr": 0.01})
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert not torch.equal(model[0].weight, first)
    assert rates[-2] == pytest.approx([0.1 * factor, 0.01 * factor])
    assert run.ledger.flops.total > 2 * before  # gradients of the first layer too
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_a_group_that_its_scheduler_does_not_know_is_one_sentence() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    run = Trainer(model, build.rows(64), epochs=2, optimizer=optimizer, scheduler=scheduler)
    steps = run.steps()
    next(steps)
    optimizer.add_param_group({"params": model[0].parameters()})
    sentence = "^the optimizer has a new parameter group, which its scheduler does not know: add it"
    with pytest.raises(ValueError, match=sentence):
        list(steps)
