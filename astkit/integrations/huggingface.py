"""Policies in the Trainer of Hugging Face transformers: ``PolicyTrainer(..., policy=policy)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from astkit.datasets import indexed
from astkit.datasets.batch import IGNORED, Batch, as_batch, count_rows, take_rows, tensors
from astkit.gating import Criterion, Policy, Scored, Selection, cross_entropy_rows, token_losses
from astkit.gating.epoch import PolicySampler
from astkit.gating.losses import logits_of, part_of, reduced, shifts_labels, single
from astkit.gating.policy import as_policy
from astkit.gating.selection import evaluating, unchanged
from astkit.progress import warn
from astkit.trainers import checkpoint
from astkit.trainers.fingerprint import check_same, plain

INDEX, SCALE = "astkit_index", "astkit_scale"  # keys of a batch
STATE = "policy"  # files of the policy's state in a checkpoint
TOO_FEW = "the policy selected too few rows for a batch: raise its rate, or lower the batch size"


class PolicyTrainer(Trainer):
    """A ``Trainer`` that trains on the rows selected by ``policy``.

    ``num_train_epochs`` and ``max_steps`` determine the number of steps as usual, so that learning
    rate schedules end with the training: an epoch of the Trainer has the estimated number of steps
    of an epoch of the policy, and the policy plans its next epoch when its rows are used up. If
    every row is selected, the loss equals the model's own. Checkpoints contain the policy's state:
    of one within an epoch of the policy, that at its start, with which a resumed run begins it
    again.

    Args:
        policy: a policy, its name or mapping; ``None`` selects every row. Before loading, or with
            per-sample state, the data set needs a length, and the policy determines the order of
            the rows; ``eval_dataset``, unless it is a mapping, is the validation data of a policy
            that plans for them.
        criterion: ``(outputs, batch) -> [rows]``, or token losses and their mask. By default the
            one whose mean over the first batch is the loss that the model returns: cross-entropy,
            with shifted labels if the first label of a row has no part in that loss. Cross-entropy
            if the model returns no loss.

    Raises ``ValueError`` for ``compute_loss_func`` and ``label_smoothing_factor``, for data without
    a length where it is needed, for a model with another loss or a first batch without labels and
    no criterion, and on resume for a checkpoint without the state of such a policy.
    """

    def __init__(
        self,
        *args: Any,
        policy: Policy | str | Mapping[str, Any] | None,
        criterion: Criterion | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.compute_loss_func is not None or self.args.label_smoothing_factor:
            mean = "compute_loss_func and label_smoothing_factor average over rows"
            raise ValueError(f"{mean}: pass criterion=(outputs, batch) -> [rows]")
        self.policy = as_policy(policy, self.args.seed) or Policy()
        self._made = plain(self.policy)  # a run may change its settings
        self._epochs: _Epochs | None = None
        self.criterion = criterion
        config = getattr(self.model, "config", None)
        self.labels_are_inputs = getattr(config, "is_encoder_decoder", False)
        regression = getattr(config, "problem_type", None) == "regression"
        # without another problem_type, a model with one label is one of a regression
        self.classes = False if regression or getattr(config, "num_labels", 2) == 1 else None

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader: DataLoader[Any] = super().get_train_dataloader()
        policy, rows = self.policy, loader.dataset
        if policy.plans:
            target = None if isinstance(self.eval_dataset, Mapping) else self.eval_dataset
            sampler = policy.sampler(rows, epochs=1, validation=target, classes=self.classes)
        elif policy.needs_index or hasattr(rows, "old_rows"):  # of joined data
            sampler = policy.loop.sampler = PolicySampler(policy, indexed(rows), epochs=1)
        else:
            return loader
        sampler.progress = lambda: self.state.global_step / max(1, self.state.max_steps)
        names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
        inner = DataLoader(
            indexed(rows),
            self._train_batch_size,
            sampler=sampler,
            collate_fn=partial(_with_index, loader.collate_fn),
            drop_last=self.args.dataloader_drop_last,  # which accelerate's loader does not tell
            generator=torch.Generator().manual_seed(self.args.seed),  # not the global one
            **{name: getattr(loader, name) for name in names},
        )
        if not len(inner):
            raise ValueError(TOO_FEW)
        self._epochs = _Epochs(self, inner)
        return DataLoader(self._epochs, batch_size=None)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        data = dataloader.dataset
        return len(data.sampler) if isinstance(data, _Epochs) else super().num_examples(dataloader)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        index, scale = inputs.pop(INDEX, None), inputs.pop(SCALE, None)
        if self.criterion is None:
            self.criterion = self._default_criterion(model, inputs)
        rows, chosen = count_rows(inputs), self._chosen(model, inputs, index)
        if scale is not None:
            weight = chosen.weight * scale[chosen.index]
            chosen = replace(chosen, weight=weight, normaliser=chosen.total)
        part = take_rows(inputs, chosen.index, rows)
        outputs = self._outputs(model, part)
        losses, counts = _rows(self.criterion, outputs, part)
        loss = chosen.mean(losses * counts / counts.float().mean().clamp_min(1e-9))
        if num_items_in_batch is not None:  # tokens of all batches of an accumulated step
            loss = loss * (counts.sum() * rows / len(counts)) / num_items_in_batch
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes  # gradients are averaged over them
        seen = None if index is None else index[chosen.index]
        self.policy.report_batch(losses, seen, outputs, part)
        if self.policy.loop.sampler is None or self.policy.chooses:
            self.policy.exchange()  # the next batch may depend on it
        loss = loss.to(losses.dtype)
        return (loss, outputs) if return_outputs else loss

    def _default_criterion(self, model: nn.Module, batch: dict[str, Any]) -> Criterion:
        """The criterion whose mean over ``batch`` is the loss that ``model`` returns."""
        with evaluating(model, next(tensors(batch)).device):
            outputs = _whole(model, batch)
            own = _own_loss(outputs)
            if own is None:
                return cross_entropy_rows
            criterion = causal_losses if _shifts(model, batch) else cross_entropy_rows
            with suppress(ValueError):  # labels of another shape or kind
                losses, counts = _rows(criterion, outputs, batch)
                mean = float((losses * counts).sum() / counts.sum())
                rounding = max(1e-4, 4 * torch.finfo(own.dtype).eps)
                if math.isclose(mean, float(own), rel_tol=rounding):
                    return criterion
        raise ValueError(
            f"{type(model).__name__} returns the loss {float(own):.6g} for the first batch, which"
            " is not the cross-entropy of its labels: pass criterion=(outputs, batch) -> [rows], or"
            " leave out what is added, such as by output_router_logits=False"
        )

    def _outputs(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        left_out = () if self.labels_are_inputs else ("labels",)
        return model(**{name: part for name, part in batch.items() if name not in left_out})

    def _chosen(self, model: nn.Module, inputs: dict[str, Any], index: Tensor | None) -> Selection:
        assert self.criterion is not None
        criterion = self.policy.criterion or self.criterion

        def forward(net: nn.Module, batch: Any) -> Any:
            return self._outputs(net, batch.x)

        made = Scored(None, inputs, inputs, index, model, criterion=criterion, forward=forward)
        chosen = self.policy.choose_from(made)
        # without a row a step has no gradient
        return chosen if len(chosen) else replace(chosen.padded(), normaliser=1.0)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        latest = resume_from_checkpoint is True
        folder = get_last_checkpoint(self.args.output_dir) if latest else resume_from_checkpoint
        if folder:
            path = Path(folder) / f"{STATE}.json"
            if not path.is_file():
                remedy = "resume a complete checkpoint of a PolicyTrainer"
                raise ValueError(f"{folder} has no {path.name}: {remedy}")
            state = checkpoint.read(path)
            check_same(state["made"], self._made, "the policy of the checkpoint")
            self.policy.load_state_dict(state["policy"])
            if state["within"]:
                within = f"{folder} lies within an epoch of {type(self.policy).__name__}"
                warn(f"{within}, which begins again: rows of this epoch may come twice")
        result = super().train(resume_from_checkpoint, *args, **options)
        self.policy.exchange()
        return result

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.policy.exchange()
        state, within = self.policy.state_dict(), False
        left = self._train_batch_size if self.args.dataloader_drop_last else 1
        if self._epochs is not None and not self._epochs.sampler.over(left):
            state, within = self._epochs.at_start, True
        if self.is_world_process_zero():
            folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
            whole = {"policy": state, "made": self._made, "within": within}
            checkpoint.write(folder / STATE, whole)


def causal_losses(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each token given those before it, ``[rows, tokens - 1]``, and its mask."""
    labels = batch["labels"][:, 1:]
    logits = single(logits_of(outputs)[:, :-1]).movedim(-1, 1)
    losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
    return losses, labels != IGNORED


