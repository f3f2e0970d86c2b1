"""The one interface for choosing samples: before loading, after scoring, or both.

A policy subclasses `Policy` and overrides ``plan``, ``choose``, or both; one that learns overrides
``observe``. The same object serves the kit's `Trainer` and any other loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from astkit.gating.losses import cross_entropy_rows
from astkit.gating.sampler import PolicySampler, RunInfo
from astkit.gating.scored import Scored, correctness
from astkit.gating.selection import Selection
from astkit.identity import arguments
from astkit.names import resolve


class PolicyCard(NamedTuple):
    """A policy in words.

    Attributes:
        law: how rows are chosen, one line.
        source: where the law comes from.
        cost: what a sample costs that is not trained on.
        bias: what the choice does to the gradient, and how that is corrected.
        avoid: when not to use it.
    """

    law: str
    source: str
    cost: str
    bias: str
    avoid: str


class Cost(NamedTuple):
    """What choosing costs, a candidate row, in forward passes.

    Attributes:
        forwards: of the model in training.
        helpers: of helper models, each pass counted with that model's own FLOPs.
    """

    forwards: float = 0.0
    helpers: float = 0.0


@dataclass(frozen=True)
class Visit:
    """What training or scoring found out about samples.

    Attributes:
        index: int64 ``[n]``: which samples, on the CPU; ``None`` where the data do not say.
        losses: ``[n]``, before any step on them.
        correct, confidence: bool ``[n]`` and the largest class probability ``[n]``, where the
            policy ``needs_outputs`` and the task has classes, else ``None``.
        trained: whether they were trained on, or only scored.
    """

    index: Tensor | None
    losses: Tensor
    correct: Tensor | None = None
    confidence: Tensor | None = None
    trained: bool = True


class Policy:
    """Chooses what is trained on; the base class chooses everything.

    A constructor keeps each argument in an attribute of its name, so that a resumed run can be
    checked for the same arguments.

    Attributes:
        rounds: plans an epoch, of equal numbers of candidates; an epoch is one iteration of the
            loader.
        needs_index: whether the policy remembers samples, so that data must provide indices.
        needs_outputs: whether ``observe`` needs ``correct`` and ``confidence``.
        state: names of the attributes to save: tensors, numbers, strings or ``None``.
        cost: what choosing costs.
        card: the policy in words.
        seed: of its draws.
        begun: iterations of its sampler so far.
    """

    rounds: int = 1
    needs_index: bool = False
    needs_outputs: bool = False
    state: ClassVar[tuple[str, ...]] = ()
    cost: Cost = Cost()
    card: ClassVar[PolicyCard]
    seed: int = 0
    begun: int = 0
    _sampler: PolicySampler | None = None

    def plan(self, run: RunInfo) -> Selection | None:
        """The rows of the next round, before anything is loaded; ``None``: all its candidates."""
        return None

    def choose(self, batch: Scored) -> Selection | None:
        """The rows of a loaded batch to train on; ``None``: all of them."""
        return None

    def observe(self, visit: Visit) -> None:
        """Called with what training or scoring found out about samples."""

    def prepare(self, make_model: Callable[[], nn.Module], data: Any) -> None:
        """Called once before training, within the measured time: trains helper models.

        Args:
            make_model: gives an untrained copy of the model in training.
            data: the training data as `Scored` batches; iterable more than once.
        """

    def steer(self, name: str, value: Any) -> None:
        """Change a setting during the run; ``ValueError`` for one that cannot change."""
        raise ValueError(f"{type(self).__name__} has no setting {name!r} to steer")

    def expected_rows(self, samples: int) -> int:
        """Rows of an epoch, as far as they are known without a plan."""
        rate = getattr(self, "rate", 1.0)
        return max(1, round(rate * samples)) if overrides(self, "plan") else samples

    def config(self) -> dict[str, Any]:
        """The arguments that it was made with, by name."""
        return arguments(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything that later choices depend on."""
        return {"begun": self.begun, **{name: getattr(self, name) for name in self.state}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``; ``KeyError`` if it lacks an entry."""
        self.begun = state["begun"]
        for name in self.state:
            value = state[name]
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)

    # --- in your own loop ---

    def __call__(
        self, model: nn.Module, x: Any, y: Any = None, index: Tensor | None = None
    ) -> Selection:
        """Choose from a loaded batch: ``x`` and ``y``, or ``x`` alone if it is a whole batch.

        Raises ``ValueError`` for a policy that chooses before loading, and for a missing index.
        """
        batch = self._batch(model, x, y, index)
        rows, chosen = batch.rows, self.choose(batch)
        if chosen is None:
            return Selection(torch.arange(rows), candidates=rows, rate=1.0)
        return chosen.check(rows, self)

    def _batch(self, model: nn.Module, x: Any, y: Any, index: Tensor | None) -> Scored:
        if not overrides(self, "choose"):
            raise ValueError(
                f"{type(self).__name__} chooses before loading: pass"
                " sampler=policy.sampler(data, epochs=...) to a DataLoader of indexed(data)"
            )
        if self.needs_index and index is None:
            raise ValueError(
                f"{type(self).__name__} remembers samples, but got no index: let the DataLoader"
                " load indexed(data) and pass each batch's index=..."
            )
        criterion = getattr(self, "criterion", None) or cross_entropy_rows
        return Scored(None, x if y is None else y, x, index, model, criterion=criterion)

    def sampler(self, data: Any, epochs: float) -> PolicySampler:
        """A sampler for ``DataLoader(indexed(data), batch_size=..., sampler=...)``.

        Each iteration of the loader is an epoch of ``epochs``; train with ``policy.mean(losses,
        index)``. ``data`` is anything with a length.
        """
        if not overrides(self, "plan"):
            raise ValueError(
                f"{type(self).__name__} chooses after scoring: call chosen = policy(model, x, y)"
                " on each batch instead"
            )
        self._sampler = PolicySampler(self, data, epochs)
        return self._sampler

    def mean(
        self, losses: Tensor, index: Tensor, outputs: Any = None, targets: Any = None
    ) -> Tensor:
        """The loss of a batch that the policy's sampler drew, 0-dim; the policy observes it.

        Args:
            losses: one a row, ``[rows]``, in the order of ``index``.
            index: int64 ``[rows]``, as the `indexed` data set gave it.
            outputs, targets: for a policy that ``needs_outputs``.

        Raises ``ValueError`` for rows that were not drawn, or a policy without a sampler.
        """
        if self._sampler is None:
            raise ValueError(
                f"{type(self).__name__} has drawn nothing: give the DataLoader"
                " sampler=policy.sampler(data, epochs=...) first"
            )
        if self.needs_outputs and (outputs is None or targets is None):
            raise ValueError(
                f"{type(self).__name__} needs to know which samples were right: call"
                " policy.mean(losses, index, outputs=outputs, targets=y)"
            )
        total = self._sampler.mean(losses, index)
        if overrides(self, "observe"):
            known = correctness(outputs, targets) if self.needs_outputs else (None, None)
            self.observe(visit_of(index, losses, known, trained=True))
        return total


def overrides(policy: object, method: str) -> bool:
    """Whether ``policy``'s class has a ``method`` of its own."""
    return getattr(type(policy), method, None) is not getattr(Policy, method)


def visit_of(
    index: Tensor | None,
    losses: Tensor,
    known: tuple[Tensor | None, Tensor | None],
    trained: bool,
) -> Visit:
    """A `Visit` with everything detached and on the CPU."""
    samples, correct, confidence = (
        None if part is None else part.detach().cpu() for part in (index, *known)
    )
    return Visit(samples, losses.detach().float().cpu(), correct, confidence, trained)


def as_policy(policy: Policy | str | Mapping[str, Any] | None, seed: int = 0) -> Policy | None:
    """A policy by name, or by ``{"name": ..., argument: value, ...}``, or the object itself.

    ``seed`` is given to one that is named and takes a seed, unless the mapping says another.

    Raises ``ValueError`` for an unknown name or impossible arguments.
    """
    if policy is None or isinstance(policy, Policy):
        return policy
    options: dict[str, Any] = {"name": policy} if isinstance(policy, str) else {}
    options |= policy if isinstance(policy, Mapping) else {}
    if "name" not in options:
        raise ValueError(
            f"policy is {policy!r}: pass a policy such as RandomSubset(0.1), its name, or"
            ' {"name": "random", "rate": 0.1}'
        )
    name = options.pop("name")
    made: Any = resolve("policy", name)
    names = inspect.signature(made).parameters
    if "seed" in names:
        options.setdefault("seed", seed)
    try:
        inspect.signature(made).bind(**options)
    except TypeError as error:
        raise ValueError(
            f"policy {name!r} cannot be made with {options} ({error}): its arguments are"
            f" {', '.join(names)}"
        ) from None
    return made(**options)
