"""Data decisions carried out: what is drawn of old rows and of a target's, in every loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from astkit import Auto, Comparison, RunInfo, Table, Trainer, compare, indexed, joined
from astkit.aim import plans
from astkit.aim import policy as aim
from astkit.aim.decisions import BOTH, OLD, TARGET, Decision
from astkit.aim.forecast import Forecast
from astkit.aim.policy import Aim, plan_of
from astkit.datasets.joined import divide_joined
from astkit.gating.policies.draws import draw_systematic
from astkit.rng import generator
from tests.trainers.worlds import flat, in_world

N, M = 600, 240


def frame(rows: int, seed: int, sign: float = 1.0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    made = pd.DataFrame({"x": draw.normal(size=rows), "z": draw.normal(size=rows)})
    return made.assign(y=sign * 3 * made["x"] + made["z"] + 0.1 * draw.normal(size=rows))


def tables(sign: float = -1.0, rows: int = M) -> Table:
    """Old rows of one law, and those of a target, where the law is turned round."""
    old = Table(frame(N, 0), label="y")
    both: Table = joined(old, Table(frame(rows, 1, sign), like=old))
    return both


@pytest.fixture(scope="module")
def turned() -> Table:
    """`tables` that tests share: their plan, which takes seconds, is computed once."""
    return tables()


@pytest.fixture(scope="module")
def alike() -> Table:
    """Likewise, of one law."""
    return tables(sign=1.0)


def points(rows: int, seed: int, swapped: bool, kind: str) -> TensorDataset:
    """Images or vectors of four classes, which are other ones where they are ``swapped``."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (rows,), generator=random)
    x = torch.randn(rows, 4, generator=random) + 3 * torch.eye(4)[y]
    if kind == "images":
        x = x.view(rows, 1, 2, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)
    return TensorDataset(x, (3 - y) if swapped else y)


class Texts(Dataset[Any]):
    """Tokens and the next one, of two languages."""

    def __init__(self, rows: int, seed: int, step: int) -> None:
        random = torch.Generator().manual_seed(seed)
        first = torch.randint(0, 7, (rows, 1), generator=random)
        self.tokens = (first + step * torch.arange(13)) % 7

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.tokens[row, :-1], self.tokens[row, 1:]


def plan(policy: Aim, data: Any, epoch: int = 0, part: int = 0, **options: Any) -> Any:
    old = data.old_rows
    rows = torch.arange(old)[old * part // 4 : old * (part + 1) // 4]
    return policy.plan(RunInfo(len(data), rows, epoch, part, epoch / 4, data=data, **options))


def test_weights_of_decisions() -> None:
    assert plans.times_drawn(OLD, 3, 2) is None
    found = plans.times_drawn(Decision(times=4), 3, 2)
    assert (found / found[0]).tolist() == [1, 1, 1, 4, 4]
    assert found.mean() == pytest.approx(1)
    assert plans.times_drawn(TARGET, 3, 2).tolist() == [0, 0, 0, 2.5, 2.5]
    ratio = np.array([0.0, 1.0, 2.0])
    found = plans.times_drawn(Decision(times=1, weighted=True), 3, 2, ratio)
    assert (found / found[1]).tolist() == [0, 1, 2, 1, 1]


def test_old_rows_of_the_opposite_law_are_left_out(turned: Table) -> None:
    share = plan_of(turned)
    assert share.sentence.startswith("forecast: train on")
    assert share.decision != OLD
    of_old = float(share.weights[:N].sum() / share.weights.sum())
    assert of_old < 0.4
    policy = Aim(seed=3)
    parts = [plan(policy, turned, part=part, seed=3).index for part in range(4)]
    assert len(torch.cat(parts)) == N
    expected = draw_systematic(share.weights, N, generator(3, "aim", 0))
    assert torch.equal(torch.cat(parts), expected)


def test_a_share_of_both_counts_each_row_once_where_nothing_differs(alike: Table) -> None:
    share = plan_of(alike)
    assert share.decision in (OLD, BOTH)
    if share.weights is not None:
        assert share.weights.unique().tolist() == [1.0]


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_a_head_on_features_judges_other_data(kind: str) -> None:
    both = joined(points(N, 0, True, kind), points(M, 1, False, kind))
    share = plan_of(both)
    assert share.flops > 0
    assert float(share.weights[:N].sum() / share.weights.sum()) < 0.5
    names = [line["decision"] for line in share.table]
    assert names[:4] == ["old", "both", "both x4", "target"]
    assert sum(line["chosen"] for line in share.table) == 1
    alike = plan_of(joined(points(N, 0, False, kind), points(M, 1, False, kind)))
    assert alike.decision in (OLD, BOTH)
    assert len(alike.table) == 4  # no weights are tried where a test finds no difference


def test_texts_are_judged_in_bits() -> None:
    share = plan_of(joined(Texts(400, 0, 1), Texts(150, 1, 2)))
    assert "bits a token" in share.sentence
    assert share.decision != OLD
    assert share.table[1]["gain"] > 0.3
    assert "judged by an n-gram model on other rows" in share.sentence
    assert {line["proxy"] for line in share.table} == {"n-gram model"}


@pytest.mark.parametrize(("columns", "proxy"), [(1, "boosted trees"), (5, "a head on features")])
def test_the_sentence_names_the_proxy(columns: int, proxy: str) -> None:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True).expand(-1, columns)
    share = plan_of(joined(TensorDataset(x[:180], -y[:180]), TensorDataset(x[180:], y[180:])))
    assert f"judged by {proxy} on other rows of the target" in share.sentence
    assert {line["proxy"] for line in share.table} == {proxy.removeprefix("a ")}


