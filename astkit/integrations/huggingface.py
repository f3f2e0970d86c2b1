"""Policies in the Trainer of Hugging Face transformers: ``PolicyTrainer(..., policy=policy)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from astkit.datasets import indexed
from astkit.datasets.batch import IGNORED, count_rows, take_rows, tensors
from astkit.gating import Criterion, Policy, Scored, Selection, cross_entropy_rows, token_losses
from astkit.gating.epoch import PolicySampler
from astkit.gating.losses import logits_of, reduced, single
from astkit.gating.policy import overrides
from astkit.integrations import require, restore, saved
from astkit.trainers import state_file

require("transformers")
from transformers import Trainer, TrainerCallback, TrainerState  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402

INDEX, SCALE = "astkit_index", "astkit_scale"  # keys of a batch
STATE = f"policy_*{state_file.SUFFIX}"


class PolicyTrainer(Trainer):
    """A ``Trainer`` that trains on the rows selected by ``policy``.

    ``num_train_epochs`` and ``max_steps`` determine the number of steps as usual, so that learning
    rate schedules end with the training: an epoch of the Trainer has the estimated number of steps
    of an epoch of the policy, and the policy plans its next epoch when its rows are used up. If
    every row is selected, the loss equals the model's own. Checkpoints contain the policy's state.

    Args:
        policy: selects before loading, after scoring, or both; before loading, or with per-sample
            state, the data set needs a length, and the policy determines the order of the rows.
        criterion: ``(outputs, batch) -> [rows]``, or token losses and their mask; by default
            cross-entropy, with shifted labels for a causal language model.

    Raises ``ValueError`` for ``compute_loss_func`` and ``label_smoothing_factor``, for data without
    a length where it is needed, and on resume for a checkpoint without a policy's state.
    """

    def __init__(
        self, *args: Any, policy: Policy, criterion: Criterion | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        if self.compute_loss_func is not None or self.args.label_smoothing_factor:
            raise ValueError(
                "compute_loss_func and label_smoothing_factor average over rows, but a policy needs"
                " one loss per row: pass criterion=(outputs, batch) -> [rows]"
            )
        self.policy, self.resumed_step = policy, 0
        config = getattr(self.model, "config", None)
        self.labels_are_inputs = getattr(config, "is_encoder_decoder", False)
        causal_models = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        loss_type = getattr(self.model, "loss_type", None)
        causal = type(self.model).__name__ in causal_models or loss_type == "ForCausalLM"
        shifted = causal and not self.labels_are_inputs
        self.criterion = criterion or (causal_losses if shifted else cross_entropy_rows)
        self.add_callback(_Saving(self))

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader: DataLoader[Any] = super().get_train_dataloader()
        policy, rows = self.policy, loader.dataset
        if overrides(policy, "plan"):
            sampler = policy.sampler(rows, epochs=1)
        elif policy.needs_index:
            sampler = policy._sampler = PolicySampler(policy, indexed(rows), epochs=1)
        else:
            return loader
        sampler.progress = lambda: self.state.global_step / max(1, self.state.max_steps)
        names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
        inner = DataLoader(
            indexed(rows),
            self._train_batch_size,
            sampler=sampler,
            collate_fn=partial(_with_index, loader.collate_fn),
            generator=torch.Generator().manual_seed(self.args.seed),  # not the global one
            **{name: getattr(loader, name) for name in names},
        )
        accumulated = self.args.gradient_accumulation_steps
        done = 0 if self.args.ignore_data_skip else self.resumed_step
        skipped = done % -(-len(inner) // accumulated) * accumulated
        return DataLoader(_Stream(inner, sampler, skipped), batch_size=None)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        data = dataloader.dataset
        return len(data.sampler) if isinstance(data, _Stream) else super().num_examples(dataloader)

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
        rows, chosen = count_rows(inputs), self._chosen(model, inputs, index)
        if scale is not None:
            factor = scale[chosen.index].view(-1, *[1] * (chosen.weight.ndim - 1))
            weight = chosen.weight * factor
            chosen = replace(chosen, weight=weight, normaliser=chosen.total)
        part = take_rows(inputs, chosen.index, rows)
        outputs = self._outputs(model, part)
        tokens, mask = token_losses(self.criterion, outputs, part)
        real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        counts, means = real.reshape(len(tokens), -1).sum(1), reduced(tokens, mask)
        if chosen.weight.ndim > 1:  # weights per token
            loss = chosen.mean(torch.where(real, tokens, 0))
        else:
            loss = chosen.mean(means * counts / counts.float().mean().clamp_min(1e-9))
        if num_items_in_batch is not None:  # tokens of all batches of an accumulated step
            loss = loss * (counts.sum() * rows / len(counts)) / num_items_in_batch
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes  # gradients are averaged over them
        seen = None if index is None else index[chosen.index]
        self.policy._report(means, seen, outputs, part)
        loss = loss.to(means.dtype)
        return (loss, outputs) if return_outputs else loss

    def _outputs(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        left_out = () if self.labels_are_inputs else ("labels",)
        return model(**{name: part for name, part in batch.items() if name not in left_out})

    def _chosen(self, model: nn.Module, inputs: dict[str, Any], index: Tensor | None) -> Selection:
        rows, chosen = count_rows(inputs), None
        if overrides(self.policy, "choose"):
            hooks: dict[str, Any] = {"run": lambda net, batch: self._outputs(net, batch.x)}
            hooks["criterion"] = self.criterion
            chosen = self.policy.choose(Scored(None, inputs, inputs, index, model, **hooks))
        if chosen is None:
            return Selection(torch.arange(rows, device=next(tensors(inputs)).device))
        if not len(chosen):  # a step without gradient
            return replace(chosen.padded(), normaliser=1.0)
        return chosen.check(rows, self.policy)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        latest, self.resumed_step = resume_from_checkpoint is True, 0
        folder = get_last_checkpoint(self.args.output_dir) if latest else resume_from_checkpoint
        if folder:
            found = list(Path(folder).glob(STATE))
            if len(found) != 1:
                raise ValueError(
                    f"{folder} has {len(found)} files {STATE} instead of one: resume a complete"
                    " checkpoint of a PolicyTrainer"
                )
            restore(self.policy, state_file.read(found[0]))
            state = TrainerState.load_from_json(str(Path(folder) / "trainer_state.json"))
            self.resumed_step = state.global_step
        return super().train(resume_from_checkpoint, *args, **options)


def causal_losses(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each token given those before it, ``[rows, tokens - 1]``, and its mask."""
    labels = batch["labels"][:, 1:]
    logits = single(logits_of(outputs)[:, :-1]).movedim(-1, 1)
    losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
    return losses, labels != IGNORED


