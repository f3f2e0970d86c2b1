"""State of a policy for the checkpoints of other libraries' loops; recipes: docs/loops.md.

transformers has a trainer of its own, ``astkit.integrations.huggingface.PolicyTrainer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astkit.gating import Policy
from astkit.trainers.fingerprint import check_same, plain


def saved(policy: Policy, epoch_over: bool | None = None) -> dict[str, Any]:
    """State of ``policy`` and of the current iteration of its sampler, for a checkpoint.

    ``epoch_over``: whether the last batch of the iteration was trained on; by default, whether all
    of its rows were, which is not so of a loader with ``drop_last``. Of several processes, each
    must call this.
    """
    policy.exchange()
    sampler, iteration = policy._sampler, None
    if sampler is not None and policy.begun:
        over = sampler.over(1) if epoch_over is None else epoch_over
        iteration = None if over else sampler.iteration()
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
    load_policy(policy, state)
    if sampler is not None:
        sampler.resume(iteration)


def load_policy(policy: Policy, state: Mapping[str, Any]) -> None:
    """Restore ``policy``, without a sampler; ``ValueError`` for another one or other settings."""
    check_same(state["made"], settings(policy), "the policy of the checkpoint")
    policy.load_state_dict(state["policy"])


def settings(policy: Policy) -> dict[str, Any]:
    """The settings of ``policy`` when they were first asked for; a run may change them."""
    made: dict[str, Any] = vars(policy).setdefault("_settings", plain(policy))
    return made