class Blurred(Dataset[Any]):
    """Images with a random ``transform``, as those of torchvision."""

    def __init__(self, rows: TensorDataset, transform: Any) -> None:
        self.rows, self.transform, self.labels = rows, transform, rows.tensors[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        x, y = self.rows[row]
        return self.transform(x), y


def test_random_transforms_of_old_rows_are_no_difference() -> None:
    both = joined(
        Blurred(points(N, 0, False, "images"), lambda x: x + 3 * torch.rand(1)),
        Blurred(points(M, 1, False, "images"), lambda x: x),
    )
    assert len(plan_of(both).table) == 4  # no weights are tried


def test_few_rows_and_unknown_targets_are_both_trained_on() -> None:
    few = plan_of(joined(points(N, 0, True, "images"), points(60, 1, False, "images")))
    assert few.decision == BOTH
    assert "cannot tell, the target has 60 rows, fewer than 100" in few.sentence
    old = plan_of(joined(points(10, 0, True, "images"), points(150, 1, False, "images")))
    assert "cannot tell, the training data have 10 rows, fewer than 12" in old.sentence
    unlabelled = [TensorDataset(points(n, n, False, "vectors").tensors[0]) for n in (N, M)]
    assert "no proxy knows such targets" in plan_of(joined(*unlabelled)).sentence
    series = tables(rows=20)
    assert plan_of(series).decision == BOTH


def test_a_forecast_that_would_cost_too_much_of_the_run_is_left_out() -> None:
    both = joined(points(N, 0, True, "images"), points(M, 1, False, "images"))
    policy = Aim()
    with pytest.warns(UserWarning, match="choosing by the target would take"):
        assert plan(policy, both, budget=1e3) is not None
    assert policy.drawn_by.unique().tolist() == [1.0]
    afterwards = Aim()
    plan(afterwards, both, budget=1e15)  # which can afford it
    assert afterwards.flops > 0
    assert len(afterwards.drawn_by.unique()) > 1


def test_a_decision_is_computed_once_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    both, calls = tables(), []
    monkeypatch.setattr(
        aim, "plan_of_tables", lambda *parts: calls.append(parts) or plans.plan_of_both(N, M, "-")
    )
    for seed in range(3):
        plan(Aim(seed=seed), both)
    assert len(calls) == 1
    assert [len(part) for part in calls[0]] == [N, M]


def test_auto_asks_aim_first(turned: Table) -> None:
    labels = torch.zeros(N + M).long()
    chosen = [plan(each, turned, seed=3, labels=labels) for each in (Auto(seed=3), Aim(seed=3))]
    assert torch.equal(chosen[0].index, chosen[1].index)


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 4).double()


