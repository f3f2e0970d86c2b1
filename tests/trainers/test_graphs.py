"""Sizes, fallbacks and results of recorded steps, with graphs that only repeat Python calls.

These show no more than that: whether a GPU can record a step is for `benchmarks.gpu_graphs`.
"""

import copy
import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils import _pytree as pytree

from astkit.datasets import Batch
from astkit.trainers import Budget, TrainConfig, Trainer
from astkit.trainers.graphs import LAUNCH_BOUND, SHAPES, WARMUP, StepGraphs
from astkit.trainers.optimisation import unsupported
from tests import build

GATE = {"name": "gate", "rate": 0.3, "controller": "top_k"}
DATA = build.as_dataset([(x.double(), y) for x, y in build.rows(200, 6, 4)])


class Repeated:
    """In place of a CUDA graph: recording leaves no trace, a replay calls the function again."""

    def __init__(self, call: Callable[[], Any], restore: Callable[[], None]) -> None:
        self.call, self.freed = call, False
        self.outputs = pytree.tree_map_only(Tensor, torch.clone, call())
        restore()

    def replay(self) -> None:
        assert not self.freed
        trains = isinstance(self.outputs, tuple)
        with torch.enable_grad() if trains else torch.no_grad():
            new = self.call()
        for own, each in zip(*map(pytree.tree_leaves, (self.outputs, new)), strict=True):
            if isinstance(own, Tensor):
                own.copy_(each)

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
        states = [v for entry in self.optimizer.state.values() for v in entry.values()]
        places = [*self.model.parameters(), *self.model.buffers(), *filter(torch.is_tensor, states)]
        before = [each.detach().clone() for each in places]
        random = torch.get_rng_state()

        @torch.no_grad()
        def restore() -> None:
            for place, value in zip(places, before, strict=True):
                place.copy_(value)
            torch.set_rng_state(random)

        graph = Repeated(call, restore)
        self.made.append(graph)
        return graph, graph.outputs

    def _recover(self) -> None: ...
    def _wait(self) -> None: ...
    def _empty_cache(self) -> None: ...


def network() -> nn.Module:
    between = nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2)
    return build.network(6, 4, 16, *between, dtype=torch.float64)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return build.sgd(model, momentum=0.9, fused=True)


def trainer(graphs: bool = True, make: Any = adamw, model: Any = network, **options: Any) -> Any:
    model = model()
    optimizer = make(model)
    if "scheduler" in options:
        options["scheduler"] = options["scheduler"](optimizer)
    config = TrainConfig(**{"clip_norm": 0.5, **options.pop("config", {})})
    own = {"budget": Budget(steps=60), "batch_size": 32, "config": config, "optimizer": optimizer}
    run = build.trainer(model, DATA, **{**own, **options})
    if graphs:
        run.optimisation.passes.graphs = Graphs(run)
    return run


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


class Limited(nn.Module):
    """Has memory for ``limit`` rows."""

    limit = 1000

    def __init__(self) -> None:
        super().__init__()
        self.inner = build.network(6, 4, 0, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("out of memory")
        return self.inner(x)


def nothing(run: Any) -> None: ...


def loaded(run: Any) -> None:
    work = run.optimisation
    weights, counts = copy.deepcopy(work.weights()), copy.deepcopy(work.state_dict())
    work.load_weights(weights)
    work.load_state_dict(counts)


def replaced(run: Any) -> None:
    run.model[1].weight.data = run.model[1].weight.data.clone()


def with_graphs(**attributes: Any) -> Callable[[Any], None]:
    return lambda run: vars(run.optimisation.passes.graphs or run).update(attributes)


CAPTURING = RuntimeError("operation not permitted when stream is capturing")
Case = tuple[dict[str, Any], Callable[[Any], Any], str]
CASES: dict[str, Case] = {
    **{
        f"{name}, {make.__name__}, {rates}": (
            {"policy": policy, "make": make, **schedule}, nothing, ""
        )
        for name, policy in {"dense": None, "gated": GATE}.items()
        for make in (adamw, sgd)
        for rates, schedule in {
            "usual": {}, "steps": {"scheduler": lambda each: StepLR(each, 5, gamma=0.7)}
        }.items()
    },
    # graphs of another state are dropped
    "frozen": ({}, lambda run: run.model[1].requires_grad_(False), ""),
    "loaded": ({}, loaded, ""),
    "loaded by the user": (
        {}, lambda run: run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict())), ""
    ),
    "replaced": ({}, replaced, ""),
    "decayed": ({}, lambda run: run.optimizer.param_groups[0].update(weight_decay=0.5), ""),
    # and where none can be recorded, steps are as before
    "a hook": ({}, lambda run: run.model[1].register_forward_hook(lambda *_: None), "hooks"),
    "a weight's hook": ({}, lambda run: run.model[1].weight.register_hook(lambda g: g), "hooks"),
    "a step's hook": (
        {}, lambda run: run.optimizer.register_step_post_hook(lambda *_: None), "hooks"
    ),
    "a wait": ({}, with_graphs(waits=("a CUDA operation",)), "waits for the device in a step"),
    "a failure": (
        {}, with_graphs(fails=CAPTURING), "cannot be recorded (RuntimeError: operation not permi"
    ),
    "moving buffers": ({"model": Moving}, nothing, "buffers, requires_grad or settings of"),
    "moving momentum": (
        {"scheduler": lambda each: OneCycleLR(each, 0.3, total_steps=100)}, nothing,
        "settings of the optimizer other than lr",
    ),
    "little memory": ({"model": Limited}, lambda run: setattr(run.model, "limit", 20), "memory"),
}  # fmt: skip


