"""Sizes, fallbacks and results of recorded steps, with graphs that only repeat Python calls.

These show no more than that: whether a GPU can record a step is for `benchmarks.gpu_graphs`.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils import _pytree as pytree
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.datasets import Batch
from astkit.trainers import Budget, TrainConfig, Trainer
from astkit.trainers.graphs import LAUNCH_BOUND, SHAPES, WARMUP, StepGraphs
from astkit.trainers.optimisation import unsupported

GATE = {"name": "gate", "rate": 0.3, "controller": "top_k"}


class Repeated:
    """In place of a CUDA graph: recording leaves no trace, a replay calls the function again."""

    def __init__(self, call: Callable[[], Any], keep: Callable[[], Any]) -> None:
        self.call, self.replays, self.freed = call, 0, False
        restore = keep()
        self.outputs = pytree.tree_map_only(Tensor, torch.clone, call())
        restore()

    def replay(self) -> None:
        assert not self.freed
        self.replays += 1
        with torch.enable_grad() if self.trains() else torch.no_grad():
            new = self.call()
        for own, each in zip(*map(pytree.tree_leaves, (self.outputs, new)), strict=True):
            if isinstance(own, Tensor):
                own.copy_(each)

    def trains(self) -> bool:
        return isinstance(self.outputs, tuple)

    def reset(self) -> None:
        self.freed = True


class Graphs(StepGraphs):
    """Records on the CPU; ``made`` lists the graphs, ``beside`` counts calls on another stream."""

    fails: Exception | None = None
    waits: tuple[str, ...] = ()

    def __init__(self, trainer: Trainer) -> None:
        self.made: list[Repeated] = []
        self.beside = 0
        work = trainer.optimisation
        super().__init__(work.model, work.optimizer, work.passes.device, work.ledger)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        self.beside += 1
        yield

    @contextmanager
    def _watched(self) -> Iterator[list[str]]:
        yield list(self.waits)

    def _captured(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        if self.fails is not None:
            raise self.fails
        rates = [group["lr"] for group in self.optimizer.param_groups]
        assert all(isinstance(rate, Tensor) and rate.dtype == torch.float32 for rate in rates)
        graph = Repeated(call, self._kept)
        self.made.append(graph)
        return graph, graph.outputs

    def _kept(self) -> Callable[[], None]:
        states = [v for entry in self.optimizer.state.values() for v in entry.values()]
        places = [*self.model.parameters(), *self.model.buffers(), *filter(torch.is_tensor, states)]
        before = [each.detach().clone() for each in places]
        random = torch.get_rng_state()

        @torch.no_grad()
        def restore() -> None:
            for place, value in zip(places, before, strict=True):
                place.copy_(value)
            torch.set_rng_state(random)

        return restore

    def _recover(self) -> None: ...
    def _wait(self) -> None: ...
    def _empty_cache(self) -> None: ...

    @property
    def sizes(self) -> int:
        return len(self.made)


def network(dtype: torch.dtype = torch.float64, dropout: float = 0.2) -> nn.Sequential:
    with rng.isolated("cpu", 0):
        inner = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(dropout)
        return nn.Sequential(*inner, nn.Linear(16, 4)).to(dtype)


def data(rows: int = 200, dtype: torch.dtype = torch.float64) -> TensorDataset:
    with rng.isolated("cpu", 1):
        return TensorDataset(torch.randn(rows, 6, dtype=dtype), torch.arange(rows) % 4)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)


def trainer(graphs: Any = True, make: Any = adamw, model: Any = None, **options: Any) -> Any:
    model = model or network()
    optimizer = make(model)
    if "scheduler" in options:
        options["scheduler"] = options["scheduler"](optimizer)
    config = TrainConfig(**options.pop("config", {}))
    own = {"budget": Budget(steps=60), "batch_size": 32, "device": "cpu", "config": config}
    run = Trainer(model, data(), optimizer=optimizer, **{**own, **options})
    if graphs:
        run.optimisation.passes.graphs = Graphs(run)
    return run


def difference(first: nn.Module, second: nn.Module) -> float:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


SCHEDULERS: dict[str, Any] = {
    "none": None,
    "steps": lambda optimizer: StepLR(optimizer, 5, gamma=0.7),
}


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize("policy", [None, GATE])
def test_recorded_steps_equal_eager_ones(policy: Any, make: Any, schedule: str) -> None:
    options: dict[str, Any] = {"policy": policy, "make": make, "config": {"clip_norm": 0.5}}
    if schedule != "none":
        options["scheduler"] = SCHEDULERS[schedule]
    eager, recorded = trainer(False, **options), trainer(**options)
    graphs = recorded.optimisation.passes.graphs
    for run in (eager, recorded):
        run.run()
    assert difference(eager.model, recorded.model) < 1e-7
    assert eager.optimisation.steps == recorded.optimisation.steps == 60
    assert recorded.optimisation.replayed > 30
    assert graphs.reason is None
    losses = [[each["loss"] for each in run.history.steps] for run in (eager, recorded)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-7)


@pytest.mark.parametrize(("policy", "sizes"), [(None, 2), (GATE, 5)])
def test_each_shape_is_recorded_after_its_warm_up(policy: Any, sizes: int) -> None:
    # batches of 32 and 8 rows; the gate takes 9 and 10, or 2 and 3
    run = trainer(policy=policy)
    graphs = run.optimisation.passes.graphs
    records = iter(run.steps())
    for _ in range(WARMUP):
        next(records)
    assert graphs.sizes == 0
    assert graphs.beside == WARMUP * (2 if policy else 1) + 1  # the first batch is checked
    for _ in records:
        pass
    assert sizes - 1 <= graphs.sizes <= sizes + 1
    assert len({id(each) for each in graphs.made}) == graphs.sizes


def test_graphs_end_with_the_run_and_the_optimizer_is_as_before() -> None:
    run = trainer()
    graphs = run.optimisation.passes.graphs
    before = {**run.optimizer.param_groups[0]}
    run.run()
    assert graphs.made
    assert all(each.freed for each in graphs.made)
    assert run.optimisation.passes.graphs is None
    assert run.optimizer.param_groups[0] == before
    assert not hasattr(run.optimizer, "found_inf")
    assert all(each.grad is None for each in run.model.parameters())


def test_no_more_than_some_shapes_are_recorded() -> None:
    run = trainer()
    work = run.optimisation

    def train() -> None:
        for rows in [*range(2, SHAPES + 4)] * (WARMUP + 1):
            x, y = data()[:rows]
            work.train(Batch(None, x, y))

    with pytest.warns(UserWarning, match=f"more than {SHAPES} shapes"):
        train()
    assert work.passes.graphs.sizes == SHAPES


def test_a_step_that_is_not_finite_changes_nothing_and_is_reported() -> None:
    run = trainer(config={"report_every": 1000})
    records = iter(run.steps())
    for _ in range(20):
        next(records)
    work = run.optimisation
    x, y = data()[:32]
    weights = [each.detach().clone() for each in run.model.parameters()]
    replayed = work.replayed
    work.train(Batch(None, x * math.nan, y))
    work.train(Batch(None, x, y))  # and no step is taken until then
    assert work.replayed == replayed + 2
    assert all(map(torch.equal, run.model.parameters(), weights))
    with pytest.raises(FloatingPointError, match="not finite"):
        records.close()


def frozen(run: Any) -> None:
    run.model[0].requires_grad_(False)


def loaded(run: Any) -> None:
    work = run.optimisation
    weights, counts = copy.deepcopy(work.weights()), copy.deepcopy(work.state_dict())
    work.load_weights(weights)
    work.load_state_dict(counts)


def loaded_by_the_user(run: Any) -> None:
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))


def replaced(run: Any) -> None:
    with torch.no_grad():
        run.model[0].weight.data = run.model[0].weight.clone()


def decayed(run: Any) -> None:
    run.optimizer.param_groups[0]["weight_decay"] = 0.5


@pytest.mark.parametrize("change", [frozen, loaded, loaded_by_the_user, replaced, decayed])
def test_graphs_of_another_state_are_dropped(change: Any) -> None:
    runs = [trainer(False), trainer()]
    graphs = runs[1].optimisation.passes.graphs
    for run in runs:
        for number, _ in enumerate(run.steps()):
            if number == 20:
                first = list(graphs.made)
                change(run)
    assert first
    assert all(each.freed for each in first)
    assert len(graphs.made) > len(first)
    assert difference(*(run.model for run in runs)) < 1e-7


def hooked(run: Any) -> None:
    run.model[0].register_forward_hook(lambda *_: None)


def hooked_weight(run: Any) -> None:
    run.model[0].weight.register_hook(lambda gradient: gradient)


def hooked_optimizer(run: Any) -> None:
    run.optimizer.register_step_post_hook(lambda *_: None)


def waiting(run: Any) -> None:
    run.optimisation.passes.graphs.waits = ("called a synchronizing CUDA operation",)


def failing(run: Any) -> None:
    words = "operation not permitted when stream is capturing"
    run.optimisation.passes.graphs.fails = RuntimeError(words)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (hooked, "hooks"),
        (hooked_weight, "hooks"),
        (hooked_optimizer, "hooks"),
        (waiting, "waits for the device"),
        (failing, "cannot be recorded .RuntimeError: operation not permitted"),
    ],
)
def test_what_cannot_be_recorded_trains_as_before(cause: Any, reason: str) -> None:
    eager, recorded = trainer(False), trainer()
    cause(recorded)
    with pytest.warns(UserWarning, match=f"graphs: .*{reason}"):
        recorded.run()
    eager.run()
    assert recorded.optimisation.replayed == 0
    assert difference(eager.model, recorded.model) < 1e-7


class Moving(nn.Module):
    """Replaces its buffer in each step."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.inner(x) - self.mean
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs


