"""`aim`: what it draws, when it abstains, when it asks the model, and that it resumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from astkit import Budget, Comparison, RunInfo, Trainer, compare, indexed, joined, rng
from astkit.aim import forecast as forecasts
from astkit.aim import policy as aim
from astkit.aim import weights
from astkit.aim.decisions import FLAT, WEIGHTED
from astkit.aim.differ import input_ratio
from astkit.aim.forecast import Forecast, TooCostlyError, forecast_of
from astkit.aim.policy import Aim
from astkit.aim.rows import Rows
from astkit.aim.sides import Sides
from astkit.gating import as_policy
from astkit.gating.policies.draws import draw_systematic
from tests import build
from tests.aim.tables import points
from tests.aim.test_forecast import classes
from tests.trainers.worlds import flat, in_world

N, M = 900, 240
TAIL = classes([760, 100, 40], 0)
BALANCED = classes([200] * 3, 1)


def run_info(train: Any, target: Any, epoch: int, part: int = 0, **options: Any) -> RunInfo:
    """The start of a quarter of one of four epochs."""
    n = len(train)
    rows = torch.arange(n)[n * part // 4 : n * (part + 1) // 4]
    return RunInfo(n, rows, epoch, part, epoch / 4, data=train, validation=target, **options)


def test_rows_are_drawn_by_the_forecast_an_epoch_in_four_parts() -> None:
    """One path: what a policy draws, `aim.weights` and `astkit.forecast` say agree."""
    old, target = build.numbers(N, flipped=0.6), build.numbers(M, seed=1)
    policy, drawn_by = Aim(seed=3), weights(old, target)
    for epoch in (0, 1):
        runs = [run_info(old, target, epoch, part, seed=3) for part in range(4)]
        parts = [policy.plan(run).index for run in runs]
        assert torch.cat(parts).equal(draw_systematic(drawn_by, N, rng.generator(3, "aim", epoch)))
    told = forecasts.forecast(old, target, train_on_target=False)
    assert torch.equal(told.weights, drawn_by)
    assert policy.flops == told.flops == 0  # trees are timed
    both = joined(old, target)
    policy = Aim(seed=3)
    run = run_info(both, None, 0, seed=3)
    drawn = [policy.plan(quarter_of(run, part)).index for part in range(4)]
    drawn_by = forecast_of(both).weights
    assert torch.cat(drawn).equal(draw_systematic(drawn_by, N, rng.generator(3, "aim", 0)))


def quarter_of(run: RunInfo, part: int) -> RunInfo:
    """One of the old rows of joined data, of which an epoch has as many draws."""
    rows = torch.arange(N)[N * part // 4 : N * (part + 1) // 4]
    return replace(run, rows=rows, round=part)


def nothing(draw: int) -> bool:
    """Whether aim abstains on data without a shift, with classes or without."""
    if draw % 2:
        parts = build.numbers(N, seed=2 * draw), build.numbers(M, seed=2 * draw + 1)
    else:
        parts = classes([N // 3] * 3, 2 * draw), classes([M // 3] * 3, 2 * draw + 1)
    return Aim(seed=draw).plan(run_info(*parts, 0, seed=draw)) is None


def test_aim_abstains_without_a_shift() -> None:
    assert all(nothing(draw) for draw in (100, 101))


@pytest.mark.full
def test_aim_abstains_in_19_of_20_draws_without_a_shift() -> None:
    assert sum(nothing(draw) for draw in range(20)) >= 19


def test_images_are_asked_about_again_with_the_features_of_the_model() -> None:
    train, target = build.images(N), build.images(M, seed=1)
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


@pytest.mark.parametrize(("progress", "asked"), [(0.07, True), (0.08, False)])
def test_the_model_is_not_asked_where_that_takes_more_than_a_twentieth_of_the_run(
    progress: float, asked: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Its answer takes N + N / 4 + M passes, of a third of what 3 N / 4 training steps took."""
    calls: list[int] = []

    def features(rows: Tensor, of: str) -> Tensor:
        calls.append(len(rows))
        return torch.stack([rng.uniform(rows, each, int(of == "data")) for each in (0, 1)], 1)

    run = run_info(build.images(N), build.images(M, seed=1), 0, 3, features=features)
    policy = Aim()
    policy.stage = 1
    assert policy.plan(replace(run, progress=progress)) is None
    assert sum(calls) <= N + N / 4 + M
    assert bool(calls) == asked
    said = [str(each.message) for each in recwarn]
    assert any("more than 5% of the run: it is not asked" in each for each in said) != asked