def _whole(model: nn.Module, batch: Mapping[str, Any]) -> Any:
    """Outputs of ``model`` for all of ``batch``, which is left as it is."""
    return unchanged(lambda net, given: net(**given.x), model, Batch(None, batch, batch))[0]


def _own_loss(outputs: Any) -> Any:
    """The mean loss in a model's outputs, 0-dim; ``None`` if there is none."""
    loss = outputs[0] if isinstance(outputs, tuple) else part_of(outputs, "loss")
    return loss.mean() if isinstance(loss, Tensor) and loss.ndim < 2 else None


def _shifts(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    """See `shifts_labels`; raises ``ValueError`` if all labels are ignored."""
    labels = batch.get("labels")
    if isinstance(labels, Tensor) and bool((labels == IGNORED).all()):
        raise ValueError(
            "all labels of the first batch are -100, which does not tell how the loss is computed:"
            " pass criterion=causal_losses for shifted labels, or criterion=cross_entropy_rows"
        )
    return shifts_labels(lambda given: _own_loss(_whole(model, given)), batch)


def _rows(criterion: Criterion, outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Mean loss of the labels of each row, ``[rows]``, and their numbers."""
    tokens, mask = token_losses(criterion, outputs, batch)
    real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    if tokens.ndim == 1 and "labels" in batch:  # which the Trainer counts in an accumulated step
        real = batch["labels"] != IGNORED
    return reduced(tokens, mask), real.reshape(len(tokens), -1).sum(1)


class _Epochs(IterableDataset[Any]):
    """Batches of ``loader``, epoch after epoch of the policy; an iteration is one of ``trainer``.

    Attributes:
        at_start: the policy's state at the start of its current epoch.
    """

    def __init__(self, trainer: PolicyTrainer, loader: DataLoader[Any]) -> None:
        self.trainer, self.loader = trainer, loader
        self.sampler = cast(PolicySampler, loader.sampler)
        self.length = len(loader)
        self.at_start: dict[str, Any] = {}
        self.batches = self._batches()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        args, dropped = self.trainer.args, 0
        if not args.ignore_data_skip:  # a Trainer that resumes within its epoch drops as many
            accumulated = args.gradient_accumulation_steps
            dropped = self.trainer.state.global_step % -(-self.length // accumulated) * accumulated
        yield from [None] * dropped
        yield from islice(self.batches, self.length - dropped)

    def _batches(self) -> Iterator[dict[str, Any]]:
        policy = self.trainer.policy
        while True:
            policy.exchange()
            self.at_start, batch = policy.state_dict(), None
            for batch in self.loader:  # its factors are known until the next epoch is planned
                yield {**batch, SCALE: self.sampler.scale_of(batch[INDEX])}
            if batch is None:
                raise ValueError(TOO_FEW)


def _with_index(collate_fn: Callable[[list[Any]], Any], pairs: list[Any]) -> dict[str, Any]:
    index, rows = zip(*pairs, strict=True)
    batch = as_batch(collate_fn(list(rows)), torch.tensor(index))
    return {**batch.x, INDEX: batch.index}
