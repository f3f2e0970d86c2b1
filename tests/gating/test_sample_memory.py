"""Scores that remember, against dicts of Python numbers; and a sentence where they cannot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from astkit.gating import EL2N, Gate, Scored, WeightedSum
from astkit.gating.scores import gradient_norm
from astkit.trainers import checkpoint
from astkit.trainers.fingerprint import plain

UNUSED = torch.zeros(0)  # no input is looked at
visits = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True), max_size=12)
REMEMBERING = ["el2n", "loss + 0.5*el2n"]


def batch_of(samples: list[int], seed: int, **other: Any) -> Scored:
    random = torch.Generator().manual_seed(seed)
    outputs = 3 * torch.randn(len(samples), 4, generator=random, dtype=torch.float64)
    targets = torch.randint(4, (len(samples),), generator=random)
    given = {
        "outputs": outputs,
        "targets": targets,
        "inputs": UNUSED,
        "index": torch.tensor(samples),
    }
    return Scored(**{**given, **other})


# --- EL2N ------------------------------------------------------------------------------------


def autograd_norms(batch: Scored) -> list[float]:
    """Norm of each row's cross-entropy gradient with respect to its logits."""
    found = []
    for row, target in zip(batch.outputs, batch.targets, strict=True):
        row = row.clone().requires_grad_()
        F.cross_entropy(row[None], target[None]).backward()
        found.append(float(row.grad.norm()))
    return found


@settings(deadline=None, max_examples=30)
@given(visits)
def test_el2n_is_the_mean_of_autograds_norms_over_the_visits_of_a_sample(passes: list[Any]) -> None:
    score, seen = EL2N(), {}
    for number, index in enumerate(passes):
        batch = batch_of(index, number)
        for sample, norm in zip(index, autograd_norms(batch), strict=True):
            seen.setdefault(sample, []).append(norm)
        expected = [sum(seen[sample]) / len(seen[sample]) for sample in index]
        assert score.score(batch).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_first_visit_scores_the_gradient_norm_of_labels_or_shares() -> None:
    for dtype in (torch.float32, torch.float64):
        batch = batch_of(list(range(64)), 0)
        batch = batch_of(list(range(64)), 0, outputs=batch.outputs.to(dtype))
        scores = EL2N().score(batch)
        assert scores.dtype == dtype
        assert scores.equal(gradient_norm(batch.outputs, batch.targets, UNUSED))
    shares = F.one_hot(batch.targets, 4).double()
    soft = batch_of(list(range(64)), 0, targets=shares)
    torch.testing.assert_close(EL2N().score(soft), scores)


def test_a_visit_that_is_not_finite_gives_no_score_and_is_forgotten() -> None:
    score, clean = EL2N(), EL2N()
    for number in range(4):
        batch = batch_of([5, 0, 2], number)
        expected = clean.score(batch) if number != 2 else None
        if number == 2:
            batch.outputs[:] = torch.tensor([[math.nan], [math.inf], [-math.inf]])
        scores = score.score(batch)
        if expected is None:
            assert not bool(scores.isfinite().any())
        else:
            assert scores.equal(expected)
    assert score.sums.equal(clean.sums)


def test_a_sample_that_is_twice_in_a_batch_is_visited_twice() -> None:
    batch = batch_of([7, 7, 1], 0)
    norms = autograd_norms(batch)
    mean = (norms[0] + norms[1]) / 2
    assert EL2N().score(batch).tolist() == pytest.approx([mean, mean, norms[2]])


# --- the index -------------------------------------------------------------------------------


def test_without_an_index_it_says_what_to_pass() -> None:
    model, x, y = nn.Linear(3, 4), torch.randn(5, 3), torch.randint(4, (5,))
    sentence = r"EL2N keeps per-sample state, .*indexed\(data\).*index=\.\.\. to"
    for name in REMEMBERING:
        gate = Gate(0.5, name)
        for call in (gate, gate.score):
            with pytest.raises(
                ValueError, match=r"Gate keeps per-sample state, but .* index: .*ind"
            ):
                call(model, x, y)
        with pytest.raises(ValueError, match=sentence):
            gate.significance(model(x), y, x)
        assert gate.score(model, x, y, torch.arange(5)).shape == (5,)
        assert 0 < len(gate(model, x, y, torch.arange(5))) < 5


def test_an_index_that_names_no_samples_is_refused_and_any_whole_numbers_do() -> None:
    wrong = [torch.arange(3), torch.arange(4.0), torch.arange(4)[:, None], torch.tensor(3)]
    wrong += [torch.tensor([0, 1, -1, 2]), torch.ones(4, dtype=torch.bool)]
    for index in wrong:
        batch = batch_of([0, 1, 2, 3], 0, index=index)
        with pytest.raises(
            ValueError, match=r"index is torch\.\w+ of shape .* position of the sam"
        ):
            EL2N().score(batch)
    small = batch_of([4, 0, 9], 0, index=torch.tensor([4, 0, 9], dtype=torch.int32))
    assert EL2N().score(small).equal(EL2N().score(batch_of([4, 0, 9], 0)))


# --- state -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "steps"), [*zip(REMEMBERING, [6, 0], strict=True)])
def test_a_gate_with_a_memory_continues_bit_for_bit(name: str, steps: int, tmp_path: Path) -> None:
    model = nn.Linear(3, 4)

    def run(gate: Gate, numbers: range) -> list[Any]:
        found = []
        for number in numbers:
            random = torch.Generator().manual_seed(number)
            x, y = torch.randn(6, 3, generator=random), torch.randint(4, (6,), generator=random)
            index = torch.randperm(15, generator=random)[:6]
            found.append(gate.score(model, x, y, index).tolist())
            found.append(gate.select(torch.tensor(found[-1])).index.tolist())
        return found

    gate, resumed = Gate(0.3, name), Gate(0.3, name)
    run(gate, range(steps))
    resumed.load_state_dict(checkpoint.read(checkpoint.write(tmp_path / "gate", gate.state_dict())))
    assert run(resumed, range(steps, 12)) == run(gate, range(steps, 12))
    assert plain(resumed.state_dict()) == plain(gate.state_dict())
    assert run(Gate(0.3, name), range(11, 12)) != run(gate, range(11, 12))  # memory matters


def test_a_saved_state_is_no_view_of_the_score() -> None:
    score = WeightedSum([(1, EL2N())])
    score.score(batch_of([2], 0))
    state = score.state_dict()
    before = plain(state)
    score.score(batch_of([2], 1))
    assert before == plain(state) != plain(score.state_dict())
    other = WeightedSum([(1, EL2N())])
    other.load_state_dict(state)
    other.score(batch_of([2], 1))
    assert plain(state) == before


def test_the_state_of_many_samples_is_one_tensor() -> None:
    score = EL2N()
    score.score(batch_of([10**6], 0))
    (sums,) = score.state_dict().values()
    assert sums.shape == (2, 10**6 + 1)
