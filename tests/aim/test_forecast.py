"""What training on old rows, target rows, or both gains is foretold as fresh rows show it."""

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import signal
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_info, threadpool_limits
from torch.utils.data import DataLoader, TensorDataset

from astkit import Table, joined
from astkit.aim import forecast as forecasts
from astkit.aim import weights
from astkit.aim.decisions import (
    BOTH,
    FLAT,
    OLD,
    TARGET,
    WEIGHTED,
    WEIGHTED_BOTH,
    Decision,
    Judge,
    Judgement,
)
from astkit.aim.explain import explain
from astkit.aim.forecast import Forecast, carried_out, forecast, forecast_of
from astkit.aim.proxies import Trees, proxy_of
from tests import build
from tests.aim.pairs import sides
from tests.aim.tables import both_tables, points
from tests.datasets.transformed import Transformed, dimmed

N, M = 600, 240


def share_of(found: Forecast, rows: Any) -> float:
    """That of some rows in the draws."""
    assert found.weights is not None
    return float(found.weights[rows].sum() / found.weights.sum())


# --- tables -------------------------------------------------------------------------------------


def test_an_opposite_law_is_foretold_as_fresh_rows_measure_it() -> None:
    old, target = build.table(700, 0, law=-1.0), build.table(300, 1)
    found = forecast(old, target, "y", in_order=False)
    assert not found.in_order
    row = found.table.set_index("decision").loc["target"]
    frames = [old, target, build.table(4000, 2)]
    table = Table(old, "y")
    x = [Table(each, like=table).matrix(scaled=False) for each in frames]
    y = [each["y"].to_numpy() for each in frames]
    models = [HistGradientBoostingRegressor(max_iter=20).fit(x[n], y[n]) for n in (0, 1)]
    errors = [np.sqrt(((each.predict(x[2]) - y[2]) ** 2).mean()) for each in models]
    measured = 100 * (1 - errors[1] / errors[0])
    assert measured > 50
    assert row["low"] - 3 < measured < row["high"] + 3
    assert found.decision.times
    assert "% lower [" in found.sentence
    assert "judged by boosted trees on other rows of the target" in found.sentence
    assert set(found.table["proxy"]) == {"boosted trees"}


def test_alike_rows_promise_nothing() -> None:
    found = forecast(build.table(1500, 0), build.table(300, 1), "y", in_order=False)
    assert found.decision in (OLD, BOTH)
    assert found.table["decision"].tolist() == ["old", "both", "both x4", "target"]
    table = found.table.set_index("decision")
    assert (table.loc[["both", "both x4"], "low"] <= 1).all()
    assert table.loc["target", "high"] < 5  # few rows say less than many
    assert table["chosen"].sum() == 1


def test_in_doubt_the_decision_is_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "_doubted", lambda *_: True)
    found = forecast(build.table(500, 0, law=-1.0), build.table(300, 1), "y", in_order=False)
    assert "cannot tell, it depends on the model: trees say train on" in found.sentence
    assert ": train on both; " in found.sentence
    chosen = found.table["decision"][found.table["chosen"]].item()
    assert chosen != "both"  # by the trees
    assert found.decision == BOTH


def test_what_a_linear_model_denies_is_in_doubt() -> None:
    """To which a few rows of the target say less than many old ones of the same law."""
    (x, y), (z, w) = (build.numbers(n, 20, seed=n, noise=1.0).tensors for n in (500, 40))
    both = sides(x, z, y, w)
    trees = proxy_of(both)
    assert isinstance(trees, Trees)
    judge = Judge(both, trees, None)
    for gain, error, doubted in ((5, 1, True), (-5, 1, False), (5, 9, False)):
        chosen = Judgement(TARGET, np.zeros(40), gain, error)
        assert forecasts._doubted(chosen, judge, trees) == doubted


