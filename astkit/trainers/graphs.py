"""Training steps as CUDA graphs: recorded once for each shape of a batch, then replayed.

A small network's step is hundreds of short kernels, and launching them from Python takes longer
than running them. A graph launches all of them at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from astkit.datasets.batch import Batch, map_tensors, tensors
from astkit.profiling.ledger import Ledger
from astkit.progress import warn
from astkit.trainers.refusals import out_of_memory

LAUNCH_BOUND = 1e12
"""FLOPs of a step up to which graphs="auto" records it: about 10 ms of a fast GPU's work."""
WARMUP = 3  # steps of a shape before it is recorded, in which libraries choose kernels
SHAPES = 16  # graphs at most, each with its own inputs
VAIN = 3  # changes of the model before anything was replayed, after which recording ends
WAITS = "synchronizing CUDA operation"
"""Words of torch's warning if the host waits for the device."""

Function = Callable[..., Any]


@dataclass
class ShapeGraph:
    """One shape: its calls so far, and, once recorded, the graph with its inputs and outputs."""

    calls: int = 0
    graph: Any = None
    inputs: tuple[Any, ...] = ()
    outputs: Any = None


class StepGraphs:
    """Records functions of a batch as CUDA graphs, and replays them for batches of equal shape.

    The first `WARMUP` calls of a shape run as usual, on the stream that records the next one.
    Inputs are copied to where the graph reads them, and outputs are copies, since all graphs share
    one pool of memory. Torch reads seeds for dropout at each replay. Gradients exist only within a
    graph. Graphs are dropped when they would use memory that is no longer the model's or other
    settings of the optimizer than now; its learning rates are tensors that are filled before each
    step.

    What is recorded must not depend on anything but these inputs, the weights and the buffers:
    Python code does not run again.

    Args:
        model, optimizer: what is trained; a fused optimizer, see `unsupported`.
        ledger: measures the time of replayed steps as the phase "graph".

    Attributes:
        reason: why nothing is recorded any more; ``None`` while graphs are used.
        replayed: number of replayed calls, of steps and of outputs.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        ledger: Ledger,
    ) -> None:
        self.model, self.optimizer, self.device, self.ledger = model, optimizer, device, ledger
        self.reason: str | None = None
        self.replayed = 0
        self._known: Any = None  # state of the model and the optimizer that graphs were made for
        self._optimizer_state: Any = None
        self._vain = 0
        self._full = False
        self._shapes: dict[object, ShapeGraph] = {}
        self.drop()

    def step(
        self, function: Function, batch: Batch, weight: Tensor | None, normaliser: float | Tensor
    ) -> Any:
        """``function(batch, weight, normaliser)``, which trains; ``None`` if it was not called."""
        if weight is not None and not isinstance(normaliser, Tensor):
            normaliser = weight.new_full((), normaliser)  # another number is no other graph
        for rate, group in zip(self._rates, self.optimizer.param_groups, strict=False):
            rate.fill_(group["lr"])
        return self._run("step", function, batch, weight, normaliser)

    def outputs(self, function: Function, batch: Batch) -> Any:
        """``function(batch)``, without gradients; ``None`` if it was not called."""
        return self._run("outputs", function, batch)

    def drop(self) -> None:
        """Free all graphs and their memory; shapes are recorded anew."""
        recorded = [each for each in self._shapes.values() if each.graph is not None]
        if recorded:
            self._wait()  # for what is being replayed
        for each in recorded:
            each.outputs = None
            each.graph.reset()
        self._shapes = {}
        self._modules = list(self.model.modules())
        self._rates = [
            torch.full((), float(group["lr"]), device=self.device)
            for group in self.optimizer.param_groups
        ]
        self._pool: Any = None
        if recorded:
            self._empty_cache()

    def end(self, reason: str) -> None:
        """Record nothing any more, and say why."""
        if self.reason is None:
            self.reason = reason
            self.drop()
            warn(f"graphs: {reason}, so kernels are launched one by one from here on")

    # --- recording and replaying ---

    def _run(self, name: str, function: Function, *inputs: Any) -> Any:
        if self.reason is not None or not self._usable(inputs):
            return None
        try:
            return self._called(name, function, inputs)
        except BaseException as error:
            self.model.zero_grad(set_to_none=True)
            if not out_of_memory(error):
                raise
        self.end("memory ran out")  # outside the handler, whose traceback holds tensors
        return None

    def _called(self, name: str, function: Function, inputs: tuple[Any, ...]) -> Any:
        """A real call, or its replay."""
        modes = tuple([module.training for module in self._modules])
        shape = self._shapes.setdefault((name, modes, *map(_shape, inputs)), ShapeGraph())
        if shape.graph is None:
            if shape.calls < WARMUP:
                return self._warm(shape, function, inputs)
            if not self._record(shape, function, inputs):
                return None
        timed = self.ledger.phase("graph") if name == "step" else nullcontext()
        with torch.no_grad(), timed:
            for own, new in zip(_all(shape.inputs), _all(inputs), strict=True):
                own.copy_(new, non_blocking=True)
            shape.graph.replay()
            self.replayed += 1
            return pytree.tree_map_only(Tensor, torch.clone, shape.outputs)

    def _usable(self, inputs: tuple[Any, ...]) -> bool:
        """Whether a graph may stand for a call; forgets graphs that no longer fit."""
        if self._hooked():
            self.end("hooks of a module, a parameter or the optimizer would not be called")
        elif any(part.device.type != self.device.type for part in _all(inputs)):
            self.end(f"a batch has tensors that are not on {self.device}")
        if self.reason is not None:
            return False
        state = self._state()
        if state != self._known or self.optimizer.state is not self._optimizer_state:
            if self._known is not None:
                recorded = any(each.graph is not None for each in self._shapes.values())
                self._vain = 0 if recorded else self._vain + 1
                self.drop()
            self._known, self._optimizer_state = self._state(), self.optimizer.state
            if self._vain >= VAIN:
                self.end(
                    "buffers, requires_grad or settings of the optimizer other than lr change"
                    " from step to step"
                )
        return self.reason is None

    def _state(self) -> Any:
        """Where the weights and buffers are, which are trained, and how."""
        places = []
        for module in self._modules:
            for each in module._parameters.values():
                if each is not None:
                    places.append((each.data_ptr(), each.requires_grad))
            for buffer in module._buffers.values():
                if buffer is not None:
                    places.append((buffer.data_ptr(), False))
        settings = [
            [
                (name, id(value) if isinstance(value, Tensor) else value, len(group["params"]))
                for name, value in group.items()
                if name not in ("lr", "params")
            ]
            for group in self.optimizer.param_groups
        ]
        return places, settings

    def _hooked(self) -> bool:
        """Whether other code is called in a step, which a replay would leave out."""
        for module in self._modules:
            if module._forward_hooks or module._forward_pre_hooks:
                return True
            if module._backward_hooks or module._backward_pre_hooks:
                return True
            for each in module._parameters.values():
                if each is not None and (each._backward_hooks or each._post_accumulate_grad_hooks):
                    return True
        steps = self.optimizer
        return bool(steps._optimizer_step_pre_hooks or steps._optimizer_step_post_hooks)

    def _warm(self, shape: ShapeGraph, function: Function, inputs: tuple[Any, ...]) -> Any:
        """A real call, on the stream that records; the last one watches for waits."""
        shape.calls += 1
        with self._beside(), self._on_device(capturable=False):
            if shape.calls < WARMUP:  # when libraries choose kernels, they may wait
                return function(*inputs)
            with self._watched() as waits:
                outputs = function(*inputs)
        if waits:
            self.end("the model, the criterion or the optimizer waits for the device in a step")
        return outputs

    def _record(self, shape: ShapeGraph, function: Function, inputs: tuple[Any, ...]) -> bool:
        """Record a call, which is not executed; whether that was possible."""
        if sum(each.graph is not None for each in self._shapes.values()) >= SHAPES:
            if not self._full:
                warn(
                    f"graphs: batches have more than {SHAPES} shapes, so kernels of further ones"
                    " are launched one by one"
                )
            self._full = True
            return False
        own = tuple(_copied(each) for each in inputs)
        try:
            with self._on_device(capturable=True):
                shape.graph, shape.outputs = self._captured(lambda: function(*own))
            shape.inputs = own
            unknown = {
                type(leaf).__name__
                for leaf in pytree.tree_leaves(shape.outputs)
                if not isinstance(leaf, Tensor | int | float | str | None)
            }
        except Exception as error:
            self._recover()
            what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self.end(f"the step cannot be recorded ({what})")
            return False
        finally:
            if torch.is_grad_enabled():
                self._forget_gradients()
        if unknown:
            self.end(f"the model returns {', '.join(sorted(unknown))}, which cannot be copied")
        return self.reason is None

    def _forget_gradients(self) -> None:
        """The memory of gradients in a graph belongs to the pool."""
        for each in self.model.parameters():
            each.grad = None
        if hasattr(self.optimizer, "found_inf"):
            del self.optimizer.found_inf

    @contextmanager
    def _on_device(self, capturable: bool) -> Iterator[None]:
        """Learning rates as tensors, which a graph reads anew at each replay."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        before: list[dict[str, Any]] = [
            {name: group[name] for name in ("lr", "capturable") if name in group}
            for group in groups
        ]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = capturable
            yield
        finally:
            for group, own in zip(groups, before, strict=True):
                group.update(own)

    # --- the device ---

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Run a block on the stream that records."""
        here, stream = torch.cuda.current_stream(self.device), _stream(self.device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            yield
        here.wait_stream(stream)

    @contextmanager
    def _watched(self) -> Iterator[list[str]]:
        """The waits for the device in a block; other warnings are passed on."""
        waits: list[str] = []
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield waits
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        for each in seen:
            if WAITS in str(each.message):
                waits.append(str(each.message))
            elif not str(each.message).startswith("Synchronization debug mode"):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

    def _captured(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        """The graph of ``call``, and its outputs, which exist after the first replay."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        here = torch.cuda.stream(torch.cuda.current_stream(self.device))
        recording = torch.cuda.graph(
            graph, self._pool, _stream(self.device), capture_error_mode="thread_local"
        )
        with here, recording:  # after an error in recording, its stream would stay the current one
            outputs = call()
        return graph, outputs

    def _recover(self) -> None:
        """After a failed capture the generator may still wait for its end."""
        place = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[place]
        generator.graphsafe_set_state(generator.clone_state())

    def _wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def _empty_cache(self) -> None:
        torch.cuda.empty_cache()  # no other tensor can use the memory of a pool


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all graphs, since libraries keep a workspace for each stream."""
    return torch.cuda.Stream(device)


def _all(inputs: tuple[Any, ...]) -> list[Tensor]:
    """The tensors of a batch, without its index, and of other inputs."""
    found: list[Tensor] = []
    for each in inputs:
        found += tensors((each.x, each.y) if isinstance(each, Batch) else each)
    return found


def _shape(part: Any) -> object:
    """What a graph has recorded of an input: shapes and types of tensors, and other values."""
    if isinstance(part, Tensor):
        return part.shape, part.dtype
    if isinstance(part, Batch):
        return _shape(part.x), _shape(part.y), part.x is part.y
    return repr(map_tensors(lambda tensor: (tuple(tensor.shape), tensor.dtype), part))


def _copied(part: Any) -> Any:
    """A copy of an input, which graphs read; the index of a batch is not an input."""
    if isinstance(part, Batch):
        return part._replace(index=None).map(_copied)
    return map_tensors(torch.clone, part)
