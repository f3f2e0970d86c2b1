"""Training of a lattice with `Trainer`: losses of pairs, ranks on the validation part, texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import StackDataset, TensorDataset

from astkit import rng
from astkit.checks import check_count
from astkit.datasets import Loader
from astkit.systems.lattice.model import EnergyFlowLattice, LatticeConfig, LatticeOutput
from astkit.systems.lattice.tasks import LatticeTask, Pairs, retrieval
from astkit.systems.lattice.text import TextBridge, Vocabulary
from astkit.trainers import Budget, Metric, TrainConfig, Trainer

OTHERS = 4096
"""Maximum number of contrastive targets; cost per row is linear in it."""

CONFIG = TrainConfig(lr=2e-3, weight_decay=0.01, clip_norm=1.0)

METRICS = ("mrr", "cosine", "top1", "top5")

OWN = {"budget", "criterion", "epochs", "metrics", "validation"}
"""Arguments of `Trainer` that are determined by the task and the number of steps."""

_SAME = 0.9999  # cosine above which a target counts as equal to the row's


class LatticeLoss:
    """Losses ``[B]`` of a lattice's outputs, from targets ``[B, dim]``.

    ``1 - cos``, plus ``contrast`` times the cross-entropy of the row's target among ``others [K,
    dim]`` at ``temperature`` (InfoNCE: van den Oord et al., arXiv 1807.03748). With a ``bridge``
    the targets are these, their tokens, the sources and their tokens, and ``text`` times the
    decoder's cross-entropy and ``1 - cos`` of the encoder's embedding is added. Raises
    ``ValueError`` for ``contrast`` without ``others``, or ``text`` without a ``bridge``.
    """

    def __init__(
        self,
        contrast: float = 0.0,
        others: Tensor | None = None,
        temperature: float = 0.05,
        bridge: TextBridge | None = None,
        text: float = 0.0,
    ) -> None:
        if contrast and others is None:
            raise ValueError(f"contrast is {contrast}, but others is None: give other targets")
        if text and bridge is None:
            raise ValueError(f"text is {text}, but bridge is None: give a TextBridge")
        self.contrast, self.temperature = contrast, temperature
        self.bridge, self.text = bridge, text
        self.others = None if others is None else F.normalize(others)

    def __call__(self, outputs: LatticeOutput, targets: Any) -> Tensor:
        wanted = targets if self.bridge is None else targets[0]
        cosine = F.cosine_similarity(outputs.y, wanted)
        losses = 1 - cosine
        if self.others is not None:
            self.others = self.others.to(wanted.device)
            same = F.normalize(wanted) @ self.others.T > _SAME
            logits = (F.normalize(outputs.y) @ self.others.T).masked_fill(same, -torch.inf)
            both = torch.cat([cosine[:, None], logits], 1) / self.temperature
            losses = losses + self.contrast * (both.logsumexp(1) - both[:, 0])
        if self.bridge is not None:
            _, tokens, x, source = targets
            words = self.bridge.word_losses(outputs.surface, tokens)
            encoded = F.cosine_similarity(self.bridge.encoder(source), x)
            losses = losses + self.text * (words + 1 - encoded)
        return losses


class Ranks:
    """One metric of `retrieval` over all rows of a pass."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: LatticeOutput, targets: Any) -> None:
        """Take in a batch."""
        self.pairs.append((outputs.y.float(), targets if torch.is_tensor(targets) else targets[0]))

    def compute(self) -> float:
        """The metric of all batches."""
        predicted, targets = map(torch.cat, zip(*self.pairs, strict=True))
        return retrieval(predicted, targets)[self.metric]


class LatticeTrainer(Trainer):
    """Trains a lattice on ``task``. ::

        trainer = LatticeTrainer(LatticeConfig(), docs_task(2000), steps=300)
        trainer.run().epochs[-1]["val_mrr"]

    FLOPs are counted at the first batch. The cost of a sample changes with the weights, since flows
    spawn, die and stop early: compare seconds too.

    Args:
        lattice: a lattice, or its settings; ``dim`` must equal the task's.
        steps: the budget is as many passes over the pairs as this number of batches takes; a policy
            that selects before loading takes fewer batches.
        batch_size: pairs per batch.
        config: learning rate etc.; ``seed`` also determines the order of the pairs.
        contrast: weight of the contrastive loss, see `LatticeLoss`; the other targets are those
            of training pairs, the same for every batch.
        temperature: divisor of cosines in the contrastive loss.
        text: weight of the text loss; above 0, a `TextBridge` is trained with the lattice, or the
            one that it has is trained further.
        options: other arguments of `Trainer`, such as policy, device, checkpoints, resume.

    Raises ``ValueError`` for less than one step, text without texts or with other words than those
    of the lattice's bridge, and ``TypeError`` for arguments of `Trainer` that this one determines.
    """

    def __init__(
        self,
        lattice: EnergyFlowLattice | LatticeConfig,
        task: LatticeTask,
        *,
        steps: int = 300,
        batch_size: int = 64,
        config: TrainConfig = CONFIG,
        contrast: float = 0.0,
        temperature: float = 0.05,
        text: float = 0.0,
        **options: Any,
    ) -> None:
        for name in sorted(OWN & options.keys()):
            raise TypeError(f"LatticeTrainer determines {name} itself: omit it")
        if isinstance(lattice, LatticeConfig):
            lattice = EnergyFlowLattice(lattice)
        self.task, self.lattice = task, lattice
        self.bridge: TextBridge | None = None
        parts: list[Any] = [task.train, task.validation]
        drawn = rng.permutation(len(task.train), config.seed, "contrast")[:OTHERS]
        others = task.train.y[drawn] if contrast else None
        if text:
            if not task.train.texts:
                raise ValueError(f"the task {task.name!r} has no texts: create it with text_task")
            sides = [side for pair in task.train.texts for side in (pair.source, pair.target)]
            vocabulary = Vocabulary(sides)
            self.bridge = getattr(lattice, "bridge", None)
            if self.bridge is None:
                cells = lattice.config.cells
                lattice.bridge = self.bridge = TextBridge(vocabulary, task.dim, cells, config.seed)
            elif self.bridge.vocabulary.tokens != vocabulary.tokens:
                raise ValueError(
                    f"text is {text}, but the lattice's bridge knows the words of other texts: give"
                    " a new lattice"
                )
            parts = [tokenized(part, vocabulary) for part in parts]
        self.loss = LatticeLoss(contrast, others, temperature, self.bridge, text)
        loader = Loader(parts[0], batch_size, seed=config.seed)
        super().__init__(
            lattice,
            loader,
            Loader(parts[1], batch_size, shuffle=False),
            # half a step less than a whole number, so that rounding cannot add a step
            budget=Budget(epochs=(check_count("steps", steps) - 0.5) / len(loader)),
            config=config,
            criterion=self.loss,
            metrics=[Metric(name, Ranks(name), higher_is_better=True) for name in METRICS],
            **options,
        )


def tokenized(pairs: Pairs, vocabulary: Vocabulary) -> StackDataset[Any]:
    """The targets of `LatticeLoss` with a bridge, for each source."""
    x: Any = pairs.x
    source = vocabulary.encode([pair.source for pair in pairs.texts])
    target = vocabulary.encode([pair.target for pair in pairs.texts])
    return StackDataset(x, TensorDataset(pairs.y, target, x, source))