@pytest.mark.parametrize("rows", [5, 20])
def test_few_rows_are_a_sentence_and_both(rows: int) -> None:
    found = forecast(build.table(500, 0), build.table(rows, 1), "y", in_order=False)
    assert found.decision == BOTH
    assert f"worth about {rows} independent ones, fewer than 30: train on both" in found.sentence
    assert not found.in_order
    assert found.table.empty


def test_a_target_without_labels_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"the target has no 'y'.*astkit\.explain"):
        forecast(build.table(200, 0), build.table(200, 1).drop(columns="y"), "y")


def test_a_forecast_reads_tables_as_it_is_told() -> None:
    owners = np.arange(200) // 2
    old = build.table(200, 0, law=-1.0).assign(owner=owners)
    target = build.table(90, 1).assign(owner=owners[:90])
    said = forecast(old, target, "y", drop=["noise"], task="regression", groups="owner")
    table = Table(old, "y", drop=["noise"], groups="owner")
    pd.testing.assert_frame_equal(said.table, forecast(table, Table(target, like=table)).table)
    assert len(said.lines) >= 4
    with pytest.raises(ValueError, match="label is missing: name the column to be predicted"):
        forecast(old, target)
    with pytest.raises(ValueError, match=r"drop is \['noise'\], which is of files and DataFrames"):
        forecast(table, target, drop=["noise"])


@pytest.mark.parametrize(
    ("unit", "proxy"),
    [("% of the RMSE", "a head on features"), ("points", "a head on features")],
)
def test_a_terminal_shows_intervals(unit: str, proxy: str) -> None:
    line = {"decision": "weighted both", "gain": -123.45, "low": -234.56, "high": -99.99}
    lines = [{**line, "unit": unit, "proxy": proxy, "chosen": False}]
    shown = Forecast(OLD, "", lines=lines).table.to_string()
    assert max(map(len, shown.splitlines())) <= 80


def test_a_forecast_is_kept_as_json() -> None:
    found = forecast(build.table(200, 0, law=-1.0), build.table(60, 1), "y", in_order=False)
    again = Forecast.from_json(found.to_json())
    assert again == found
    assert again.weights is None
    assert str(again) == str(found)
    assert str(found).startswith(f"{found.sentence}\n")


# --- in the order of time -----------------------------------------------------------------------


@pytest.mark.parametrize("dates", [1, 3])
def test_no_later_rows_are_foretold_from_a_few_dates(dates: int) -> None:
    old, target = build.table(500, 0), build.table(200, 1, law=-1.0)
    old["year"], target["year"] = 1990, 1999 + np.arange(200) % dates
    found = forecast(old, target, "y", date="year")
    assert found.decision == BOTH
    assert f"has {dates} date{'s' * (dates > 1)} in 'year', and 4 are needed" in found.sentence


def test_a_date_orders_the_rows_wherever_they_stand() -> None:
    old, target = build.table(500, 0), build.table(300, 1, law=-1.0)
    old["day"], target["day"] = np.arange(500) // 10, 50 + np.arange(300) // 10
    whole = forecast(old, target, "y", date="day")
    assert whole.in_order
    assert "on later rows of the target" in whole.sentence
    mixed = target.sample(frac=1, random_state=0)
    again = forecast(old, mixed, "y", date="day")
    gains = [each.table.set_index("decision")["gain"] for each in (whole, again)]
    assert (gains[0] - gains[1]).abs().drop(["weighted old", "weighted both"]).max() < 0.5
    for options, said in (
        ({"date": "month"}, "date is 'month', which is no column with values of the old"),
        ({"date": "day", "in_order": False}, "date is 'day' and in_order is False: leave"),
    ):
        with pytest.raises(ValueError, match=said):
            forecast(old, target, "y", **options)
    with pytest.raises(ValueError, match="the data have no columns: give in_order=True"):
        forecast(build.numbers(), build.numbers(), date="day")


