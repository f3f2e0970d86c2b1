"""Policies in loops that use Accelerate: ``register(accelerator, policy, loader)``."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from astkit.gating import Policy
from astkit.integrations import restore, saved, settings


def register(accelerator: Accelerator, policy: Policy, loader: Any = None) -> None:
    """Let ``accelerator.save_state`` and ``load_state`` include the state of ``policy``.

    ``loader``: that of a policy that selects before loading. A prepared loader draws one batch
    ahead; the saved position is that of the last batch passed to ``policy.mean``, and the iteration
    that follows ``load_state`` continues there, without ``skip_first_batches``. With several
    processes, the policy's sampler yields the share of each, so the loader must not be prepared:
    ``policy.mean`` refuses its batches.
    """
    accelerator.register_for_checkpointing(_Checkpointed(policy, loader))


class _Checkpointed:
    def __init__(self, policy: Policy, loader: Any) -> None:
        self.policy, self.loader = policy, loader
        settings(policy)

    def state_dict(self) -> dict[str, Any]:
        sampler = self.policy._sampler
        if sampler is None:
            return saved(self.policy)
        batches: Any = getattr(self.loader, "batch_sampler", None)
        size = batches.batch_size if batches is not None and batches.drop_last else 1
        return saved(self.policy, sampler.over(size))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self.policy, state)
