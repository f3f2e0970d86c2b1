"""Policies in the training loops of other libraries; each module is imported only on request.

``from astkit.integrations.lightning import PolicyCallback`` and so on; see docs/loops.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astkit.gating import Policy
from astkit.trainers.fingerprint import check_same, plain


def saved(policy: Policy, epoch_over: bool = False) -> dict[str, Any]:
    """State of ``policy`` and of the current iteration of its sampler, for a checkpoint.

    ``epoch_over``: whether the last batch of the iteration was trained on. Of several processes,
    each must call this.
    """
    policy.exchange()
    iteration = None
    if policy._sampler is not None and policy.begun and not epoch_over:
        iteration = policy._sampler.iteration()
    return {"policy": policy.state_dict(), "iteration": iteration, "made": settings(policy)}


def restore(policy: Policy, state: Mapping[str, Any]) -> None:
    """Restore what `saved` returned; the next iteration of the sampler continues from there.

    Raises ``ValueError`` for a state within an iteration if there is no sampler yet, and for
    another policy or other settings.
    """
    sampler, iteration = policy._sampler, state["iteration"]
    if iteration is not None and sampler is None:
        raise ValueError(
            f"the checkpoint of {type(policy).__name__} lies within an epoch, but there is no"
            " sampler that could continue it: call policy.sampler(data, epochs=...) before loading"
        )
    load(policy, state)
    if sampler is not None:
        sampler.resume(iteration)


def load(policy: Policy, state: Mapping[str, Any]) -> None:
    """Restore ``policy``, without a sampler; ``ValueError`` for another one or other settings."""
    check_same({"policy": state["made"]}, {"policy": settings(policy)}, "the checkpoint")
    policy.load_state_dict(state["policy"])


def settings(policy: Policy) -> dict[str, Any]:
    """The settings of ``policy`` when they were first asked for; a run may change them."""
    made: dict[str, Any] = vars(policy).setdefault("_settings", plain(policy))
    return made