@pytest.mark.parametrize("left", [0.0, 3.0])
def test_the_model_is_asked_about_the_rows_that_are_drawn(
    left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the rows are hardly drawn; of the others the model tells half from the target."""
    n = 2 * N
    train, target = build.images(n), build.images(M, seed=1)
    early = torch.where(torch.arange(n) % 8 < 4, 0.2, 1.8).double()
    first = Forecast(FLAT, "forecast: so", early, [{"decision": "old"}], flops=7.0)
    monkeypatch.setattr(aim, "forecast_of", lambda *_: first)
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
    both = Sides(*rows)
    both.find_units()
    ratio = input_ratio(both, early, None, torch.arange(M), torch.arange(n))
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
    drawn_by = (UNEVEN[kind] / UNEVEN[kind].mean()).double()
    found = Forecast(WEIGHTED, "forecast: so", drawn_by, [{"decision": "old"}])
    monkeypatch.setattr(aim, "forecast_of", lambda *_: found)
    monkeypatch.setattr(aim, "FEWEST_OLD", 4)
    asked: list[Tensor] = []

    def features(rows: Tensor, of: str) -> Tensor:
        asked.extend([rows] if of == "data" else [])
        return torch.stack([rng.uniform(rows, each, int(of == "data")) for each in (0, 1)], 1)

    policy, learnt, data = Aim(), [], (build.images(N), build.images(M, seed=1))
    for part in range(4):
        chosen = policy.plan(run_info(*data, 0, part, features=features))
        assert chosen is not None
        learnt += chosen.index.tolist() if part < 3 else []
    rows = torch.cat(asked)
    assert len(rows) >= 4
    assert len(rows.unique()) == len(rows)
    assert not set(rows.tolist()) & set(learnt)
    assert policy.drawn_by is drawn_by  # nothing was found


def test_the_model_finds_nothing_left_in_rows_like_the_target() -> None:
    """One row in twenty is relevant, and they are all that is drawn."""
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        x, z = (torch.randn(rows, 32, generator=random) for rows in (2 * N, M))
        drawn_by = torch.where(torch.rand(2 * N, generator=random) < 0.05, 20.0, 0.0).double()
        parts = [
            Rows(build.images(len(each)), by_row=lambda rows, each=each: each[rows])  # type: ignore[misc]
            for each in (x, z)
        ]
        assert aim.sharpen(Sides(*parts, seed), drawn_by, 1.0) is drawn_by


def test_no_more_features_are_computed_where_sharper_weights_would_cost_too_much() -> None:
    asked: list[int] = []

    def features(rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return torch.stack([rng.uniform(rows, 0) + 3, rng.uniform(rows, 1)], 1)

    target = Rows(build.images(M), by_row=lambda rows: torch.stack([rng.uniform(rows, 2)] * 2, 1))
    seen, drawn_by = Sides(Rows(build.images(N), by_row=features), target), torch.ones(N).double()
    with pytest.raises(TooCostlyError, match="it would take"):
        aim.sharpen(seen, drawn_by, 1.0, most=0.0)
    assert sum(asked) == len(aim.rows_to_ask(drawn_by, 0))


def test_a_forecast_may_take_a_quarter_of_a_run() -> None:
    both = joined(points(N, 0, True, "images"), points(M, 1, False, "images"))
    policy, run = Aim(), run_info(both, None, 0)
    flops = forecast_of(both).flops
    policy.plan(replace(quarter_of(run, 0), budget=flops / aim.MOST))
    assert policy.flops == flops
    assert len(policy.drawn_by.unique()) > 1


def tokens(rows: int, shift: int) -> Dataset[Any]:
    """Words of two classes, as transformers take them."""
    random = torch.Generator().manual_seed(rows)
    labels = torch.randint(0, 2, (rows,), generator=random)
    x = torch.randint(1, 500, (rows, 20), generator=random) + shift
    return build.as_dataset([{"tokens": x[row], "labels": labels[row]} for row in range(rows)])


class Bag(nn.Module):
    """The mean of looked-up vectors, of which no FLOPs are counted, and a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.head = nn.Embedding(2000, 16), nn.Linear(16, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found: Tensor = self.head(self.vectors(batch["tokens"]).mean(1))
        return found


def test_a_forecast_does_not_eat_the_budget_of_a_small_model() -> None:
    """It is refused, and the run trains on both kinds of rows to its end."""
    both = joined(tokens(640, 0), tokens(160, 300))
    trainer = Trainer(Bag(), both, policy="aim", budget=Budget(flops=2.5e5), batch_size=64)
    with pytest.warns(UserWarning, match="it would take .* FLOPs, too large a share of the run"):
        steps = [record.step for record in trainer.steps()]
    assert len(steps) > 15
    assert trainer.policy.flops < 0.01 * 2.5e5
    assert trainer.policy.drawn_by.unique().tolist() == [1.0]


def test_a_custom_loop_asks_once_before_training() -> None:
    policy = as_policy("aim")
    assert policy is not None
    rows = torch.tensor(list(policy.sampler(TAIL, epochs=2, validation=BALANCED)))
    assert TAIL.tensors[1][rows].bincount().tolist() == pytest.approx([N / 3] * 3, abs=9)


def test_what_is_missing_is_said() -> None:
    old = build.numbers(N)
    with pytest.raises(ValueError, match="there is no target: pass validation data"):
        Aim().check(run_info(old, None, 0))
    with pytest.raises(ValueError, match=r"the target has 20 rows, too few .* at least 30"):
        Aim().check(run_info(old, build.numbers(20), 0))
    with pytest.raises(ValueError, match="the training data have 9 rows"):
        Aim().check(run_info(build.numbers(9), old, 0))
    unknown = TensorDataset(torch.zeros(N, 2, 2, 2, 2), torch.zeros(N))
    with pytest.raises(ValueError, match=r"no features are known .* pass rows with"):
        weights(unknown, unknown)
    assert weights(unknown, unknown, features=lambda x: x.flatten(1)).eq(1).all()


# --- with rows of the target that may be trained on ----------------------------------------------


def model() -> nn.Module:
    return build.network(4, 4, 0, dtype=torch.float64)


def data() -> TensorDataset:
    parts = points(N, 0, True, "vectors"), points(M, 1, False, "vectors")
    whole: TensorDataset = joined(
        *(TensorDataset(p.tensors[0].double(), p.tensors[1]) for p in parts)
    )
    return whole


def trained_by_aim(epochs: int = 2) -> tuple[Tensor, Tensor]:
    trained = model()
    if distributed.is_initialized():
        trained = nn.parallel.DistributedDataParallel(trained)
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    trainer = Trainer(
        trained, data(), policy=Aim(), epochs=epochs, optimizer=optimizer, batch_size=60
    )
    trainer.run()
    return flat(trainer.model), trainer.policy.drawn_by


def test_two_processes_carry_the_same_decision_out() -> None:
    weights, drawn_by = trained_by_aim()
    for other, drawn in in_world(2, trained_by_aim):
        assert torch.equal(drawn, drawn_by)
        assert (other - weights).abs().max() < 1e-9


def test_an_own_loop_and_a_resumed_run_draw_alike(tmp_path: Path) -> None:
    both, policy = data(), Aim()
    loader = DataLoader(indexed(both), batch_size=60, sampler=policy.sampler(both, epochs=1))
    drawn = torch.cat([index for index, _ in loader])
    assert len(drawn) == N
    assert int((drawn >= N).sum()) > N / 2
    options: dict[str, Any] = {"epochs": 2, "batch_size": 60, "checkpoints": tmp_path, "lr": 0.01}
    first = Trainer(model(), both, policy="aim", **options)
    for record in first.steps():
        if record.step == 2:
            break
    again = Trainer(model(), both, policy="aim", resume=True, **options)
    assert torch.equal(again.policy.drawn_by, first.policy.drawn_by)


def test_a_comparison_tells_the_decision_first_and_carries_it_out(tmp_path: Path) -> None:
    report = compare(
        build.table(N, 0, law=-1.0),
        label="y",
        target=build.table(M + 60, 1),
        test=build.table(100, 2),
        policies="aim",
        seeds=2,
        epochs=4,
        lr=0.01,
        check_baseline=False,
        out=tmp_path,
    )
    alone, told = report.before
    assert alone.startswith("training on the target alone: RMSE ")
    assert told.startswith("forecast: train on ")
    assert report.forecast.sentence == told
    assert report.given_forecast == ["aim"]
    trained = report.visits("aim", 0)["trained"].sum(0)
    assert int(trained[N:].sum()) > int(trained[:N].sum())
    assert next(v for v in report.verdicts if v.policy == "aim").better
    assert str(Comparison.load(tmp_path).forecast) == str(report.forecast)
