"""Epochs: plans of rounds, and samplers without a loader."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Sampler

from astkit import RandomSubset
from astkit.datasets import indexed
from astkit.gating import Policy, RunInfo, Selection, Visit
from astkit.gating.epoch import Epoch


class Kept(Policy):
    """Takes all candidates; keeps what it was told."""

    def __init__(self, rounds: int = 1, seed: int = 0) -> None:
        self.rounds, self.seed = rounds, seed
        self.told: list[RunInfo] = []

    def plan(self, run: RunInfo) -> Selection | None:
        self.told.append(run)
        return None


class Data(list[int]):
    labels = torch.tensor([2, 0, 1, 1, 0, 2, 2])


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3))
def test_rounds_divide_the_candidates_of_an_epoch(samples: int, rounds: int, seed: int) -> None:
    policy = Kept(rounds, seed)
    sampler = policy.sampler(range(samples), epochs=2)
    for epoch in range(2):
        policy.told.clear()
        rows = list(sampler)
        assert sorted(rows) == list(range(samples))
        shares = [len(run.rows) for run in policy.told]
        assert (len(shares), sum(shares)) == (rounds, samples)
        assert max(shares) - min(shares) <= 1
        assert torch.cat([run.rows for run in policy.told]).tolist() == rows
        for number, run in enumerate(policy.told):
            assert (run.epoch, run.round, run.samples, run.seed) == (epoch, number, samples, seed)
            assert run.progress == pytest.approx((epoch + number / rounds) / 2)


def test_a_sampler_is_torchs_and_knows_the_labels() -> None:
    policy = Kept()
    sampler = policy.sampler(indexed(Data(range(7))), epochs=0.5)
    assert isinstance(sampler, Sampler)
    rows = list(sampler)
    assert all(type(row) is int for row in rows)
    assert policy.told[0].labels is not None
    assert policy.told[0].labels.tolist() == Data.labels.tolist()
    assert rows != list(policy.sampler(Data(range(7)), epochs=2))  # another epoch


def test_the_length_of_an_epoch_is_that_of_its_plan() -> None:
    told: list[RunInfo] = []

    class Beside(Kept):
        def plan(self, run: RunInfo) -> Selection:
            told.append(run)
            return Selection(run.rows[:2])

    sampler = Beside().sampler(range(5), epochs=2)
    assert len(list(sampler)) == len(sampler) == 2
    sampler.progress, sampler.sized = lambda: 0.25, False
    list(sampler)
    assert told[-1].progress == 0.25
    with pytest.raises(TypeError, match="the length of an epoch is known at its end"):
        len(sampler)


def test_a_round_without_a_plan_is_its_share_of_the_order() -> None:
    order = torch.tensor([3, 1, 4, 0, 2])
    for policy in (Policy(), Kept(2)):
        epoch = Epoch(policy, 5)
        shares = []
        while not epoch.complete:
            assert epoch.plan(order, 0.0) == 0  # nothing stays unloaded
            shares.append((epoch.candidates, len(epoch.rows), epoch.share))
        assert epoch.rows.equal(order)
        assert epoch.scale.tolist() == [1.0] * 5
        assert shares == ([(2, 2, 1.0), (3, 5, 1.0)] if epoch.rounds == 2 else [(5, 5, 1.0)])
    some = Epoch(RandomSubset(0.4), 5)
    assert some.plan(order, 0.0) == 3
    assert (len(some.rows), some.share) == (2, 0.4)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 5), max_size=30))
def test_occurrences_count_the_visits_of_a_row_before(rows: list[int]) -> None:
    epoch = Epoch(None, 6)
    epoch.rows = torch.tensor(rows, dtype=torch.int64)
    expected = [rows[:place].count(row) for place, row in enumerate(rows)]
    for part in (slice(0, None), slice(3, 9)):
        found = epoch.occurrences(part)
        assert (found is None) == (not any(expected))
        assert found is None or found.tolist() == expected[part]


class Recalled(Policy):
    """Drops every row with a loss above the latest losses' mean; three rounds an epoch."""

    needs_index, rounds, state = True, 3, ("losses",)

    def __init__(self) -> None:
        self.losses = torch.zeros(40)

    def plan(self, run: RunInfo) -> Selection:
        known = self.losses[run.rows]
        kept = run.rows[known <= known.mean()]
        return Selection(kept, 1 + self.losses[kept])

    def observe(self, visit: Visit) -> None:
        assert visit.index is not None
        self.losses[visit.index] = visit.losses


def test_rows_that_are_divided_among_the_processes_again_are_refused(monkeypatch):
    monkeypatch.setattr("astkit.distributed.world", lambda: 2)
    monkeypatch.setattr("astkit.distributed.rank", lambda: 1)
    policy = RandomSubset(1.0)
    rows = torch.tensor(list(policy.sampler(range(24), epochs=1)))
    policy.mean(torch.ones(4), rows[:4])
    with pytest.raises(ValueError, match=r"^4 rows that this process drew were skipped: .*prepare"):
        policy.mean(torch.ones(4), rows[8:])


@pytest.mark.parametrize("weight", [1.0, 2.0])
@pytest.mark.parametrize("kind", [Kept, Recalled])
def test_an_epoch_that_is_not_trained_by_its_policy_is_told(kind, weight, recwarn):
    class Weighing(kind):  # type: ignore[misc, valid-type]
        def plan(self, run: RunInfo) -> Selection:
            weights = torch.full((len(run.rows),), weight)
            return Selection(run.rows, weights, normaliser=len(run.rows))

    policy = Weighing()
    sampler = policy.sampler(range(40), epochs=3)
    index = torch.tensor(list(sampler))
    policy.mean(torch.ones(40), index)
    for told in (0, int(kind is Recalled or weight != 1)):
        list(sampler)
        assert len(recwarn) == told
    assert not told or "no batch of the last epoch of Weighing was" in str(recwarn[0].message)
