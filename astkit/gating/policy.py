"""Interface of sample selection: before loading, after scoring, or both.

A policy subclasses `Policy` and overrides ``plan``, ``choose``, or both, and ``observe`` to update
its state. The same object works with the `Trainer` and, driven by `InLoop`, in other loops.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from astkit import distributed
from astkit.checks import check_count
from astkit.datasets.batch import Batch, check_index
from astkit.gating.epoch import PolicySampler
from astkit.gating.epoch import RunInfo as RunInfo
from astkit.gating.losses import (
    Criterion,
    check_unshifted,
    class_outputs,
    cross_entropy_rows,
    shown,
)
from astkit.gating.selection import (
    Predictions,
    called,
    check_selection,
    evaluating,
    predictions,
    unchanged,
)
from astkit.gating.selection import Scored as Scored
from astkit.gating.selection import Selection as Selection
from astkit.gating.visits import Visit as Visit
from astkit.gating.visits import Visits
from astkit.names import resolve, spelled


class PolicyCard(NamedTuple):
    """Description of a policy, beside its rule, which is the first sentence of its docstring.

    The ``source`` of the rule, the ``cost`` of a sample that is not trained on, the ``bias`` of the
    gradient and how it is corrected, and when to ``avoid`` it.
    """

    source: str
    cost: str
    bias: str
    avoid: str


class Policy:
    """Base class of selection policies; by default all samples are selected.

    Example::

        from astkit import Selection

        class FirstHalf(Policy):
            def plan(self, run):
                return Selection(run.rows[: len(run.rows) // 2])

        Trainer(model, train, policy=FirstHalf(), epochs=1).run()

    Constructors must store each argument in an attribute of the same name; resuming compares them.
    Everywhere ``rate`` is the fraction of the rows of an epoch or a batch that are trained on, in
    (0, 1]; an invalid argument, or data that lack what the policy needs, raise ``ValueError``.
    """

    #: planning rounds per epoch (one iteration of the loader), each with equally many candidates
    rounds: int = 1
    needs_index: bool = False  #: whether per-sample state is kept, which requires indices
    needs_outputs: bool = False  #: whether ``observe`` needs predictions, see `Visit`
    plans: ClassVar[bool] = False  #: whether the class overrides ``plan``
    chooses: ClassVar[bool] = False  #: whether it overrides ``choose``
    observes: ClassVar[bool] = False  #: whether it overrides ``observe``
    steers: ClassVar[bool] = False  #: whether it overrides ``steer``
    state: ClassVar[tuple[str, ...]] = ()  #: attributes to save (tensors, numbers, strings, None)
    card: ClassVar[PolicyCard]
    #: of ``choose``; by default the trainer's, and cross-entropy in custom loops
    criterion: Criterion | None = None
    begun: int = 0  #: number of sampler iterations started so far
    flops: float = 0.0  #: of the policy's own work besides passes, until the trainer books them
    #: FLOPs that computing its numbers outside took, counted with the first step; None if not
    cost: float | None = 0.0
    draws_target: bool = False  #: whether it draws from the rows of a target too, see `joined`
    _seed: int = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.plans = cls.plan is not Policy.plan
        cls.chooses = cls.choose is not Policy.choose
        cls.observes = cls.observe is not Policy.observe
        cls.steers = cls.steer is not Policy.steer

    @property
    def seed(self) -> int:
        """Random seed, 0 or more."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = check_count("seed", seed, least=0)

    def plan(self, run: RunInfo) -> Selection | None:
        """Select the rows of the next round before loading; ``None`` selects all candidates."""
        return None

    def choose(self, batch: Scored) -> Selection | None:
        """Select the rows of a loaded batch to train on; ``None`` selects all.

        Rows without a label are not in ``batch``.
        """
        return None

    def observe(self, visit: Visit) -> None:
        """Called with the per-sample results of training or scoring."""

    def check(self, run: RunInfo) -> None:
        """Raise ``ValueError`` if data or labels of the ``run`` lack what the policy needs.

        By default it plans the round, so that it has to be used for nothing else.
        """
        chosen = self.plan(run)
        if chosen is not None:
            check_selection(chosen, run.samples, self)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting during the run; raises ``ValueError`` if unsupported."""
        raise ValueError(f"{type(self).__name__} has no setting {name!r} to steer")

    def expected_rows(self, samples: int) -> int:
        """Estimated number of loaded rows per epoch, without planning."""
        rate = getattr(self, "rate", 1.0)  # of each batch, if the policy chooses
        return max(1, round(rate * samples)) if self.plans and not self.chooses else samples

    def config(self) -> dict[str, Any]:
        """Constructor arguments by name, as far as they are stored under these names."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def state_dict(self) -> dict[str, Any]:
        """State that determines later selections."""
        if distributed.world() == 1:
            self.exchange()
        state = {"begun": self.begun, **{name: getattr(self, name) for name in self.state}}
        return copy.deepcopy(state)  # later batches write into the tensors

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``; raises ``ValueError`` for missing entries."""
        missing = [name for name in ("begun", *self.state) if name not in state]
        if missing:
            raise ValueError(
                f"the state has no {', '.join(missing)}: pass what the state_dict() of a"
                f" {type(self).__name__} returned"
            )
        self.begun = state["begun"]
        for name in self.state:
            value = state[name]
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)

    def choose_from(self, batch: Scored) -> Selection:
        """What `choose` selects of the rows of ``batch`` that have a label.

        ``ValueError`` if that is no valid selection.
        """
        batch.leave_out_unlabelled()
        none = batch.places is not None and not len(batch.places)
        chosen = batch.select(torch.arange(0)) if none else self.choose(batch)
        if chosen is None:
            chosen = batch.select(torch.arange(batch.rows))
        return batch.in_batch(check_selection(chosen, batch.rows, self))

    # --- what drives the rule: a trainer reports and exchanges, other loops use the rest ---

    @cached_property
    def loop(self) -> InLoop:
        """Sampler and waiting visits of this policy."""
        return InLoop(self)

    def report(self, *visits: Visit) -> None:
        """Keep the ``visits`` to one batch, which ``observe`` receives in `exchange`."""
        self.loop.visits.put(*visits)

    def exchange(self) -> None:
        """Observe what was reported since the last call; every process must call it.

        It is called before each plan, after the last batch of an epoch, and before a state is
        saved, so that losses are copied from the device once a round.
        """
        for visit in self.loop.visits.take():
            self.observe(visit)

    def __call__(
        self, model: nn.Module, x: Any, y: Any = None, index: Tensor | None = None
    ) -> Selection:
        """Select from a loaded batch: ``x`` and ``y``, or ``x`` alone if it is the whole batch.

        ``index``, int64 ``[rows]``, is required by a policy that keeps per-sample state, and by one
        with a sampler, whose plan may weigh the rows. A policy that overrides ``observe`` is told
        the losses by `report_batch`. Raises ``ValueError`` for another order of the arguments, and
        for an index of other rows.
        """
        return self.loop.choose(model, x, y, index)

    def sampler(
        self, data: Any, epochs: float, validation: Any = None, classes: bool | None = None
    ) -> PolicySampler:
        """A sampler for ``DataLoader(indexed(data), batch_size=..., sampler=...)``.

        Each iteration of the loader is one of ``epochs`` epochs; train with ``policy.mean(losses,
        index)``. ``data`` is any object with a length; some policies prefer the distribution of
        ``validation``. ``classes``: whether whole-number targets name classes, not counts or ages;
        by default it is guessed, see `class_labels`. With several processes, each draws its share
        of the same plan.
        """
        if not self.plans:
            raise ValueError(
                f"{type(self).__name__} selects after scoring: call chosen = policy(model, x, y)"
                " on each batch instead"
            )
        made = PolicySampler(self, data, epochs, validation, self.observes, classes)
        self.loop = InLoop(self, made)
        return made

    def mean(
        self, losses: Tensor, index: Tensor, outputs: Any = None, targets: Any = None
    ) -> Tensor:
        """``sum(scale * loss) / rows`` of a batch drawn by the policy's sampler, 0-dim.

        ``losses [rows]``, which ``observe`` receives, are in the order of ``index``, int64
        ``[rows]``, which comes with the batch. A policy that ``needs_outputs`` requires ``outputs``
        and ``targets``. With several processes, each passes as many rows. Raises ``ValueError`` for
        other shapes, and for rows that were not drawn in this iteration or are used already.
        """
        return self.loop.mean(losses, index, outputs, targets)

    def report_batch(
        self, losses: Tensor, index: Tensor | None, outputs: Any, targets: Any
    ) -> None:
        """Keep the results of a training batch for ``observe``; every process must call it."""
        if self.observes:
            known = Predictions()
            pair = class_outputs(outputs, targets) if self.needs_outputs else None
            if pair is not None and pair[0].shape[1] > 1:  # one output may be no logit
                known = predictions(outputs, targets)
            self.report(Visit(index, losses.detach(), *known[:3]))


class InLoop:
    """Drives a policy in a loop that is not the kit's.

    Attributes:
        policy, sampler: the rule, and what draws the rows that it plans, if it does.
        visits: those that the policy has not observed yet.
    """

    def __init__(self, policy: Policy, sampler: PolicySampler | None = None) -> None:
        self.policy, self.sampler, self.visits = policy, sampler, Visits()
        self._name = type(policy).__name__
        self._compared = False  # whether the model was looked at, see `check_unshifted`

    def choose(self, model: nn.Module, x: Any, y: Any, index: Tensor | None) -> Selection:
        """Score a batch and select its rows, weighted by the plan they come from."""
        if not self.policy.chooses:
            raise ValueError(
                f"{self._name} selects before loading: pass"
                " sampler=policy.sampler(data, epochs=...) to a DataLoader of indexed(data)"
            )
        if index is None and (self.policy.needs_index or self.sampler is not None):
            raise ValueError(
                f"{self._name} needs the index of each row, but got none: use a DataLoader"
                " of indexed(data) and pass index=... of each batch"
            )
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"model is a {type(model).__name__}: call the policy with the model, its inputs and"
                " the targets, as in policy(model, x, y)"
            )
        model = distributed.unwrapped(model)  # scoring exchanges nothing
        criterion = self.policy.criterion or cross_entropy_rows
        if criterion is cross_entropy_rows and y is None and not self._compared:
            self._compared = True
            with evaluating(model):
                check_unshifted(
                    lambda given: unchanged(called, model, Batch(None, given, given))[0], x
                )
        batch = Scored(None, x if y is None else y, x, index, model, criterion=criterion)
        if index is not None:
            check_index(index, batch.rows)
        self.policy.exchange()  # the choice may depend on the batch before
        chosen = self.policy.choose_from(batch)
        if self.sampler is not None and index is not None:
            scale = self.sampler.scale_of(index).to(chosen.weight.device)
            weight = chosen.weight * scale[chosen.index]
            chosen = replace(chosen, weight=weight, normaliser=chosen.total)
        return chosen if len(chosen) or distributed.world() == 1 else chosen.padded()

    def mean(self, losses: Tensor, index: Tensor, outputs: Any, targets: Any) -> Tensor:
        """Weigh the losses of a drawn batch, and report them."""
        if self.sampler is None:
            raise ValueError(
                f"{self._name} has no sampler: give the DataLoader"
                " sampler=policy.sampler(data, epochs=...) first"
            )
        if self.policy.needs_outputs and (outputs is None or targets is None):
            raise ValueError(
                f"{self._name} needs the correctness of each sample: call"
                " policy.mean(losses, index, outputs=outputs, targets=y)"
            )
        known = isinstance(losses, Tensor) and losses.ndim == 1
        if not known or shown(losses) != shown(index):
            raise ValueError(
                f"losses has {shown(losses)} and index {shown(index)}: pass one loss and one index"
                " per row, from a criterion built with reduction='none'"
            )
        scale = self.sampler.scale_of(index).to(losses.device)
        self.policy.report_batch(losses, index, outputs, targets)
        if self.sampler.over(len(index)):
            self.policy.exchange()
        return (losses * scale).sum() / len(index)


def check_samples(policy: Policy, memory: Tensor, run: RunInfo) -> None:
    """Raise ``ValueError`` unless ``memory`` has one entry per sample of ``run``."""
    if len(memory) != run.samples:
        raise ValueError(
            f"{type(policy).__name__} remembers {len(memory)} samples, but the data set has"
            f" {run.samples}: use a new policy, or the data set that it was used with"
        )


def policy_class(name: Any) -> Any:
    """The class of a name, or of "mine.py:Rule", the policy ``Rule`` of a file.

    Raises ``ValueError`` for an unknown name, a missing file, and one without such a policy.
    """
    path, _, kind = str(name).rpartition(":")
    if not path.endswith(".py"):
        return resolve("policy", name)
    spec: Any = spec_from_file_location(f"policies of {path}", path)
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        where = Path(path).resolve()
        raise ValueError(f"policy {name!r}: there is no file {where}: correct the path") from None
    sys.modules[spec.name] = module  # where a description of the run looks for the code
    made = getattr(module, kind, None)
    if not (isinstance(made, type) and issubclass(made, Policy)):
        raise ValueError(f"policy {name!r}: {path} has no subclass {kind!r} of Policy: add it")
    return made


def as_policy(policy: Policy | str | Mapping[str, Any] | None, seed: int = 0) -> Policy | None:
    """Build a policy from a name or ``{"name": ..., argument: value, ...}``; objects pass through.

    A name may have arguments, as in "random:rate=0.5"; a class of a file has the name
    "mine.py:Rule". ``seed`` is that of policies whose mapping sets none. Raises ``ValueError`` for
    an unknown name or invalid arguments.
    """
    if policy is None or isinstance(policy, Policy):
        return policy
    options: Any = spelled(policy) if isinstance(policy, str) else policy
    if not isinstance(options, Mapping) or "name" not in options:
        raise ValueError(
            f"policy is {policy!r}: pass a policy such as RandomSubset(0.1), its name, or"
            ' {"name": "random", "rate": 0.1}'
        )
    options = dict(options)
    name = options.pop("name")
    made = policy_class(name)
    signature = inspect.signature(made)
    if "seed" in signature.parameters:
        options.setdefault("seed", seed)
    first = next(iter(signature.parameters), "argument")
    example = f"{name}:{first}={'0.5' if first == 'rate' else '...'}"
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ValueError(
            f"policy {name!r} cannot be made with {options} ({error}): its arguments are"
            f" {', '.join(signature.parameters)}; write '{example}', in Python and in a shell"
        ) from None
    return made(**options)
