"""`aim`: what it draws, when it abstains, and that it resumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from astkit.aim.estimators import least_fit
from astkit.aim.features import Rows
from astkit.aim.gains import ExpectedGain
from astkit.aim.pair import Pair
from astkit.aim.ratio import input_ratio
from scipy import signal
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit import RunInfo, rng
from astkit.aim import pair as pairing
from astkit.aim import policy as aim
from astkit.aim.policy import Aim
from astkit.gating import as_policy
from astkit.gating.policies.draws import draw_systematic
from tests.datasets.transformed import Transformed, dimmed, noise

N, M = 900, 240


def table(rows: int, seed: int, flipped: float = 0.0) -> TensorDataset:
    """Four columns and their sum; in the first share ``flipped`` of the rows its opposite."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=random)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1, generator=random)
    y[: round(flipped * rows)] *= -1
    return TensorDataset(x, y)


def classes(counts: list[int], seed: int) -> TensorDataset:
    """Rows of overlapping classes, at places of their own."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=random)]
    return TensorDataset(0.6 * y[:, None] + torch.randn(len(y), 3, generator=random), y)


TAIL = classes([760, 100, 40], 0)
BALANCED = classes([200] * 3, 1)


def run_info(train: Any, target: Any, epoch: int, part: int = 0, **options: Any) -> RunInfo:
    """The start of a quarter of one of four epochs."""
    n = len(train)
    rows = torch.arange(n)[n * part // 4 : n * (part + 1) // 4]
    return RunInfo(n, rows, epoch, part, epoch / 4, data=train, validation=target, **options)


def literal_draw(weights: list[float], count: int, random: torch.Generator) -> list[int]:
    """Systematic sampling, row by row."""
    order = torch.randperm(len(weights), generator=random).tolist()
    scale, ends, total = count / sum(weights), [], 0.0
    for row in order:
        total += weights[row]
        ends.append(total)
    scale = count / total
    start = float(torch.rand(1, dtype=torch.float64, generator=random))
    drawn, place = [], 0
    for step in range(count):
        while place < len(order) - 1 and ends[place] * scale <= start + step:
            place += 1
        drawn.append(order[place])
    return [drawn[each] for each in torch.randperm(count, generator=random).tolist()]


def test_a_draw_equals_a_literal_one() -> None:
    for seed in range(20):
        weights = torch.rand(50, dtype=torch.float64) ** 3
        random = torch.Generator().manual_seed(seed)
        found = draw_systematic(weights, 50, random)
        random.manual_seed(seed)
        assert found.tolist() == literal_draw(weights.tolist(), 50, random)


def test_an_epoch_is_one_draw_in_four_parts() -> None:
    weights = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    policy = Aim(seed=3)
    policy.load_state_dict({"drawn_by": weights, "power": 1.0, "stage": 2, "begun": 0})
    for epoch in (0, 1):
        parts = []
        for part in range(4):
            chosen = policy.plan(run_info(TAIL, BALANCED, epoch, part, seed=3))
            assert chosen is not None
            parts.append(chosen.index)
        assert torch.cat(parts).equal(draw_systematic(weights, N, rng.generator(3, "aim", epoch)))


@pytest.fixture(scope="module")
def drifted() -> aim.RowWeights:
    """What is found for a table of which 60 % of the rows follow another law."""
    return aim.weigh(aim.pair(table(N, 0, flipped=0.6), table(M, 1)))


def test_rows_of_another_law_are_left_out(drifted: aim.RowWeights) -> None:
    assert drifted.forecast.gain > 40
    assert drifted.forecast.gain > 5 * drifted.forecast.error
    found = drifted.weights
    assert found is not None
    assert found.mean() == pytest.approx(1)
    like_target = torch.arange(N) >= 0.6 * N
    assert float(found[like_target].sum() / found.sum()) > 0.75  # of 0.4 in the data
    assert float(found.min()) > 0


def test_a_date_does_not_hide_what_else_differs(drifted: aim.RowWeights) -> None:
    """After all those of the training data, it would leave no row that is like the target."""
    (x, y), (z, w) = (part.tensors for part in (table(N, 0, flipped=0.6), table(M, 1)))
    dates = torch.arange(N + M)[:, None].float()
    train = TensorDataset(torch.hstack([x[:, :2], dates[:N], x[:, 2:]]), y)
    target = TensorDataset(torch.hstack([z[:, :2], dates[N:], z[:, 2:]]), w)
    assert drifted.weights is not None
    assert torch.equal(aim.weights(train, target), drifted.weights)


def test_estimators_of_a_table_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other work, several that wait for each other took 50 times as long."""
    seen = []

    def judged(*given: Any) -> ExpectedGain:
        seen.extend(each["num_threads"] for each in threadpool_info())
        return ExpectedGain(0.0, 0.0, "", 0.0)

    monkeypatch.setattr(aim, "best_power", judged)
    both = aim.pair(table(N, 0, flipped=0.6), table(M, 1))
    with threadpool_limits(2):
        aim.weigh(both)
        assert {each["num_threads"] for each in threadpool_info()} == {2}
    assert len(seen) > 1
    assert set(seen) == {1}