def test_a_table_says_how_its_rows_are_ordered() -> None:
    old, target = build.table(200, 0), build.table(120, 1, law=-1.0)
    old["day"], target["day"] = np.arange(200) // 10, 20 + np.arange(120) // 10
    table = Table(old, "y")
    later = Table(target, like=table)
    given = forecast(table, later, date="day")
    later.date = "day"
    pd.testing.assert_frame_equal(forecast(table, later).table, given.table)
    assert not forecast(table, later, in_order=False).in_order
    later.date, later.in_order = None, True
    assert forecast(table, later).in_order


def test_dependent_rows_are_judged_forward_and_the_sentence_says_so() -> None:
    level = np.repeat(np.random.default_rng(0).normal(size=150), 4)
    target = build.table(600, 1)
    target["y"] = target["y"] + 2 * level
    found = forecast(build.table(700, 0), target, "y")
    assert found.in_order
    assert "; rows seem to be in an order (in_order=False if not); " in found.sentence


# --- other data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "proxy"), [("images", "a head on features"), ("vectors", "boosted trees")]
)
def test_arrays_are_judged_as_tables_are(kind: str, proxy: str) -> None:
    found = forecast(points(N, 0, True, kind), points(M, 1, False, kind))
    assert (found.flops > 0) == (kind == "images")  # trees are timed
    assert share_of(found, slice(N)) < 0.5
    assert f"judged by {proxy} on other rows of the target" in found.sentence
    alike = forecast(points(N, 0, False, kind), points(M, 1, False, kind))
    assert alike.decision in (OLD, BOTH)
    assert len(alike.lines) == 4  # no weights are tried where a test finds no difference


def test_tokens_are_judged_in_bits() -> None:
    parts = []
    for rows, step in ((400, 1), (150, 2)):  # two languages
        first = torch.randint(0, 7, (rows, 1), generator=torch.Generator().manual_seed(rows))
        tokens = (first + step * torch.arange(13)) % 7
        tokens[:, 6] = torch.arange(rows) % 7  # else few rows would differ
        parts.append(TensorDataset(tokens[:, :-1], tokens[:, 1:]))
    found = forecast(*parts, in_order=False)
    assert "bits a token less" in found.sentence
    assert found.decision != OLD
    assert found.lines[1]["gain"] > 0.3


def test_random_transforms_are_no_difference() -> None:
    target = Transformed(build.images(M, seed=1))
    for name, said in (
        ("transform", "train on the old rows: they are like the target (AUC 0."),
        ("own", "train on the old rows: random transforms change the rows of either side"),
    ):
        old = Transformed(build.images(N), dimmed, name)
        found = forecast(old, target, train_on_target=False)
        assert said in found.sentence
        assert found.weights is None
        old.targets = 1 * (torch.arange(N) % 8 == 0)  # classes are counted all the same
        found = forecast(old, target, train_on_target=False)
        assert found.lines[1]["unit"] == "points"
        assert len(forecast(Transformed(build.images(N), dimmed, name), target).lines) == 4


def test_few_old_rows_and_the_target_are_both_trained_on() -> None:
    old = forecast(points(10, 0, True, "images"), points(150, 1, False, "images"))
    assert (old.decision, old.weights is None) == (BOTH, False)
    assert "cannot tell, there are 10 old rows, fewer than 12" in old.sentence


def test_without_targets_weights_follow_the_inputs() -> None:
    x = build.numbers(N).tensors[0]
    target = TensorDataset(build.numbers(M, seed=1).tensors[0] + torch.eye(4)[0])
    found = forecast(TensorDataset(x), target, train_on_target=False)
    assert found.decision == WEIGHTED
    assert "no gain can be foretold, since rows have no targets: weights assume" in found.sentence
    assert found.weights is not None
    assert float(found.weights[x[:, 0] > 1].mean()) > 2 * float(found.weights[x[:, 0] < 0].mean())
    for old in (TensorDataset(x), TensorDataset(x, x)):  # and no target
        assert "no proxy knows such targets" in forecast(old, target).sentence


