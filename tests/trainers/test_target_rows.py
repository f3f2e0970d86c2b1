"""Rows of a target in every loop: dense training and most policies do not see them."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from astkit import Policy, Trainer, Weighted, indexed, joined
from astkit.gating.policy import as_policy
from tests.gating.policies.cells import SelectiveBackprop
from tests.trainers.worlds import CRITERION, built, flat, in_world, network, numbers, trained

N, M = 96, 30
PLANNING: list[Any] = [
    "infobatch",
    "cached_loss",
    "class_balanced",
    "learned",
    {"name": "random", "rate": 0.5},
]
CHOOSING: list[Any] = ["gate", SelectiveBackprop()]
WEIGHTS = torch.cat([torch.ones(N), torch.full((M,), 4.0)])


def parts() -> tuple[TensorDataset, TensorDataset]:
    return tuple(TensorDataset(*numbers(rows, seed=rows).tensors) for rows in (N, M))  # type: ignore[return-value]


@pytest.mark.parametrize("policy", [None, *PLANNING, *CHOOSING])
def test_a_policy_that_does_not_ask_trains_as_without_the_target(policy: Any) -> None:
    train, target = parts()
    if policy == "gate":
        policy = {"name": "gate", "rate": 0.5}
    runs = [built(deepcopy(policy), data) for data in (train, joined(train, target))]
    for run in runs:
        run.run()
    assert torch.equal(*(flat(run.model) for run in runs))
    assert runs[0].rows == runs[1].rows


def test_weights_of_all_rows_draw_from_both_in_epochs_of_the_old_rows() -> None:
    run = built(Weighted(WEIGHTS), joined(*parts()), epochs=7)
    run.run()
    drawn = torch.tensor([row for rows in run.rows for row in rows])
    assert (run.step, len(drawn)) == (7 * N // 24, 7 * N)
    times = drawn.bincount(minlength=N + M)
    expected = 7 * N * WEIGHTS / WEIGHTS.sum()
    assert bool(((times - expected).abs() < 7).all())
    assert int(times[N:].sum()) == pytest.approx(7 * N * 4 * M / (N + 4 * M), abs=7)


def test_a_run_stopped_within_an_epoch_draws_the_same_rows(tmp_path: Path) -> None:
    whole = built(Weighted(WEIGHTS), joined(*parts()))
    whole.run()
    first = built(Weighted(WEIGHTS), joined(*parts()), checkpoints=tmp_path)
    for record in first.steps():
        if record.step == 1:
            break
    then = built(Weighted(WEIGHTS), joined(*parts()), checkpoints=tmp_path, resume=True)
    then.run()
    assert torch.equal(flat(whole.model), flat(then.model))
    assert max(row for rows in then.rows for row in rows) >= N
    with pytest.raises(ValueError, match=r"data.old"):
        built(Weighted(WEIGHTS), joined(*parts()[::-1]), checkpoints=tmp_path, resume=True)


def test_a_trainer_takes_the_target_itself() -> None:
    train, target = parts()
    runs = [
        built(Weighted(WEIGHTS), train, target=target),
        built(Weighted(WEIGHTS), joined(train, target)),
    ]
    for run in runs:
        run.run()
    assert torch.equal(*(flat(run.model) for run in runs))
    dense = Trainer(network(), train, target=target, epochs=1)
    dense.run()
    assert dense.ledger.samples.trained == N


class Recording(Policy):
    """Remembers what it is told."""

    def plan(self, run: Any) -> None:
        self.run = run

    def observe(self, visit: Any) -> None:
        self.last = visit


def test_what_a_policy_is_told() -> None:
    policy = Recording()
    built(policy, joined(*parts())).run()
    assert (policy.run.samples, policy.run.draws, len(policy.run.labels)) == (N, N, N)
    asking = Recording()
    asking.draws_target = True
    built(asking, joined(*parts())).run()
    assert (asking.run.samples, asking.run.draws, len(asking.run.labels)) == (N + M, N, N + M)


def own_loop(policy: Policy, data: Any) -> tuple[Tensor, list[int]]:
    model, drawn = network(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    sampler = policy.sampler(data, epochs=2)
    loader = DataLoader(indexed(data), batch_size=24, sampler=sampler)
    for _ in range(2):
        for index, (x, y) in loader:
            policy.mean(CRITERION(model(x), y), index).backward()
            optimizer.step()
            optimizer.zero_grad()
            drawn += index.tolist()
    return flat(model), drawn


def test_an_own_loop_draws_as_the_trainer_does() -> None:
    train, target = parts()
    _, drawn = own_loop(Weighted(WEIGHTS), joined(train, target))
    assert len(drawn) == 2 * N
    assert max(drawn) >= N
    for policy in ("infobatch", {"name": "random", "rate": 0.5}):
        found = [own_loop(as_policy(policy), data) for data in (train, joined(train, target))]
        assert torch.equal(found[0][0], found[1][0])
        assert max(found[1][1]) < N


def test_two_processes_draw_as_one_does() -> None:
    both = joined(*parts())
    for policy in (Weighted(WEIGHTS), None):
        settings = {"data": both, "epochs": 2}
        (one,) = in_world(1, trained, policy, settings)
        two = in_world(2, trained, policy, settings)
        for step, rows in enumerate(one["rows"]):
            assert [row for each in two for row in each["rows"][step]] == rows
        assert (two[0]["weights"] - one["weights"]).abs().max() < 1e-9
        highest = max(row for rows in one["rows"] for row in rows)
        assert (highest >= N) == (policy is not None)
