"""The rules of docs/recipes.md, each written out literally."""

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from astkit import rng
from astkit.gating import RunInfo, Visit, as_policy
from astkit.gating.policies.infobatch import InfoBatch
from astkit.names import IN_A_CELL
from tests.gating.policies import cells
from tests.gating.policies.recorded import (
    EPOCHS,
    N,
    close,
    drawn_shares,
    follow,
    info,
    losses_of,
    planned,
    scored,
)

OUTPUTS = torch.randn(12, 3, generator=torch.Generator().manual_seed(1)) * 8
TARGETS = OUTPUTS.argmax(1)
TARGETS[:2] = (TARGETS[:2] + 1) % 3  # two rows that are wrong
LOSSES = F.cross_entropy(OUTPUTS, TARGETS, reduction="none")


def test_each_is_10_to_25_lines() -> None:
    classes = [each for each in ast.parse(cells.CODE).body if isinstance(each, ast.ClassDef)]
    assert len(classes) == len(IN_A_CELL)
    for each in classes:
        assert 9 <= len(ast.unparse(each).split("\n")) <= 25, each.name


def test_selective_backprop_draws_by_the_power_of_the_percentile_between_start_and_end() -> None:
    policy, plans, found = cells.SelectiveBackprop(0.4, whole=0), 1500, torch.zeros(5)
    batch = scored(OUTPUTS[:5], TARGETS[:5])
    for _ in range(plans):
        chosen = policy.choose(batch)
        assert (len(chosen), chosen.weight.tolist()) == (2, [1.0, 1.0])  # floor(0.4 * 5)
        found[chosen.index] += 1
    ranks = sorted(range(5), key=LOSSES[:5].tolist().__getitem__)
    weights = [((j + 0.5) / 5) ** (1 / 0.4 - 1) for j in range(5)]
    assert close(found[ranks] / plans, drawn_shares(weights), plans)
    assert (
        len(
            cells.SelectiveBackprop(0.29).choose(
                scored(torch.randn(100, 3), torch.zeros(100).long())
            )
        )
        == 29
    )
    policy, rows = cells.SelectiveBackprop(start=0.3, end=0.7, whole=3), torch.arange(12)
    for number in range(20):
        policy.plan(RunInfo(12, rows, number // 10, number % 10, number / 20))
        active = 0.3 <= number / 20 < 0.7 and (number + 1) % 3 != 0
        assert (policy.choose(scored(OUTPUTS, TARGETS)) is not None) == active


def test_gradient_norms_are_drawn_from_once_the_averaged_variance_reduction_pays() -> None:
    norms = np.linalg.norm(OUTPUTS.softmax(1).numpy() - np.eye(3)[TARGETS], axis=1)
    p = norms / norms.sum()
    factor = 1 / math.sqrt(1 - ((p - 1 / 12) ** 2).sum() / (p**2).sum())
    policy, tau, drawn, times = cells.GradNormIS(every=2), 0.0, np.zeros(12), 0
    for number in range(900):
        pays = tau > (12 + 3 * 4) / (3 * 4)
        chosen = policy.choose(scored(OUTPUTS, TARGETS))
        if pays or number % 2 == 0:
            tau = 0.9 * tau + 0.1 * factor
        assert policy.tau == pytest.approx(tau, rel=1e-5)
        rows = chosen.index.numpy()
        assert len(rows) == 4
        if pays:
            assert chosen.normaliser == 4
            np.testing.assert_allclose(chosen.weight.numpy(), 1 / (12 * p[rows]), rtol=1e-5)
            drawn, times = drawn + np.bincount(rows, minlength=12), times + 4
        else:
            assert len({*rows}) == 4
            assert chosen.weight.tolist() == [1.0] * 4
    assert 3000 < times < 3600
    assert (np.abs(drawn - times * p) < 4.5 * np.sqrt(times * p * (1 - p)) + 1e-9).all()


def test_rho_takes_the_rows_whose_loss_is_highest_above_the_holdout_loss() -> None:
    held = torch.rand(48, generator=torch.Generator().manual_seed(1))
    rows = torch.randperm(48, generator=torch.Generator().manual_seed(2))[:12]
    batch = scored(OUTPUTS, TARGETS)
    batch.index = rows
    chosen = cells.Rho(held.tolist(), 0.25).choose(batch)
    best = sorted(range(12), key=lambda i: -float(LOSSES[i] - held[rows[i]]))[:3]
    assert sorted(chosen.index.tolist()) == sorted(best)


def groups_of(values: list[float], groups: int) -> list[int]:
    """k-means by the book; of two centres at the same distance, the higher one."""
    centres = [float(np.quantile(values, (g + 0.5) / groups)) for g in range(groups)]
    for _ in range(100):
        near = [min(range(groups), key=lambda g: (abs(v - centres[g]), -g)) for v in values]
        for g in range(groups):
            held = [v for v, each in zip(values, near, strict=True) if each == g]
            centres[g] = sum(held) / len(held) if held else centres[g]
    return near


def test_seta_trains_on_a_window_of_groups_of_losses() -> None:
    losses, last = losses_of().tolist(), [3.0] * N
    found = follow(cells.SeTa(rate=0.8, groups=4, window=0.5, delta=0.75), losses_of())
    for epoch in range(EPOCHS):
        kept = rng.permutation(N, 0, "seta", epoch, 0).tolist()[: int(0.8 * N)]
        if 0 < epoch < 0.75 * EPOCHS:
            first = epoch % 3
            group = groups_of([last[i] for i in kept], 4)
            kept = [i for i, g in zip(kept, group, strict=True) if first <= g < first + 2]
        assert found[epoch] == (kept, [1.0] * len(kept), len(kept))
        for i in kept:
            last[i] = losses[epoch][i]
    assert 0 < len(found[1][0]) < len(found[0][0]) == len(found[9][0])


def test_batch_loss_scores_are_infobatch_on_an_average_of_batch_means() -> None:
    policy, other = cells.BatchLossScore(0.6, 0.75, alpha=0.6), InfoBatch(0.6, 0.75)
    scores = [0.0] * N
    for epoch, values in enumerate(losses_of()):
        other.losses = torch.tensor(scores)
        found = planned(policy.plan(info(epoch)))
        assert found == planned(other.plan(info(epoch)))
        for first in range(0, len(found[0]), 8):
            batch = found[0][first : first + 8]
            policy.observe(Visit(torch.tensor(batch), values[batch]))
            mean = sum(float(values[i]) for i in batch) / len(batch)
            for i in batch:
                scores[i] = 0.6 * scores[i] + 0.4 * mean
    policy.observe(Visit(torch.arange(2), torch.tensor([1.0, math.nan])))  # changes nothing
    assert policy.losses.tolist() == pytest.approx(scores)


def test_a_loop_that_knows_the_mean_of_a_batch_alone_passes_it() -> None:
    policy = cells.BatchLossScore()
    index = torch.tensor(list(policy.sampler(range(N), epochs=1)))
    loss: Tensor = torch.ones((), requires_grad=True)
    policy.mean(loss.expand(N), index).backward()
    assert loss.grad == 1
    assert policy.losses.tolist() == pytest.approx([0.3] * N)


def test_a_fixed_subset_keeps_the_highest_scores_in_every_epoch() -> None:
    scores = torch.arange(N) * 7 % N
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    for epoch in range(3):
        found = cells.FixedSubset(scores, 0.25).plan(info(epoch, rows=order)).index.tolist()
        assert found == [row for row in order.tolist() if scores[row] >= N - 15]


@pytest.mark.parametrize("name", IN_A_CELL)
def test_the_name_of_an_earlier_policy_leads_to_the_page(name: str) -> None:
    words = rf"^policy '{name}' is not part of astkit: docs/recipes.md has its rule"
    for given in (name, {"name": name, "rate": 0.5}):
        with pytest.raises(ValueError, match=words):
            as_policy(given)


def test_a_class_of_a_file_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(cells.CODE)
    given: dict[str, Any] = {"name": f"{path}:SelectiveBackprop", "rate": 0.25}
    made = as_policy(given, seed=7)
    assert (type(made).__name__, made.rate, made.seed) == ("SelectiveBackprop", 0.25, 7)
    wrong = {
        f"{tmp_path}/other.py:SeTa": "there is no file .*other.py: correct the path$",
        f"{path}:Missing": "mine.py has no subclass 'Missing' of Policy: add it$",
        f"{path}:loss_groups": "mine.py has no subclass 'loss_groups' of Policy",
    }
    for name, words in wrong.items():
        with pytest.raises(ValueError, match=f"^policy '{name}': .*{words}"):
            as_policy(name)