def test_estimators_of_a_table_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other work, several that wait for each other took 50 times as long."""
    seen: list[int] = []
    judged = forecasts.proxy_of
    monkeypatch.setattr(
        forecasts,
        "proxy_of",
        lambda both: seen.extend(each["num_threads"] for each in threadpool_info()) or judged(both),
    )
    with threadpool_limits(2):
        forecast(build.numbers(60), build.numbers(60, seed=1))
        assert {each["num_threads"] for each in threadpool_info()} == {2}
    assert len(seen) > 1
    assert set(seen) == {1}


# --- one path for all ---------------------------------------------------------------------------


@pytest.mark.parametrize("train_on_target", [True, False])
def test_the_same_numbers_give_the_same_weights_to_the_bit(train_on_target: bool) -> None:
    """As a DataFrame, as a `Table` and as a TensorDataset; half of the old rows err."""
    parts = [build.numbers(n, seed=n, flipped=wrong) for n, wrong in ((700, 0.5), (240, 0.0))]
    frames = [
        pd.DataFrame(torch.hstack(part.tensors).numpy(), columns=[*"abcdy"]) for part in parts
    ]
    first = Table(frames[0], "y")
    tables = [first, Table(frames[1], like=first)]
    options: dict[str, Any] = {"train_on_target": train_on_target}
    found = forecast(*frames, "y", **options)
    assert found.weights is not None
    assert found.weights.std() > 0
    for others in (tables, parts):
        again = forecast(*others, **options)
        assert (again.decision, again.lines) == (found.decision, found.lines)
        assert again.weights is not None
        assert torch.equal(again.weights, found.weights)


def mixture(seed: int, moved: float) -> tuple[TensorDataset, TensorDataset]:
    """Old rows of which three quarters follow the opposite law, with inputs ``moved``."""
    random = torch.Generator().manual_seed(seed)
    x, order = torch.randn(4400, 5, generator=random), torch.randperm(4000, generator=random)
    x[:3000] += moved
    y = (x @ torch.linspace(1, 2, 5))[:, None] + 0.5 * torch.randn(4400, 1, generator=random)
    y[:3000] *= -1
    return TensorDataset(x[order], y[order]), TensorDataset(x[4000:], y[4000:])


@pytest.mark.parametrize("moved", [1.0, 0.0])
@pytest.mark.parametrize("draws", [2, pytest.param(20, marks=pytest.mark.full)])
def test_old_rows_are_weighed_where_most_follow_the_opposite_law(draws: int, moved: float) -> None:
    found = [forecast(*mixture(n, moved), train_on_target=False) for n in range(draws)]
    assert sum(each.decision.weighted for each in found) >= draws - draws // 20


KINDS = {
    "equal labels": lambda y, noise: y,
    "labels that differ a little": lambda y, noise: y + 0.2 * noise,
    "classes": lambda y, noise: np.where(y > 0, "good", "bad"),
}


def repeated(rows: int, times: int, kind: str, seed: int) -> pd.DataFrame:
    """Noise, of which each row comes so many ``times``, in random order."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.normal(size=(rows, 4)), columns=[*"abcy"])
    frame = pd.concat([frame] * times).sample(frac=1, random_state=2)
    return frame.assign(y=KINDS[kind](frame["y"], draw.normal(size=len(frame))))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_foretold_of_noise_whose_rows_are_repeated(kind: str) -> None:
    """Copies of judged rows among the fitted ones would be recognised."""
    found = forecast(repeated(1200, 1, kind, 0), repeated(150, 3, kind, 1), "y")
    assert found.decision in (OLD, BOTH)
    assert " higher [" not in found.sentence
    assert " lower [" not in found.sentence
    assert "; 450 rows have 150 different inputs; " in found.sentence