@pytest.mark.parametrize("when", [0, 20])  # steps before the change
@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_equal_eager_ones(case: str, when: int) -> None:
    options, change, words = CASES[case]
    eager, recorded = trainer(False, **options), trainer(**options)
    graphs = recorded.optimisation.passes.graphs
    first: list[Repeated] = []
    with warnings.catch_warnings(record=True) as said:
        for run in (eager, recorded):
            records = run.steps()
            for _ in itertools.islice(records, when):
                pass
            first = list(graphs.made)
            change(run)
            deque(records, 0)
    states = [run.model.state_dict() for run in (eager, recorded)]
    torch.testing.assert_close(*states, rtol=1e-7, atol=1e-7)
    losses = [[each["loss"] for each in run.history.steps] for run in (eager, recorded)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-7)
    assert eager.optimisation.steps == recorded.optimisation.steps == 60
    told = [str(each.message) for each in said if "graphs: " in str(each.message)]
    assert len(told) == bool(words)
    assert words in f"{graphs.reason}"
    assert words or recorded.optimisation.replayed > 30
    if change is not nothing:
        assert (len(first) > 0) == (when > 0)
        assert (len(graphs.made) > len(first)) == (not words)
    # they end with the run, and leave the optimizer as it was
    assert all(each.freed for each in graphs.made)
    assert recorded.optimisation.passes.graphs is None
    settings = [{**run.optimizer.param_groups[0], "params": None} for run in (eager, recorded)]
    assert settings[0] == settings[1]
    assert not hasattr(recorded.optimizer, "found_inf")
    assert all(each.grad is None for each in recorded.model.parameters())


@pytest.mark.parametrize(("policy", "sizes"), [(None, 2), (GATE, 5)])
def test_each_shape_is_recorded_after_its_warm_up(policy: Any, sizes: int) -> None:
    # batches of 32 and 8 rows; the gate takes 9 and 10, or 2 and 3
    run = trainer(policy=policy)
    graphs, records = run.optimisation.passes.graphs, run.steps()
    deque(itertools.islice(records, WARMUP), 0)
    assert graphs.made == []
    assert graphs.beside == WARMUP * (2 if policy else 1) + 1  # the first batch is checked
    deque(records, 0)
    assert sizes - 1 <= len(graphs.made) <= sizes + 1


def test_no_more_than_some_shapes_are_recorded() -> None:
    work = trainer().optimisation
    x, y = build.rows(SHAPES + 4, 6, 4).tensors
    sizes = [*range(2, SHAPES + 4)] * (WARMUP + 1)
    with pytest.warns(UserWarning, match=f"more than {SHAPES} shapes"):
        deque((work.train(Batch(None, x[:rows].double(), y[:rows])) for rows in sizes), 0)
    assert len(work.passes.graphs.made) == SHAPES


def test_a_step_that_is_not_finite_changes_nothing_and_is_reported() -> None:
    run = trainer(config={"report_every": 1000})
    records, work = run.steps(), run.optimisation
    deque(itertools.islice(records, 20), 0)
    x, y = build.rows(32, 6, 4).tensors
    weights = [each.detach().clone() for each in run.model.parameters()]
    replayed = work.replayed
    work.train(Batch(None, x.double() * math.nan, y))
    work.train(Batch(None, x.double(), y))  # and no step is taken until then
    assert work.replayed == replayed + 2
    assert all(map(torch.equal, run.model.parameters(), weights))
    with pytest.raises(FloatingPointError, match="not finite"):
        records.close()


def test_a_cpu_has_no_graphs_and_one_sentence_says_so() -> None:
    run = trainer(False, config={"graphs": True})
    with pytest.warns(UserWarning, match="graphs is True, but the model is not on a CUDA device"):
        run.run()
    with warnings.catch_warnings(action="error"):
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


def test_what_cannot_be_recorded_has_a_reason() -> None:
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(is_cuda=True)])
    known: dict[str, Any] = {
        **{"device": torch.device("cuda"), "model": model, "wrapped": model, "scaler": None},
        **{"micro_batch": None, "config": TrainConfig(), "watching": False},
        "optimizer": torch.optim.AdamW([torch.zeros(1)], fused=True),
    }
    for words, change in {"None": {}, **UNSUPPORTED}.items():
        work = SimpleNamespace(**known, **{})
        vars(work).update(change)
        work.passes = work
        assert words in str(unsupported(work))  # type: ignore[arg-type]