def data() -> TensorDataset:
    parts = points(N, 0, True, "vectors"), points(M, 1, False, "vectors")
    whole: TensorDataset = joined(
        *(TensorDataset(p.tensors[0].double(), p.tensors[1]) for p in parts)
    )
    return whole


def run(epochs: int = 2) -> tuple[Tensor, Tensor]:
    trained = model()
    from torch import distributed

    if distributed.is_initialized():
        trained = nn.parallel.DistributedDataParallel(trained)
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    trainer = Trainer(
        trained, data(), policy=Aim(), epochs=epochs, optimizer=optimizer, batch_size=60
    )
    trainer.run()
    return flat(trainer.model), trainer.policy.drawn_by


def test_two_processes_carry_the_same_decision_out() -> None:
    weights, drawn_by = run()
    for other, drawn in in_world(2, run):
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
    old = frame(N, 0)
    report = compare(
        old,
        label="y",
        target=frame(M + 60, 1, -1.0),
        test=frame(100, 2, -1.0),
        policies="aim",
        seeds=2,
        epochs=4,
        lr=0.01,
        check_baseline=False,
        out=tmp_path,
    )
    lines = report.verdict.splitlines()
    assert lines[0].startswith("training on both: RMSE ")
    told = next(line for line in lines if line.startswith("forecast: train on "))
    assert report.decision["chosen"] in {line["decision"] for line in report.decision["table"]}
    assert f"{report.decision['sentence']}." == told
    trained = report.visits("aim", 0)["trained"].sum(0)
    assert int(trained[N:].sum()) > int(trained[:N].sum())
    assert next(v for v in report.verdicts if v.policy == "aim").better
    assert Comparison.load(tmp_path).decision == report.decision


def test_weights_of_joined_rows_are_those_that_are_drawn(
    turned: Table, alike: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch.equal(aim.weights(turned), plan_of(turned).weights)
    # as where the target's rows would harm
    monkeypatch.setitem(vars(plan_of(alike)), "weights", None)
    assert aim.weights(alike).tolist() == pytest.approx([(N + M) / N] * N + [0.0] * M)


def test_tables_as_validation_data_are_weighed_by_the_forecast() -> None:
    """One path: what a policy draws, `aim.weights` and `aim.expected_gain` say agree."""
    draw = np.random.default_rng(0)
    older = pd.concat([frame(N, 0, -1.0), frame(N, 1)], ignore_index=True)
    old = Table(older.assign(day=np.arange(2 * N) // 12), label="y")
    new = Table(frame(M, 2).assign(day=100 + draw.permutation(M) // 12), like=old)
    expected = aim.expected_gain(old, new)
    assert expected.power == 1
    assert expected.gain > 20
    policy = Aim()
    rows = torch.arange(2 * N)
    policy.plan(RunInfo(2 * N, rows[: N // 2], 0, 0, 0.0, data=old, validation=new))
    found = aim.weights(old, new)
    assert torch.equal(policy.drawn_by, found)
    assert policy.flops == 0
    assert float(found[:N].mean()) < 0.5
    alike = aim.expected_gain(old, Table(older.assign(day=np.arange(2 * N) // 12), like=old))
    assert "are like the target" in alike.reason
    few = Table(frame(20, 3).assign(day=100), like=old)
    assert "cannot tell, the target's rows are worth about 20" in aim.expected_gain(old, few).reason


@pytest.mark.parametrize(
    ("decision", "doubt", "said"),
    [
        (BOTH, True, "both are trained on"),
        (OLD, True, "old rows are trained on"),
    ],
)
def test_a_sentence_says_what_is_done_of_a_forecast(
    decision: Decision, doubt: bool, said: str, turned: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Forecast(decision, "forecast: so", pd.DataFrame(), (), False, 0.0, doubt=doubt)
    monkeypatch.setattr(plans, "forecast", lambda *_: told)
    plan = plans.plan_of_tables(*divide_joined(turned))
    assert plan.sentence == f"forecast: so: {said}"
    assert plan.decision == decision