def test_a_table_of_few_different_inputs_keeps_its_answer() -> None:
    """Of 18, which old rows have too: they are no copies."""
    frames, draw = [], np.random.default_rng(5)
    for rows, law in ((900, -1.0), (240, 1.0)):
        words = [draw.integers(0, size, rows) for size in (3, 3, 2)]
        y = law * (words[0] - 1.5 * words[1]) + 0.3 * draw.normal(size=rows)
        columns = {name: np.array([*"uvw"])[each] for name, each in zip("abc", words, strict=True)}
        frames.append(pd.DataFrame(columns).assign(y=y))
    found = forecast(*frames, "y")
    assert found.decision == TARGET
    assert "different inputs" not in found.sentence
    measured = 100 * (1 - 0.3 / np.sqrt(0.3**2 + 4 * (2 / 3 + 1.5**2 * 2 / 3)))
    assert found.lines[3]["gain"] == pytest.approx(measured, abs=3)


def test_what_reading_leaves_out_is_told() -> None:
    """Rows of new classes and without label, and copies of the label."""
    draw, frames = np.random.default_rng(0), []
    for rows, names in ((400, "xy"), (200, "xyz")):
        kind = pd.Series(draw.choice([*names], rows))
        frames.append(pd.DataFrame({"a": draw.normal(size=rows), "copy": kind, "kind": kind}))
    frames[1].loc[:9, "kind"] = None
    new = int((frames[1]["kind"] == "z").sum())
    expected = [
        "columns that hold the label 'kind', left out: copy",
        "target: 10 rows without 'kind': left out",
        f"target: classes that no training row has, left out with {new} of 200 rows: 'z'",
    ]
    found, explained = forecast(*frames, "kind"), explain(*frames, "kind")
    assert found.sentence.endswith("; reading left out rows or columns, see notes")
    for each in (found, explained):
        assert list(each.notes) == expected
        assert all(f"\n- {note}" in str(each) for note in expected)


# --- how often each row is drawn ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "drawn"),
    [
        (BOTH, [1, 1, 1, 1, 1]),
        (Decision(times=4), [1, 1, 1, 4, 4]),
        (TARGET, [0, 0, 0, 1, 1]),
        (WEIGHTED, [1, 4, 7, 0, 0]),
        (FLAT, [1, 2, 7**0.5, 0, 0]),
        (WEIGHTED_BOTH, [0.25, 1, 1.75, 1, 1]),
    ],
)
def test_rows_are_drawn_as_decisions_say(decision: Decision, drawn: list[float]) -> None:
    both = sides(torch.zeros(3, 2), torch.zeros(2, 2))
    ratio = torch.tensor([1.0, 4.0, 7.0], dtype=torch.float64)
    weights_of = lambda of_target, rows: ratio[rows]  # noqa: E731
    found = carried_out(both, decision, "so", True, weights_of).weights
    assert found is not None
    assert found.tolist() == pytest.approx((np.array(drawn) / np.mean(drawn)).tolist())
    assert carried_out(both, OLD, "so", True).weights is None
    only_old = carried_out(both, WEIGHTED, "so", False, weights_of).weights
    assert only_old is not None
    assert only_old.tolist() == [0.25, 1, 1.75]


def test_weights_of_joined_rows_are_those_that_are_drawn() -> None:
    turned = both_tables(N, M, law=-1.0)
    assert torch.equal(weights(turned), forecast_of(turned).weights)
    assert share_of(forecast_of(turned), slice(N)) < 0.4
    alike = both_tables(N, M, law=1.0)
    assert forecast_of(alike).decision in (OLD, BOTH)
    (known,) = forecasts._known[alike][alike].items()
    # as where the target's rows would harm
    forecasts._known[alike][alike][known[0]] = replace(known[1], weights=None)
    assert weights(alike).tolist() == pytest.approx([(N + M) / N] * N + [0.0] * M)