def test_a_state_that_moves_in_each_step_is_not_recorded() -> None:
    eager, recorded = trainer(False, model=Moving()), trainer(model=Moving())
    with pytest.warns(UserWarning, match="graphs: buffers, requires_grad or settings"):
        recorded.run()
    eager.run()
    assert difference(eager.model, recorded.model) < 1e-7


def test_a_scheduler_that_moves_the_momentum_is_not_recorded() -> None:
    def cycle(optimizer: Any) -> Any:
        return OneCycleLR(optimizer, 0.3, total_steps=100)

    eager, recorded = (trainer(graphs, scheduler=cycle) for graphs in (False, True))
    with pytest.warns(UserWarning, match="settings of the optimizer other than lr"):
        recorded.run()
    eager.run()
    assert difference(eager.model, recorded.model) < 1e-7


class Limited(nn.Module):
    """Has memory for 20 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("out of memory")
        return self.inner(x)

    limit = 20


@pytest.mark.parametrize("after", [0, 20])
def test_a_batch_that_is_divided_ends_the_graphs(after: int) -> None:
    with rng.isolated("cpu", 2):
        model = Limited()
    run = trainer(model=model)
    model.limit = 1000 if after else 20

    def train() -> None:
        for number, _ in enumerate(run.steps()):
            if number + 1 == after:
                model.limit = 20

    with pytest.warns(UserWarning, match="graphs: "):
        train()
    assert run.optimisation.passes.micro_batch == 16


def test_a_cpu_has_no_graphs_and_one_sentence_says_so() -> None:
    run = trainer(False, config={"graphs": True})
    with pytest.warns(UserWarning, match="graphs is True, but the model is not on a CUDA device"):
        run.run()
    assert run.optimisation.replayed == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(False, config={"graphs": "auto"}).run()


def test_short_steps_are_recorded_and_long_ones_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astkit.trainers.optimisation.unsupported", lambda work: None)
    monkeypatch.setattr(torch, "compile", lambda model: model.forward)
    for flops, recorded in ((LAUNCH_BOUND, True), (2 * LAUNCH_BOUND, False)):
        work = trainer(False, config={"graphs": "auto", "compile": True}).optimisation
        work.decide(flops)
        assert (work.passes.graphs is not None) is recorded
        assert (work.passes.training_pass is work.passes.wrapped) is recorded


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "CUDA device": {"device": torch.device("cpu")},
    "between processes": {"wrapped": object()},
    "fp16": {"scaler": object()},
    "micro_batch": {"micro_batch": 8},
    "accumulation_steps": {"config": TrainConfig(accumulation_steps=2)},
    "the policy reads": {"watching": True},
    "not Adam, AdamW or SGD": {"optimizer": torch.optim.RMSprop([torch.zeros(1)])},
    "fused=True": {"optimizer": torch.optim.SGD([torch.zeros(1)])},
}


@pytest.mark.parametrize("words", UNSUPPORTED)
def test_what_cannot_be_recorded_has_a_reason(words: str) -> None:
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(is_cuda=True)])
    known: dict[str, Any] = {
        "device": torch.device("cuda"),
        "model": model,
        "wrapped": model,
        "scaler": None,
        "micro_batch": None,
        "config": TrainConfig(),
        "watching": False,
        "optimizer": torch.optim.AdamW([torch.zeros(1)], fused=True),
    }
    inner = ("device", "wrapped", "micro_batch", "config")

    def work(settings: dict[str, Any]) -> Any:
        passes = SimpleNamespace(**{name: settings[name] for name in inner})
        return SimpleNamespace(passes=passes, **settings)

    assert unsupported(work(known)) is None
    assert words in str(unsupported(work(known | UNSUPPORTED[words])))
