"""Training of an automaton: a `Trainer` that sums losses and evaluates the hard gates too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from astkit import distributed
from astkit.checks import check_count
from astkit.datasets import as_loader
from astkit.datasets.batch import Batch, join
from astkit.gating import evaluating
from astkit.profiling.flops import BatchFlops, PassFlops
from astkit.systems.automaton.automaton import LogicCA
from astkit.systems.automaton.circuit import PackedCircuit, from_automaton
from astkit.systems.automaton.gradients import Gradients, Parallel, first_channel_loss, gradients
from astkit.systems.automaton.tasks import AutomatonTask
from astkit.trainers import Budget, TrainConfig, Trainer

CLIP = 100.0
"""Largest magnitude of an element of the gradient."""

OWN = {"config", "criterion", "epochs", "metrics", "optimizer", "validation"}
"""Arguments of `Trainer` that are determined by the task."""

EVALUATION = -1
"""Iteration number of evaluation masks; those of training are 0 or more."""


class AutomatonTrainer(Trainer):
    """Trains an automaton on ``task``: AdamW, betas (.9, .99), on the sum of the losses. ::

        trainer = AutomatonTrainer(game_of_life(), seed=1)
        trainer.run().epochs[-1]["val_wrong"]

    The gradient is clipped element by element to ±`CLIP`. It is that of a sum, not a mean: gates
    with nearly saturated softmax have tiny gradients, compared to which the optimizer's eps would
    be large. After each pass the soft and the hard automaton are evaluated, see `evaluate`.

    Args:
        seed: seed of wiring, order of samples, masks and hard gates.
        iterations: the budget is as many passes over the samples as this number of batches takes,
            by default the task's; a policy that selects before loading takes fewer batches.
        parallel: see `gradients`.
        lr, schedule: see `TrainConfig`.
        budget: instead of ``iterations``.
        model: by default created from the task's config, with wiring from ``seed``.
        options: other arguments of `Trainer`, such as policy, device, checkpoints, resume.

    Raises ``ValueError`` for several processes, or both iterations and a budget; ``TypeError`` for
    arguments of `Trainer` that this one determines.
    """

    def __init__(
        self,
        task: AutomatonTask,
        *,
        seed: int = 0,
        iterations: int | None = None,
        parallel: Parallel = "batch",
        lr: float = 0.05,
        schedule: str = "constant",
        budget: Budget | None = None,
        model: LogicCA | None = None,
        **options: Any,
    ) -> None:
        for name in sorted(OWN & options.keys()):
            raise TypeError(f"AutomatonTrainer determines {name} itself: omit it")
        if (processes := distributed.world()) > 1:
            raise ValueError(
                f"{processes} processes train an automaton, but its step does not average"
                " gradients: use one process"
            )
        self.task, self.seed = task, seed
        self.parallel: Parallel = parallel
        source = task.source(seed)
        wanted = task.iterations if iterations is None else check_count("iterations", iterations)
        if budget is not None and iterations is not None:
            raise ValueError(f"iterations is {iterations}, but a budget is given too: omit one")
        self.automaton = model or LogicCA(replace(task.config, seed=seed))
        settings: Any = {"betas": (0.9, 0.99), "weight_decay": task.weight_decay, "fused": True}
        adamw = torch.optim.AdamW(self.automaton.parameters(), lr, **settings)
        super().__init__(
            self.automaton,
            source,
            # half a batch less than a whole number, so that rounding cannot add a batch
            budget=budget or Budget(epochs=(wanted - 0.5) / len(source)),
            config=TrainConfig(lr=lr, schedule=schedule, clip_norm=None, seed=seed),
            criterion=first_channel_loss,
            optimizer=adamw,
            **options,
        )

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """States after the task's steps, with the masks and hard gates of this iteration."""
        if not isinstance(model, LogicCA):  # a second model, which a score asks
            return super().forward(model, batch)
        masks = self.task.masks(batch.index, self.seed, self.step)
        return model(batch.x, self.task.steps, masks, self.task.hard(self.seed, self.step))

    def train_rows(self, batch: Batch, weight: Tensor | None, normaliser: float | Tensor) -> Tensor:
        """One update by the gradient of ``sum(weight * loss)``; returns the losses before it.

        The ``normaliser`` of a mean is not used.
        """
        with self.ledger.phase("load"):
            masks = self.task.masks(batch.index, self.seed, self.step)
            hard = self.task.hard(self.seed, self.step)
        with self.ledger.phase("gradients"):
            losses, summed = gradients(
                self.automaton,
                batch.x,
                batch.y,
                self.task.steps,
                masks,
                hard=hard,
                weight=weight,
                parallel=self.parallel,
            )
        with self.ledger.phase("optimizer"):
            apply_gradients(self.automaton, self.optimizer, summed)
            self.optimisation.steps += 1
        return losses

    def count_flops(self, model: nn.Module, batch: Batch) -> BatchFlops:
        """FLOPs of the gates of a rollout, since torch's counter ignores elementwise operations.

        A gate ``c0 + c1 a + b (c2 + c3 a)`` is 3 multiply-adds; its backward pass 8: 2 each for the
        gradients of a and b, one each for c1, c2 and c3, one for a common product. The softmax,
        once per rollout, is not counted.
        """
        if not isinstance(model, LogicCA):
            return super().count_flops(model, batch)
        gates = model.config.gates_per_cell * batch.x[0, 0].numel() * self.task.steps
        forward, backward = PassFlops(6.0 * gates), PassFlops(16.0 * gates)
        return BatchFlops(forward, forward, backward)

    def validate(self) -> dict[str, Any]:
        """`evaluate` on the task's fixed samples, names prefixed with ``val_``."""
        metrics = self.evaluate(self.task.evaluation()) if self.validator.each_epoch else {}
        return {f"val_{name}": value for name, value in metrics.items()}

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Metrics of a batch, or of one pass over ``data``, see `evaluate`."""
        if not isinstance(data, Batch):
            data = join(list(as_loader(data, self.device).batches(0)))
        batch = data.to(self.device)
        cost = self.cost(batch)
        with self.ledger.clock("evaluation"):
            self.ledger.note(cost, evaluated=2 * batch.rows)  # soft and hard
            return evaluate(self.automaton, self.task, batch)

    def picture(self) -> NDArray[np.uint8]:
        """The end of the task's example by the hard automaton of now: RGB ``[height, width, 3]``.

        Living cells are dark; wrong ones are red, and pale red where they should live. A live
        board shows it while the automaton learns.
        """
        from astkit.systems.automaton.plots import coloured  # loads matplotlib

        start, steps, true = self.task.example()
        masks = self.task.masks(torch.zeros(1, dtype=torch.int64), 0, EVALUATION)
        end = PackedCircuit(from_automaton(self.automaton)).rollout(start, steps, masks)
        return coloured(end[0, 0].numpy(), true.numpy())


def apply_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, summed: Gradients) -> None:
    """Clip the gradient ``summed`` elementwise to ±`CLIP` and take one optimizer step.

    Raises ``FloatingPointError`` for a non-finite gradient, before any weight changes.
    """
    largest = nn.utils.get_total_norm(summed.values(), float("inf"))
    if not torch.isfinite(largest):
        raise FloatingPointError(
            f"the gradient became {largest.item()}: the weights are unchanged by this step;"
            " decrease lr, and check the batch's inputs for NaN"
        )
    for name, parameter in model.named_parameters():
        parameter.grad = summed[name]
    nn.utils.clip_grad_value_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def evaluate(model: LogicCA, task: AutomatonTask, batch: Batch | None = None) -> dict[str, Any]:
    """Metrics of the soft and the hard automaton on ``batch``, by default the task's fixed samples.

    ``loss`` and ``hard_loss``: means per sample; ``wrong``: cells in which the rounded channel 0 of
    the hard automaton differs from the target; ``accuracy``: share of the others.
    """
    device = next(model.parameters()).device
    batch = (batch or task.evaluation()).to(device)
    masks = task.masks(batch.index, 0, EVALUATION)
    with evaluating(model, device):
        soft, hard = (model(batch.x, task.steps, masks, way) for way in (False, True))
        losses = [first_channel_loss(states, batch.y).sum().item() for states in (soft, hard)]
        wrong = int((hard[:, 0].round() != batch.y).sum())
    accuracy = 1 - wrong / hard[:, 0].numel()  # a board shows what follows the loss
    means = {"loss": losses[0] / batch.rows, "accuracy": accuracy}
    return {**means, "hard_loss": losses[1] / batch.rows, "wrong": wrong}