class _Saving(TrainerCallback):
    """Writes the policy's state into each checkpoint."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        held = saved(self.trainer.policy)
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            for older in folder.glob(STATE):  # of another run into this folder
                older.unlink()
            state_file.write(folder, "policy", state_file.Packed(held))


class _Stream(IterableDataset[Any]):
    """Batches of ``loader``; an iteration is an epoch of the Trainer, not of the policy.

    The first iteration begins with ``skipped`` placeholders, which a resumed Trainer drops.
    """

    def __init__(self, loader: DataLoader[Any], sampler: PolicySampler, skipped: int) -> None:
        self.loader, self.sampler, self.skipped = loader, sampler, skipped
        self.length = len(loader)
        self.batches: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        skipped, self.skipped = self.skipped, 0
        yield from [None] * skipped
        for _ in range(self.length - skipped):
            yield self._next()

    def _next(self) -> Any:
        for _ in range(3):  # the rest of an epoch that was resumed may be empty
            batch = next(self.batches, None)
            if batch is not None:  # its factors are known until the next epoch is planned
                return {**batch, SCALE: self.sampler.scale_of(batch[INDEX])}
            self.batches = iter(self.loader)
        raise ValueError(
            "the policy selected too few rows for a batch: raise its rate, or lower the batch size"
        )


def _with_index(collate_fn: Callable[[list[Any]], Any], pairs: list[Any]) -> dict[str, Any]:
    index, rows = zip(*pairs, strict=True)
    return {**collate_fn(list(rows)), INDEX: torch.tensor(index)}
