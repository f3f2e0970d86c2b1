"""Gradient-norm importance sampling: its draws, its weights and its test of the variance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from astkit.gating.policies.gradnorm_is import GradNormIS
from tests.gating.policies.recorded import scored

OUTPUTS = torch.randn(12, 3, generator=torch.Generator().manual_seed(1)) * 8
TARGETS = OUTPUTS.argmax(1).clone()
TARGETS[:2] = (TARGETS[:2] + 1) % 3  # two rows that are wrong
NORMS = np.linalg.norm(OUTPUTS.softmax(1).numpy() - np.eye(3)[TARGETS], axis=1)
P = NORMS / NORMS.sum()
TAU = 1 / math.sqrt(1 - ((P - 1 / 12) ** 2).sum() / (P**2).sum())


def switched_on(**options: float) -> GradNormIS:
    policy = GradNormIS(**options)
    policy.tau = 100.0
    return policy


def test_draws_follow_the_norms_and_weigh_one_over_b_p() -> None:
    policy, drawn, plans = switched_on(), np.zeros(12), 800
    policy.momentum = 1.0  # tau stays
    for _ in range(plans):
        chosen = policy.choose(scored(OUTPUTS, TARGETS))
        assert len(chosen) == chosen.normaliser == 4
        rows = chosen.index.numpy()
        np.testing.assert_allclose(chosen.weight.numpy(), 1 / (12 * P[rows]), rtol=1e-5)
        drawn += np.bincount(rows, minlength=12)
    error = np.sqrt(4 * plans * P * (1 - P))
    assert (np.abs(drawn - 4 * plans * P) < 4.5 * error + 1e-9).all()
    assert drawn.max() > plans  # rows repeat


def test_it_switches_on_when_the_averaged_variance_reduction_exceeds_its_cost() -> None:
    policy, tau, states = GradNormIS(every=1), 0.0, []
    assert TAU > 2
    for number in range(60):
        on = tau > (12 + 3 * 4) / (3 * 4)
        chosen = policy.choose(scored(OUTPUTS, TARGETS))
        tau = 0.9 * tau + 0.1 * TAU
        states.append(on)
        assert policy.tau == pytest.approx(tau, rel=1e-5)
        assert (chosen.normaliser is not None) == on, number
        if not on:
            assert len(set(chosen.index.tolist())) == 4
            assert chosen.weight.tolist() == [1.0] * 4
    assert set(states) == {False, True}
    equal = GradNormIS(every=1)
    for _ in range(50):  # equal norms: tau is 1
        equal.choose(scored(torch.zeros(12, 3), torch.zeros(12, dtype=torch.int64)))
    assert equal.tau == pytest.approx(1, abs=0.01)


def test_while_off_one_batch_in_every_is_scored() -> None:
    policy, read = GradNormIS(every=3), []
    for _ in range(7):
        batch = scored(OUTPUTS, TARGETS)
        before = policy.tau
        policy.choose(batch)
        read.append(policy.tau != before)
    assert read == [True, False, False, True, False, False, True]
