"""Training of a lattice with `Trainer`: ledger, precision, gating and checkpoints.

The model maps rows to rows and the criterion returns one loss per row; the metrics of a
pass are those of `retrieval`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astkit import rng
from astkit.datasets import BatchSource, Loader
from astkit.gating import evaluating
from astkit.lattice.baselines import retrieval
from astkit.lattice.config import LatticeConfig
from astkit.lattice.model import EnergyFlowLattice
from astkit.lattice.tasks import Pairs, Task
from astkit.lattice.text import TextBridge, Vocabulary
from astkit.trainers import Budget, TrainConfig, Trainer
from astkit.trainers.evaluator import Evaluator

OTHERS = 4096
"""Maximum number of contrastive targets; cost per row is linear in it."""

SETTINGS = TrainConfig(lr=2e-3, weight_decay=0.01, clip_norm=1.0)

_SAME = 0.9999  # cosine above which a target counts as equal to the row's


@dataclass(frozen=True)
class LossWeights:
    """Loss of a row: ``1 - cos``, plus the weighted terms below.

    Attributes:
        contrast: cross-entropy of the row's target among targets of other training pairs, at
            ``temperature`` (InfoNCE: van den Oord et al., arXiv 1807.03748). They are the same
            for every batch, so a row's loss does not depend on its batch.
        text: the decoder's cross-entropy plus ``1 - cos`` of the encoder's embedding; requires a
            task with texts.
        temperature: divisor of cosines in the contrast.
        fade: decrease the contrast's weight linearly to 0 during training. It improves the
            ranks early, but lowers the cosine, which recovers without it. ``val_loss`` has the full
            weight, so that passes are comparable.

    Raises ``ValueError`` for a negative weight or a temperature of 0 or below.
    """

    contrast: float = 0.0
    text: float = 0.0
    temperature: float = 0.05
    fade: bool = False

    def __post_init__(self) -> None:
        for name in ("contrast", "text"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"the weight of {name} is {getattr(self, name)}: give 0 or more")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: give a number above 0")


class LatticeRows(nn.Module):
    """A lattice with one input and one output tensor, a row per sample, for `Trainer`.

    Input: embeddings ``[B, dim]``, with a bridge followed by the source's token indices,
    ``[B, dim + length]``. Output: predictions ``[B, dim]``, with a bridge followed by the surface
    and the encoder's loss, ``[B, dim + cells + 1]``. Raises ``ValueError`` for another shape.
    """

    def __init__(self, lattice: EnergyFlowLattice, bridge: TextBridge | None = None) -> None:
        super().__init__()
        self.lattice, self.bridge = lattice, bridge

    def forward(self, x: Tensor) -> Tensor:
        if self.bridge is None:
            predicted: Tensor = self.lattice(x).y
            return predicted
        dim, length = self.lattice.config.dim, self.bridge.length
        if x.shape[1:] != (dim + length,):
            raise ValueError(
                f"x has shape {list(x.shape)}: give [batch, {dim + length}], embeddings with"
                f" the source's {length} tokens, which the text bridge encodes"
            )
        embedding = x[:, :dim]
        found = self.lattice(embedding)
        encoded = self.bridge.encoder(x[:, dim:].long())
        apart = 1 - F.cosine_similarity(encoded, embedding)
        return torch.cat([found.y, found.surface, apart[:, None]], 1)


class LatticeLoss:
    """Criterion for ``rows``: outputs and targets as in `LatticeRows`; returns ``[B]``.

    ``others [K, dim]`` are the contrastive targets; ``left`` returns the factor of the contrast's
    weight, from 1 to 0 if it fades.
    """

    def __init__(
        self,
        rows: LatticeRows,
        weights: LossWeights,
        others: Tensor | None = None,
        left: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.rows, self.weights, self.left = rows, weights, left
        self.others = None if others is None else F.normalize(others)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights, config = self.weights, self.rows.lattice.config
        y, wanted = outputs[:, : config.dim], targets[:, : config.dim]
        cosine = F.cosine_similarity(y, wanted)
        losses = 1 - cosine
        if self.others is not None:
            self.others = self.others.to(y.device)
            contrast = self._contrast(self.others, y, wanted, cosine)
            losses = losses + self.left() * weights.contrast * contrast
        if self.rows.bridge is not None:
            surface, tokens = outputs[:, config.dim : -1], targets[:, config.dim :].long()
            spoken = self.rows.bridge.word_losses(surface, tokens)
            losses = losses + weights.text * (spoken + outputs[:, -1])
        return losses

    def _contrast(self, others: Tensor, y: Tensor, wanted: Tensor, cosine: Tensor) -> Tensor:
        same = F.normalize(wanted) @ others.T > _SAME
        logits = (F.normalize(y) @ others.T).masked_fill(same, -torch.inf)
        both = torch.cat([cosine[:, None], logits], 1) / self.weights.temperature
        return both.logsumexp(1) - both[:, 0]


class RetrievalEvaluator(Evaluator):
    """Computes `Retrieval` metrics and the mean loss on ``loader``'s pairs after each pass.

    Recorded as ``val_mrr``, ``val_cosine``, ``val_top1``, ``val_top5`` and ``val_loss``.
    """

    def __init__(self, *parts: Any, loader: Loader, dim: int) -> None:
        super().__init__(*parts)
        self._loader, self._dim = loader.to(self.learner.device), dim

    def found(self) -> dict[str, Any]:
        """Metrics on the validation part."""
        metrics = self.evaluate(self._loader).items()
        return {f"val_{name}": value for name, value in metrics if name != "samples"}

    def evaluate(self, source: BatchSource) -> dict[str, Any]:
        """Metrics without ``val_`` of one pass over ``source``, timed by the evaluation clock."""
        predicted, targets, losses = [], [], []
        learner = self.learner
        with self._evaluation():
            for batch in source.batches(0):
                outputs = learner.outputs(self._booked(batch).x).float()
                losses.append(learner.criterion(outputs, batch.y))
                predicted.append(outputs[:, : self._dim])
                targets.append(batch.y[:, : self._dim])
            metrics = asdict(retrieval(torch.cat(predicted), torch.cat(targets)))
        return {"loss": float(torch.cat(losses).cpu().double().mean()), **metrics}


def lattice_trainer(
    config: LatticeConfig,
    task: Task,
    *,
    steps: int = 300,
    batch_size: int = 64,
    settings: TrainConfig = SETTINGS,
    weights: LossWeights | None = None,
    model: EnergyFlowLattice | None = None,
    **trainer: Any,
) -> Trainer:
    """A `Trainer` of a lattice on ``task``. ::

        done = lattice_trainer(LatticeConfig(), docs_task(2000), steps=300)
        done.run().epochs[-1]["val_mrr"]

    The trained model is a `LatticeRows`. ``config.lattice=False`` trains the bypass: mapper
    and collector without flows.

    The ledger's FLOPs are those of two samples at the first batch, times the rows. The cost of a
    sample changes with the weights, since flows spawn, die and stop early: compare seconds too.

    Args:
        config: settings of the lattice; ``dim`` must equal the task's.
        steps: the budget is as many passes over the pairs as this number of batches takes; a policy
            that selects before loading takes fewer batches.
        settings: learning rate etc.; ``seed`` also determines the order of the pairs.
        weights: weights of the loss; ``text`` above 0 trains a `TextBridge` with the lattice.
        model: by default created from ``config``, instead of which a given model's own is used.
        trainer: other arguments of `Trainer`, such as policy, device, checkpoints, resume.

    Raises ``ValueError`` for different dims, less than one step, or text without texts.
    """
    model = model or EnergyFlowLattice(config)
    config = model.config
    if config.dim != task.dim:
        raise ValueError(
            f"the lattice's config.dim is {config.dim}, but the embeddings of {task.name!r} have"
            f" {task.dim}: build the lattice with the task's dim"
        )
    if steps < 1:
        raise ValueError(f"steps is {steps}: give 1 or more")
    weights, seed = weights or LossWeights(), settings.seed
    train, held, bridge, others = task.train, task.validation, None, None
    if weights.contrast:
        others = train.fetch(rng.permutation(len(train), seed, "contrast")[:OTHERS])[1]
    if weights.text:
        pairs = task.texts_of(train)
        texts = [pair.source for pair in pairs] + [pair.target for pair in pairs]
        bridge = TextBridge(Vocabulary(texts), config.dim, config.cells, seed=seed)
        train, held = _with_tokens(task, bridge)
    loader = Loader(train, batch_size, seed=seed)
    rows = LatticeRows(model, bridge)

    def left() -> float:
        fading = weights.fade and made.position.phase == "train"
        return 1 - made.progress if fading else 1.0

    check = Loader(held, batch_size, shuffle=False)
    made = Trainer(
        rows,
        loader,
        # half a step less than a whole number, so that rounding cannot add a step
        budget=Budget(epochs=(steps - 0.5) / len(loader)),
        config=settings,
        criterion=LatticeLoss(rows, weights, others, left),
        evaluator=partial(RetrievalEvaluator, loader=check, dim=config.dim),
        **trainer,
    )
    return made


def _with_tokens(task: Task, bridge: TextBridge) -> list[Pairs]:
    """Both parts, with the tokens of source and target appended to the embeddings."""
    encode = partial(bridge.vocabulary.encode, length=bridge.length)
    x = torch.cat([task.train.x, encode([pair.source for pair in task.texts])], 1)
    y = torch.cat([task.train.y, encode([pair.target for pair in task.texts])], 1)
    return [replace(part, x=x, y=y) for part in (task.train, task.validation)]


def examples(rows: LatticeRows, task: Task, count: int = 5) -> list[dict[str, str]]:
    """Texts generated by a trained bridge for the first ``count`` validation pairs.

    ``source`` and ``target`` are the task's texts; ``said`` is decoded from the task's embedding of
    the source, ``heard`` from the bridge's own embedding.

    Raises ``ValueError`` for a model without a bridge.
    """
    bridge = rows.bridge
    if bridge is None:
        raise ValueError("the model has no text bridge: train with LossWeights(text=...) above 0")
    pairs = task.texts_of(task.validation)[:count]
    device = bridge.encoder.out.weight.device
    with evaluating(rows, device):
        x, _ = task.validation.fetch(torch.arange(len(pairs)))
        sources = (x.to(device), bridge.encode([pair.source for pair in pairs]))
        spoken = [bridge.decode(rows.lattice(side).surface) for side in sources]
    return [
        {"source": pair.source, "target": pair.target, "said": said, "heard": heard}
        for pair, said, heard in zip(pairs, *spoken, strict=True)
    ]
