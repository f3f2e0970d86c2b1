"""Learned significance: inputs and draws against a literal reference, and what it learns."""

import math

import pytest
import torch
from torch import Tensor

from astkit.comparison.compare import checked_methods
from astkit.gating import Visit
from astkit.gating.policies.learned import FEATURES, LEAST, Learned
from tests.gating.policies.recorded import N, close, drawn_shares, info

HISTORY = {0: [2.0], 1: [3.0, 0.5], 2: [4.0, 1.0, 0.25], 3: [], 4: [0.0]}


def told() -> Learned:
    """A policy that saw sample i in the latest epochs before epoch 3, with the losses above."""
    policy = Learned(rate=0.4)
    for epoch in range(3):
        policy.plan(info(epoch, samples=5, labels=torch.tensor([0, 0, 1, 1, 1])))
        for row, losses in HISTORY.items():
            if epoch >= 3 - len(losses):
                loss = losses[epoch - 3 + len(losses)]
                policy.observe(Visit(torch.tensor([row]), torch.tensor([loss])))
    return policy


def test_its_inputs_are_the_last_losses_age_visits_and_class_mean() -> None:
    policy, labels = told(), torch.tensor([0, 0, 1, 1, 1])
    run = info(5, samples=5, labels=labels)
    logs = {row: [math.log(max(x, LEAST)) for x in losses] for row, losses in HISTORY.items()}
    means = [(logs[0][-1] + logs[1][-1]) / 2] * 2 + [(logs[2][-1] + logs[4][-1]) / 2] * 3
    found = policy.features(run, 0)
    assert found.shape == (5, FEATURES)
    for row, known in logs.items():
        if known:
            last, before = known[-1], known[-2] if len(known) > 1 else known[-1]
            expected = [last, before, math.log(1 + 5 - 2), math.log(1 + len(known)), means[row]]
            assert found[row].tolist() == pytest.approx(expected, abs=1e-6), row
    back = policy.features(run, 1)[2]  # as of its visit in epoch 2, after one in epoch 1
    log = math.log  # of its class, only this sample was visited twice
    assert back.tolist() == pytest.approx([log(1.0), log(4.0), log(1 + 1), log(1 + 2), log(1.0)])
    whole = policy.features(info(5, samples=5, labels=None), 0)
    assert whole[:, 4].tolist() == pytest.approx([sum(k[-1] for k in logs.values() if k) / 4] * 5)


def test_untrained_it_draws_by_the_root_of_the_latest_loss() -> None:
    losses, plans = torch.tensor([0.04, 0.1, 0.9, 2.0, 4.0]), 800
    policy, found = Learned(rate=0.4), torch.zeros(5)
    policy.plan(info(0, samples=5, labels=None))
    policy.observe(Visit(torch.arange(5), losses))
    for epoch in range(1, plans + 1):
        rows = policy.plan(info(epoch, samples=5, epochs=2 * plans, labels=None)).index
        assert len(rows.unique()) == 2
        found[rows] += 1
    expected = drawn_shares([math.sqrt(x) for x in losses.tolist()])
    assert close(found / plans, expected, plans)


def losses_at(epoch: int) -> Tensor:
    """One half falls by half in each epoch, the other stays."""
    return torch.where(torch.arange(N) < N // 2, 4.0 * 0.5**epoch, 1.0 + 0.01 * torch.arange(N))


def test_it_learns_how_losses_change() -> None:
    policy = Learned(rate=1.0)
    for epoch in range(6):
        rows = policy.plan(info(epoch)).index
        policy.observe(Visit(rows, losses_at(epoch)[rows]))
    policy.plan(info(6))
    predicted, truth = policy.predict(info(6)), losses_at(6)
    error = (predicted.log() - truth.log()).square().mean()
    latest = (losses_at(5).log() - truth.log()).square().mean()
    assert error < 0.3 * latest


def test_policies_of_one_state_learn_apart() -> None:
    def run(policy: Learned, epochs: range) -> list[list[int]]:
        found = []
        for epoch in epochs:
            found.append(policy.plan(info(epoch, epochs=20)).index.tolist())
            policy.observe(Visit(torch.tensor(found[-1]), losses_at(epoch)[found[-1]]))
        return found

    first, others = Learned(), [Learned(), Learned()]
    run(first, range(8))
    state = first.state_dict()
    expected = run(first, range(8, 12))
    for other in (*others, first):  # the last one is set back
        other.load_state_dict(state)
    assert [run(other, range(8, 12)) for other in (*others, first)] == [expected] * 3


@pytest.mark.parametrize("seed", [0, 1])
def test_each_seed_of_a_comparison_has_a_network_of_its_own(seed: int) -> None:
    ((label, given),) = checked_methods(Learned(0.3)).items()
    assert label == "learned"
    made = given.new_policy(seed)
    assert isinstance(made, Learned)
    assert torch.equal(made.network[0].weight, Learned(0.3, seed=seed).network[0].weight)