@pytest.mark.parametrize("targets", [True, False])
def test_where_no_row_is_like_the_target_all_are_trained_on(targets: bool) -> None:
    x, y = table(N, 0).tensors
    z, w = table(M, 1).tensors
    more = ((y,), (w,)) if targets else ((), ())
    train, target = TensorDataset(x, *more[0]), TensorDataset(z + 20, *more[1])
    found = aim.weigh(aim.pair(train, target))
    assert found.weights is None
    assert "no training row is like the target (AUC 1.00)" in found.forecast.sentence


def test_a_long_tail_is_drawn_in_the_shares_of_a_balanced_target() -> None:
    found = aim.weights(TAIL, BALANCED)
    of_class = found.new_zeros(3).index_add(0, TAIL.tensors[1], found) / found.sum()
    assert of_class.tolist() == pytest.approx([1 / 3] * 3)
    assert len(found.unique()) == 3  # no more is found than the classes


def nothing(draw: int) -> bool:
    """Whether aim abstains on data without a shift, with classes or without."""
    if draw % 2:
        pair = table(N, 2 * draw), table(M, 2 * draw + 1)
    else:
        pair = classes([N // 3] * 3, 2 * draw), classes([M // 3] * 3, 2 * draw + 1)
    policy = Aim(seed=draw)
    return policy.plan(run_info(*pair, 0, seed=draw)) is None


def test_aim_abstains_without_a_shift() -> None:
    assert all(nothing(draw) for draw in (100, 101))


@pytest.mark.full
def test_aim_abstains_in_19_of_20_draws_without_a_shift() -> None:
    assert sum(nothing(draw) for draw in range(20)) >= 19


def test_random_transforms_are_no_shift() -> None:
    target, change = Transformed(noise(M, 1)), {"transform": "nothing to gain"}
    for name, reason in (change | {"own": "cannot tell, random transforms change"}).items():
        train = Transformed(noise(N), dimmed, name)
        alike = aim.weigh(aim.pair(train, target))
        assert alike.weights is None
        assert alike.forecast.reason.startswith(reason)
        train.targets = 1 * (torch.arange(N) % 8 == 0)  # classes are counted all the same
        assert aim.weigh(aim.pair(train, target)).forecast.unit == "points"


def test_images_are_asked_about_again_with_the_features_of_the_model() -> None:
    train, target = noise(N, 0), noise(M, 1)
    seen: list[tuple[str, int]] = []

    def features(rows: Tensor, of: str) -> Tensor:
        """A model whose first feature tells half of the training rows from all others."""
        seen.append((of, len(rows)))
        noise = rng.uniform(rows, 0, of)
        other = (rows % 4 > 1).float() * (of == "data")
        labels = (train if of == "data" else target).labels[rows]
        return torch.stack([3 * other + noise, labels * (1 - 2 * other), noise], 1)

    policy = Aim()
    for part in range(3):
        assert policy.plan(run_info(train, target, 0, part, features=features)) is None
        assert not seen
    chosen = policy.plan(run_info(train, target, 0, 3, features=features))
    asked = [count for of, count in seen if of == "data"]
    assert asked[0] < N / 4  # the rows that are left of the epoch
    assert chosen is not None
    assert float((chosen.index % 4 < 2).float().mean()) > 0.85
    count = len(seen)
    policy.plan(run_info(train, target, 1, 0, features=features))
    assert len(seen) == count  # settled


@pytest.mark.parametrize(("progress", "asked"), [(0.06, True), (0.07, False)])
def test_the_model_is_not_asked_where_that_takes_more_than_a_twentieth_of_the_run(
    progress: float, asked: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Its answer takes N + N / 4 + 2 M passes, of a third of what 3 N / 4 training steps took."""
    calls: list[str] = []

    def features(rows: Tensor, of: str) -> Tensor:
        calls.append(of)
        return torch.stack([rng.uniform(rows, each, int(of == "data")) for each in (0, 1)], 1)

    run = run_info(noise(N), noise(M, 1), 0, 3, features=features)
    policy = Aim()
    policy.stage = 1
    assert policy.plan(replace(run, progress=progress)) is None
    assert bool(calls) == asked
    said = [str(each.message) for each in recwarn]
    assert any("more than 5% of the run: it is not asked" in each for each in said) != asked


@pytest.mark.parametrize("left", [0.0, 3.0])
def test_the_model_is_asked_about_the_rows_that_are_drawn(
    left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the rows are hardly drawn; of the others the model tells half from the target."""
    n = 2 * N
    train, target = noise(n, 0), noise(M, 1)
    early = torch.where(torch.arange(n) % 8 < 4, 0.2, 1.8).double()
    first = aim.RowWeights(early, ExpectedGain(5.0, 1.0, "points", 0.5), 7.0)
    monkeypatch.setattr(aim, "weigh", lambda pair, most: first)
    asked: list[int] = []

    def features(rows: Tensor, of: str) -> Tensor:
        asked.append(len(rows))
        other = (rows % 8 // 2 == 2).float() * (of == "data")
        noise = [rng.uniform(rows, each, int(of == "data")) for each in (0, 1)]
        return torch.stack([left * other + noise[0], noise[1]], 1)

    policy = Aim()
    for part in range(3):
        assert policy.plan(run_info(train, target, 0, part, features=features)) is not None
    assert not asked
    chosen = policy.plan(run_info(train, target, 0, 3, features=features))
    assert chosen is not None
    assert policy.flops > first.flops
    found = policy.drawn_by
    assert found is not None
    assert chosen.index.equal(draw_systematic(found, n, rng.generator(0, "aim", 0))[n * 3 // 4 :])
    if not left:
        assert found is early
        assert sum(asked) == n // 4 + M  # the rows of the test
        return
    rows = (
        Rows(train, by_row=lambda rows: features(rows, "data")),
        Rows(target, by_row=lambda rows: features(rows, "validation")),
    )
    ratio = input_ratio(Pair(*rows), early, torch.arange(M), torch.arange(n))
    literal = early * ratio.sqrt()  # the power that the proxy chose before
    torch.testing.assert_close(found, literal / literal.mean())
    like_target = torch.arange(n) % 8 >= 6
    assert float(found[like_target].sum() / found.sum()) > 0.75  # of 0.45 before


UNEVEN = {
    "one row in twenty": torch.where(torch.arange(N) % 20 == 0, 20.0, 0.0),
    "a few among many": torch.where(torch.arange(N) % 50 == 0, 30.0, 0.4),
    "ever rarer": 1 / (1 + torch.arange(N)) ** 0.5,
}


@pytest.mark.parametrize("kind", UNEVEN)
def test_rows_that_the_model_is_asked_about_are_distinct_and_not_learnt_yet(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of fitted rows, and rows that were trained on, would look like a difference."""
    weights = (UNEVEN[kind] / UNEVEN[kind].mean()).double()
    found = aim.RowWeights(weights, ExpectedGain(5.0, 1.0, "points", 1.0), 0.0)
    monkeypatch.setattr(aim, "weigh", lambda pair, most: found)
    monkeypatch.setattr(aim, "FEWEST_TRAINED", 4)
    asked: list[Tensor] = []

    def features(rows: Tensor, of: str) -> Tensor:
        asked.extend([rows] if of == "data" else [])
        return torch.stack([rng.uniform(rows, each, int(of == "data")) for each in (0, 1)], 1)

    policy, learnt = Aim(), []
    for part in range(4):
        chosen = policy.plan(run_info(noise(N), noise(M, 1), 0, part, features=features))
        assert chosen is not None
        learnt += chosen.index.tolist() if part < 3 else []
    rows = torch.cat(asked)
    assert len(rows) >= 4
    assert len(rows.unique()) == len(rows)
    assert not set(rows.tolist()) & set(learnt)
    assert policy.drawn_by is weights  # nothing was found


def test_the_model_finds_nothing_left_in_rows_like_the_target() -> None:
    """One row in twenty is relevant, and they are all that is drawn."""
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        x, z = (torch.randn(rows, 32, generator=random) for rows in (2 * N, M))
        drawn_by = torch.where(torch.rand(2 * N, generator=random) < 0.05, 20.0, 0.0).double()
        parts = [
            Rows(noise(len(each)), by_row=lambda rows, each=each: each[rows])  # type: ignore[misc]
            for each in (x, z)
        ]
        assert aim.sharpen(Pair(*parts, seed), drawn_by, 1.0) is drawn_by


def test_no_more_features_are_computed_where_sharper_weights_would_cost_too_much() -> None:
    asked: list[int] = []

    def features(rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return torch.stack([rng.uniform(rows, 0) + 3, rng.uniform(rows, 1)], 1)

    target = Rows(noise(M), by_row=lambda rows: torch.stack([rng.uniform(rows, 2)] * 2, 1))
    seen, drawn_by = Pair(Rows(noise(N), by_row=features), target), torch.ones(N).double()
    with pytest.warns(UserWarning, match="choosing by the target would take"):
        assert aim.sharpen(seen, drawn_by, 1.0, most=0.0) is drawn_by
    assert sum(asked) == len(aim.rows_to_ask(drawn_by, 0))


def test_all_rows_are_trained_on_where_choosing_would_take_too_much_of_the_run(
    drifted: aim.RowWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_info(table(N, 0, flipped=0.6), table(M, 1), 0)
    known = aim.FITS * least_fit(aim.pair(run.data, run.validation)) / aim.MOST
    for budget, tested in ((0.99 * known, False), (1.01 * known, True)):
        policy = Aim()
        with pytest.warns(UserWarning, match=r"more than 25% of the run: all rows are trained on"):
            assert policy.plan(replace(run, budget=budget)) is None
        assert bool(policy.flops) == tested
        assert policy.flops < drifted.flops / 8
    monkeypatch.setattr(aim, "best_power", lambda *_: ExpectedGain(5.0, 1.0, "points", 0.5))
    assert Aim().plan(replace(run, budget=2 * drifted.flops / aim.MOST)) is not None


def test_a_custom_loop_asks_once_before_training() -> None:
    policy = as_policy("aim")
    assert policy is not None
    rows = torch.tensor(list(policy.sampler(TAIL, epochs=2, validation=BALANCED)))
    assert TAIL.tensors[1][rows].bincount().tolist() == pytest.approx([N / 3] * 3, abs=9)


def test_what_is_missing_is_said() -> None:
    train = table(N, 0)
    with pytest.raises(ValueError, match="there is no target: pass validation data"):
        Aim().plan(run_info(train, None, 0))
    with pytest.raises(ValueError, match=r"the target has 20 rows, too few .* at least 100"):
        Aim().plan(run_info(train, table(20, 1), 0))
    with pytest.raises(ValueError, match="the target has 99 rows"):
        aim.weights(train, table(99, 1))
    unknown = TensorDataset(torch.zeros(N, 2, 2, 2, 2), torch.zeros(N))
    with pytest.raises(ValueError, match=r"no features are known .* pass features="):
        aim.weights(unknown, unknown)
    assert aim.weights(unknown, unknown, features=lambda x: x.flatten(1)).eq(1).all()


@pytest.mark.filterwarnings("error")
def people(count: int, seed: int) -> TensorDataset:
    """Forty rows of each person, whose inputs and targets are alike."""
    random = torch.Generator().manual_seed(seed)
    own = torch.randn(count, 1, 5, generator=random)
    offset = 2 * torch.randn(count, 1, generator=random)
    x = own + 0.5 * torch.randn(count, 40, 5, generator=random)
    y = x.sum(2) + offset + 0.3 * torch.randn(count, 40, generator=random)
    return TensorDataset(x.flatten(0, 1), y.flatten()[:, None])


def test_other_people_are_no_shift_where_it_is_said_whose_rows_they_are() -> None:
    train, target = people(24, 2), people(6, 3)
    random = np.random.default_rng(0)
    of_train, of_target = (random.permutation(40 * count) for count in (24, 6))
    train = TensorDataset(*train[of_train])  # rows of a person are no neighbours
    target = TensorDataset(*target[of_target])
    assert aim.expected_gain(train, target).power > 0
    train.groups = [f"person {row // 40}" for row in of_train]  # type: ignore[attr-defined]
    target.groups = of_target // 40  # type: ignore[attr-defined]
    assert "are like the target" in aim.expected_gain(train, target).reason
    target.groups = torch.arange(3)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="groups of the target has 3 entries for 240 rows"):
        aim.expected_gain(train, target)


def stationary(kind: str, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """600 rows of a recording and the 200 that follow; rows have the state of their time as class.

    A state lasts 8 rows on average.
    """
    random = np.random.default_rng(seed)
    state = random.integers(3, size=800)[np.cumsum(random.random(800) < 1 / 8)]
    slow = signal.lfilter([1], [1, -0.9], random.normal(size=(1100, 4)), axis=0)[300:]
    slow[:, 0] += 3 * state
    if kind == "windows":
        x = torch.from_numpy(np.stack([slow, np.roll(slow, 1, 0)], 1)).float()
    elif kind == "frames":
        pixels = slow[:, :, None, None] + random.normal(size=(800, 4, 8, 8))
        x = torch.from_numpy(pixels).float()
    else:  # parts of a text, whose words change with its subject
        x = torch.from_numpy(random.integers(40, size=(800, 12)) + 30 * state[:, None])
    y = torch.from_numpy(state)
    return TensorDataset(x[:600], y[:600]), TensorDataset(x[600:], y[600:])


@pytest.mark.parametrize("kind", ["windows", "frames", "text"])
def test_the_last_part_of_a_stationary_recording_is_no_shift(kind: str) -> None:
    for seed in range(3):
        found = aim.weigh(aim.pair(*stationary(kind, seed), seed=seed))
        assert found.weights is None
        assert "neighbouring rows of the target depend on each other" in found.forecast.reason


def test_a_shift_is_found_in_blocks_of_a_long_recording() -> None:
    random = np.random.default_rng(0)
    slow = signal.lfilter([1], [1, -0.7], random.normal(size=(5300, 3)), axis=0)[300:]
    x = torch.from_numpy(slow).float()
    y = x.sum(1, keepdim=True)
    y[:2500] *= -1
    train, target = TensorDataset(x[:4000], y[:4000]), TensorDataset(x[4000:], y[4000:])
    both = aim.pair(train, target)
    found = aim.weigh(both)
    assert both.train.block > 20
    assert f"; rows in blocks of {both.train.block}; " in found.forecast.sentence
    assert found.forecast.power > 0
    assert found.weights is not None
    assert float(found.weights[:2500].mean()) < 0.3


def test_a_class_without_a_row_in_the_target_is_still_drawn() -> None:
    """It may be rare there, and counts as half a row."""
    train = classes([760, 100, 40, 10], 0)
    found, y = aim.weights(train, BALANCED), train.tensors[1]
    ratios = [float(found[y == rare].mean()) for rare in (3, 2)]
    assert ratios[0] / ratios[1] == pytest.approx((0.5 / 10) / (200 / 40))


def test_a_target_without_a_class_of_the_training_rows_is_refused() -> None:
    x = torch.randn(400, 4)
    train, target = (TensorDataset(x, torch.arange(400) % 2 + 2 * part) for part in (0, 1))
    with pytest.raises(ValueError, match="no training row has a class of the target"):
        aim.pair(train, target, classes=True)


def test_a_class_that_no_fitted_row_has_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "FITTED", 100)
    random = torch.Generator().manual_seed(0)  # of which neighbours are not alike by chance
    labels = torch.arange(400) % 3
    labels[7] = 3
    train = TensorDataset(torch.randn(400, 4, generator=random), labels)
    target = TensorDataset(torch.randn(120, 4, generator=random), torch.full((120,), 3))
    made = aim.pair(train, target, classes=True)  # which the one row of a class does not look like
    assert made.labels is not None
    assert 7 not in made.sample
    assert aim.weights(train, target, classes=True).mean() == pytest.approx(1)