def test_rows_of_another_law_are_left_out_and_a_date_hides_nothing() -> None:
    """After all those of the old rows, it would leave no row that is like the target."""
    (x, y), (z, w) = build.numbers(900, flipped=0.6).tensors, build.numbers(M, seed=1).tensors
    told = forecast(TensorDataset(x, y), TensorDataset(z, w), train_on_target=False)
    assert told.decision == WEIGHTED
    line = told.lines[1]
    assert line["gain"] > 40
    assert line["low"] > 0.6 * line["gain"]
    found = told.weights
    assert found is not None
    assert found.mean() == pytest.approx(1)
    assert share_of(told, slice(540, None)) > 0.6  # of 0.4 in the data
    assert float(found.min()) > 0
    random = torch.Generator().manual_seed(0)
    dates = torch.cat([torch.randperm(900, generator=random), 900 + torch.arange(M)])
    dates = dates[:, None].float()
    old = TensorDataset(torch.hstack([x[:, :2], dates[:900], x[:, 2:]]), y)
    target = TensorDataset(torch.hstack([z[:, :2], dates[900:], z[:, 2:]]), w)
    dated = forecast(old, target, train_on_target=False)
    assert dated.weights is not None
    assert torch.equal(dated.weights, found)


@pytest.mark.parametrize("targets", [True, False])
def test_where_no_row_is_like_the_target_all_are_trained_on(targets: bool) -> None:
    (x, y), (z, w) = build.numbers(900).tensors, build.numbers(M, seed=1).tensors
    more = ((y,), (w,)) if targets else ((), ())
    wide = torch.randn(900 + M, 1)  # which tells nothing: a column has to be left
    old = TensorDataset(torch.hstack([x + 0 * wide[:900], wide[:900]]), *more[0])
    target = TensorDataset(torch.hstack([z + 20, wide[900:]]), *more[1])
    found = forecast(old, target, train_on_target=False)
    assert found.weights is None or float(found.weights.std()) < 0.5
    assert "train on the old rows" in found.sentence


def test_a_long_tail_is_drawn_in_the_shares_of_a_balanced_target() -> None:
    tail = classes([760, 100, 40], 0)
    found = weights(tail, classes([200] * 3, 1))
    of_class = found.new_zeros(3).index_add(0, tail.tensors[1], found) / found.sum()
    assert of_class.tolist() == pytest.approx([1 / 3] * 3)
    assert len(found.unique()) == 3  # no more is found than the classes
    rare = classes([760, 100, 40, 10], 0)  # one class without a row in the target is drawn as well
    found, y = weights(rare, classes([200] * 3, 1)), rare.tensors[1]
    ratios = [float(found[y == each].mean()) for each in (3, 2)]
    assert ratios[0] / ratios[1] == pytest.approx((0.5 / 10) / (200 / 40))


