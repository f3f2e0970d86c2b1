"""Training a lattice with the kit's own `Trainer`: ledger, precision, gating and checkpoints.

The trainer sees a model from rows to rows and a criterion with one loss a row, so everything that
it does for classes it does here; only the metrics of a pass are others, those of `retrieval`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from astkit import rng
from astkit.gating import Gate, evaluating
from astkit.lattice.baselines import retrieval
from astkit.lattice.config import LatticeConfig
from astkit.lattice.model import EnergyFlowLattice
from astkit.lattice.objective import LatticeLoss, LatticeRows, LossWeights
from astkit.lattice.tasks import PairLoader, Task
from astkit.lattice.text import TextBridge, Vocabulary
from astkit.trainers import Budget, GatedStep, TrainConfig, Trainer
from astkit.trainers.evaluator import Evaluator

OTHERS = 4096
"""Most targets of the contrast: each is one more column of a product over ``dim`` for every row."""

SETTINGS = TrainConfig(lr=2e-3, weight_decay=0.01, clip_norm=1.0)
WEIGHTS = LossWeights()


class RetrievalEvaluator(Evaluator):
    """Finds, after each pass, `Retrieval` metrics and the mean loss on ``loader``'s pairs.

    They stand in the record as ``val_mrr``, ``val_cosine``, ``val_top1``, ``val_top5`` and
    ``val_loss``, so ``Checkpoints(best="val_mrr")`` keeps the best.
    """

    def __init__(self, *parts: Any, loader: PairLoader, dim: int) -> None:
        super().__init__(*parts)
        self._loader, self._dim = loader.to(self.learner.device), dim

    def found(self) -> dict[str, Any]:
        """Metrics of the whole validation part, in one pass on the evaluation clock."""
        predicted, targets, losses = [], [], []
        learner = self.learner
        with (
            self.ledger.clock("evaluation"),
            self._random(),
            evaluating(learner.model, learner.device),
        ):
            for batch in self._loader.batches(0):
                outputs = learner.outputs(self._booked(batch).x).float()
                losses.append(learner.criterion(outputs, batch.y))
                predicted.append(outputs[:, : self._dim])
                targets.append(batch.y[:, : self._dim])
            metrics = retrieval(torch.cat(predicted), torch.cat(targets)).to_dict()
        del metrics["samples"]
        loss = float(torch.cat(losses).double().mean())
        return {"val_loss": loss} | {f"val_{name}": value for name, value in metrics.items()}


class _StepKeeper:
    """An observer that tells the model which step comes next."""

    def __init__(self, rows: LatticeRows) -> None:
        self._rows = rows

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        self._rows.step = step

    def close(self) -> None:
        """Nothing to close."""


def lattice_trainer(
    config: LatticeConfig,
    task: Task,
    *,
    steps: int = 300,
    batch_size: int = 64,
    settings: TrainConfig = SETTINGS,
    weights: LossWeights = WEIGHTS,
    target_rate: float | None = None,
    vocabulary: int = 2000,
    model: EnergyFlowLattice | None = None,
    **trainer: Any,
) -> Trainer:
    """A `Trainer` of a lattice on ``task``, ready to run; `train` runs it as well.

    ``config.lattice=False`` gives the bypass: the same mapper and collector, no flows. The
    model in training is a `LatticeRows`, the epochs hold what `RetrievalEvaluator` finds.

    Args:
        config: of the lattice; its ``dim`` must be the task's.
        task: what to learn.
        steps: batches to train on; the learning rate's schedule ends with them.
        batch_size: pairs a batch.
        settings: learning rate and so on; ``seed`` is also that of the order of the pairs.
        weights: of the loss; ``text`` above 0 trains a `TextBridge` beside the lattice.
        target_rate: train on this share of each batch alone, chosen by loss; ``None`` for all.
        vocabulary: size of the bridge's.
        model: built from ``config`` by default.
        trainer: what else a `Trainer` takes: device, observers, checkpoints, resume, meter.

    Raises ``ValueError`` for dims that differ, less than one step, or text without texts.
    """
    if config.dim != task.dim:
        raise ValueError(
            f"config.dim is {config.dim}, but the task {task.name!r} has embeddings of {task.dim}:"
            " build the config with the task's dim"
        )
    if steps < 1:
        raise ValueError(f"steps is {steps}: give 1 or more")
    bridge = _bridge(config, task, vocabulary, settings.seed) if weights.text else None
    rows = LatticeRows(model or EnergyFlowLattice(config), bridge, wide=weights.surface > 0)
    others = _others(task, settings.seed) if weights.contrast else None
    criterion = LatticeLoss(rows, weights, others, steps)
    beside = _beside(config, task, bridge)
    load = partial(PairLoader, batch_size=batch_size, seed=settings.seed, beside=beside)
    loader = load(task.train)
    if target_rate is not None:
        gate = Gate(target_rate, criterion=criterion, seed=settings.seed)
        trainer["step"] = GatedStep(gate)
    made = Trainer(
        rows,
        loader,
        # half a step short of the last one's end, where rounding cannot add one more
        budget=Budget(epochs=(steps - 0.5) / len(loader)),
        config=settings,
        criterion=criterion,
        evaluator=partial(
            RetrievalEvaluator, loader=load(task.validation, shuffle=False), dim=config.dim
        ),
        **trainer,
    )
    made.observers.append(_StepKeeper(rows))
    rows.step = made.position.step  # of a run that goes on
    return made


def train(config: LatticeConfig, task: Task, **settings: Any) -> Trainer:
    """Train a lattice on ``task`` to the end of its budget; see `lattice_trainer`. ::

    done = train(LatticeConfig(), docs_task(2000), steps=300)
    done.history.epochs[-1]["val_mrr"]
    """
    trainer = lattice_trainer(config, task, **settings)
    trainer.run()
    return trainer


def _bridge(config: LatticeConfig, task: Task, vocabulary: int, seed: int) -> TextBridge:
    pairs = task.texts_of(task.train)
    texts = [pair.source for pair in pairs] + [pair.target for pair in pairs]
    return TextBridge(Vocabulary.of(texts, vocabulary), config.dim, config.cells, seed=seed)


def _others(task: Task, seed: int) -> Tensor:
    """Targets of at most so many training pairs, drawn by ``seed``."""
    drawn = rng.permutation(len(task.train), seed, "contrast")[:OTHERS]
    return task.train.fetch(drawn)[1]


def _beside(
    config: LatticeConfig, task: Task, bridge: TextBridge | None
) -> tuple[Tensor, Tensor] | None:
    """What rides behind each embedding of the store: the sample's number, and its tokens."""
    if bridge is None and not config.noise:
        return None
    rows = len(task.train.x)
    if rows > _EXACT:
        raise ValueError(
            f"the task {task.name!r} has {rows} pairs, but with noise or text a pair's number must"
            f" be exact in float32: give at most {_EXACT} pairs"
        )
    source = [torch.arange(rows, dtype=torch.float32)[:, None]]
    target = [torch.zeros(rows, 0)]
    if bridge is not None:
        encode = partial(bridge.vocabulary.encode, length=bridge.length)
        source.append(encode([pair.source for pair in task.texts]).float())
        target.append(encode([pair.target for pair in task.texts]).float())
    return torch.cat(source, 1), torch.cat(target, 1)


_EXACT = 2**24
"""Whole numbers up to this one are exact in float32."""


@torch.no_grad()
def examples(rows: LatticeRows, task: Task, count: int = 5) -> list[dict[str, str]]:
    """What a trained bridge says to the first ``count`` validation pairs.

    ``source`` and ``target`` are the texts; ``said`` is decoded from the teacher's embedding of the
    source, ``heard`` from the bridge's own: text in, text out, without the teacher.

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
