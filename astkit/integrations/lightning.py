"""Policies in Lightning: ``lightning.pytorch.Trainer(callbacks=[PolicyCallback(policy)])``."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from astkit.gating import Policy
from astkit.gating.policy import overrides
from astkit.integrations import restore, saved, settings


class PolicyCallback(Callback):
    """Saves and restores the state of ``policy`` with Lightning's checkpoints.

    The training step computes the loss: ``policy.mean(losses, index)`` for a policy that selects
    before loading, from a ``DataLoader(indexed(data), sampler=policy.sampler(data, epochs))``;
    ``chosen = policy(model, x, y)`` and ``chosen.mean(losses)`` for one that selects after scoring.

    The sampler has no length: epochs of a policy may differ in length, and Lightning would stop
    at a length that is too small, and skip validation after one that is too large. Learning rate
    schedules per step therefore need ``Trainer(max_steps=...)``. A run resumed from a checkpoint
    within an epoch continues with the rows of this epoch that are left.

    Raises ``ValueError`` for anything but a policy, and at the start of training if the loader does
    not use its sampler.
    """

    def __init__(self, policy: Policy) -> None:
        if not isinstance(policy, Policy):  # a policy made here would not be the one that selects
            raise ValueError(
                f"policy is {policy!r}: pass the policy that the training step uses, such as"
                " InfoBatch()"
            )
        self.policy = policy
        settings(policy)
        self._epoch_over = False
        policy.sized = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader: Any = trainer.train_dataloader
        sampler = getattr(loader, "sampler", None)
        if overrides(self.policy, "plan") and sampler is not self.policy._sampler:
            raise ValueError(
                f"the training loader has a {type(sampler).__name__} that is not the sampler of"
                f" this {type(self.policy).__name__}: give the DataLoader of indexed(data)"
                " sampler=policy.sampler(data, epochs=...), and pass"
                " Trainer(use_distributed_sampler=False)"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_over = False

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._epoch_over = trainer.is_last_batch

    def state_dict(self) -> dict[str, Any]:
        """State of the policy, and of the current epoch if batches are left."""
        return saved(self.policy, self._epoch_over)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the policy."""
        self._epoch_over = False
        restore(self.policy, state_dict)