def classes(counts: list[int], seed: int) -> TensorDataset:
    """Rows of overlapping classes, at places of their own."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=random)]
    return TensorDataset(0.6 * y[:, None] + torch.randn(len(y), 3, generator=random), y)


# --- rows that depend on each other --------------------------------------------------------------


def people(count: int, seed: int) -> TensorDataset:
    """Forty rows of each person, whose inputs and targets are alike."""
    random = torch.Generator().manual_seed(seed)
    own = torch.randn(count, 1, 5, generator=random)
    offset = 2 * torch.randn(count, 1, generator=random)
    x = own + 0.5 * torch.randn(count, 40, 5, generator=random)
    y = x.sum(2) + offset + 0.3 * torch.randn(count, 40, generator=random)
    return TensorDataset(x.flatten(0, 1), y.flatten()[:, None])


def test_other_people_are_no_shift_where_it_is_said_whose_rows_they_are() -> None:
    old, target = people(60, 2), people(40, 3)
    random = np.random.default_rng(0)
    of_old, of_target = (random.permutation(40 * count) for count in (60, 40))
    old = TensorDataset(*old[of_old])  # rows of a person are no neighbours
    target = TensorDataset(*target[of_target])
    options: dict[str, Any] = {"train_on_target": False}
    assert forecast(old, target, **options).lines  # a difference is found
    old.groups = [f"person {row // 40}" for row in of_old]  # type: ignore[attr-defined]
    target.groups = of_target // 40  # type: ignore[attr-defined]
    assert "are like the target" in forecast(old, target, **options).sentence
    target.groups = torch.arange(3)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="groups of the target has 3 entries for 1600 rows"):
        forecast(old, target, **options)


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
        old, target = stationary(kind, seed)
        found = forecast(old, target, train_on_target=False, seed=seed)
        assert found.weights is None
        assert found.in_order
        assert "rows seem to be in an order" in found.sentence


def test_a_shift_is_found_in_blocks_of_a_long_recording() -> None:
    random = np.random.default_rng(0)
    slow = signal.lfilter([1], [1, -0.7], random.normal(size=(5300, 3)), axis=0)[300:]
    x = torch.from_numpy(slow).float()
    y = x.sum(1, keepdim=True)
    y[:2500] *= -1
    old, target = TensorDataset(x[:4000], y[:4000]), TensorDataset(x[4000:], y[4000:])
    found = forecast(old, target, train_on_target=False)
    assert found.in_order
    assert found.decision == WEIGHTED
    assert share_of(found, slice(2500)) < 0.3  # of 0.6 in the data


# --- what it costs ------------------------------------------------------------------------------


def test_a_forecast_is_made_once_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def told(both: Any, *rest: Any, **more: Any) -> Forecast:
        asked.append((len(both.old), len(both.target)))
        return Forecast(BOTH, "forecast: so", torch.ones(N + M), flops=7.0)

    monkeypatch.setattr(forecasts, "foretell", told)
    both = joined(points(N, 0, True, "images"), points(M, 1, False, "images"))
    assert len({id(forecast_of(each)) for each in (both, both, DataLoader(both))}) == 1
    forecast_of(both, points(M, 2, False, "images"))
    forecast_of(both, classes=True)  # each of other data, or read in another way
    assert asked == [(N, M), (N + M, M), (N, M)]


def test_one_that_takes_too_much_of_a_run_is_left_out_and_another_run_may_afford_it() -> None:
    """Before estimators are fitted where their price is known, else after that of the test."""
    both = joined(points(N, 0, True, "images"), points(M, 1, False, "images"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = forecast_of(both)
        dear = forecast_of(both, most=1e3)  # its caller says it
    assert re.search("cannot tell, it would take .* too large a share of the", dear.sentence)
    assert dear.decision == BOTH
    assert dear.weights is not None
    assert dear.weights.unique().tolist() == [1.0]
    assert "(give a larger budget, or weigh rows once by aim.weights): train on both" in (
        dear.sentence
    )
    assert forecast_of(both, most=whole.flops) is whole
    old, target = points(N, 0, True, "images"), points(M, 1, False, "images")
    kept = forecast_of(old, target, most=1e3)
    assert kept.sentence.endswith(": train on the old rows")
    assert kept.weights is None


def test_no_more_is_spent_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing where the least price is too dear; where none is known, that of a test."""
    words = torch.randint(0, 500, (840, 12), generator=torch.Generator().manual_seed(0))
    both = sides(words[:N], words[N:])
    least = forecasts.FITS * forecasts.least_fit(both)
    with pytest.raises(forecasts.TooCostlyError, match=r"it would take .* FLOPs, too large a"):
        forecasts.foretell(both, True, 0.99 * least)
    assert both.flops == 0
    monkeypatch.setattr(forecasts, "least_fit", lambda both: 0.0)
    with pytest.raises(forecasts.TooCostlyError):
        forecasts.foretell(both, True, least / 10)
    assert 0 < both.flops < least / 10
