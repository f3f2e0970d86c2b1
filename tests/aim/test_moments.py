"""Earlier moments: which rows they have, what they say, and that nothing later is known at them."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import TensorDataset

from astkit import Table
from astkit.aim import moments as module
from astkit.aim.decisions import BOTH, OLD, PLAIN, TARGET, WEIGHTED, Decision
from astkit.aim.forecast import Forecast, forecast
from astkit.aim.moments import Moment, NoMomentsError, Past, judged, moments_of
from astkit.aim.proxies import RMSE, Trees, proxy_of
from astkit.aim.rows import Rows
from astkit.aim.sides import sides_of
from tests import build

X4 = Decision(times=4)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six moments, for speed."""
    monkeypatch.setattr(module, "MOST", 6)


def history(count: int, law: Callable[[Any], Any], seed: int = 0, start: int = 0) -> pd.DataFrame:
    """Ten rows a day, whose law is that of the day."""
    day = start + np.arange(count) // 10
    made = build.table(count, seed, day=day)
    return made.assign(y=law(day) * made["size"] + 0.1 * made["noise"])


# --- which rows ----------------------------------------------------------------------------------


@given(
    days=st.integers(40, 400),
    several=st.integers(1, 20),
    target=st.integers(1, 30),
    gap=st.integers(0, 20),
    horizon=st.none() | st.integers(1, 40),
    order=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_parts_follow_each_other(
    days: int, several: int, target: int, gap: int, horizon: int | None, order: int
) -> None:
    random = np.random.default_rng(order)
    old = random.permutation(np.repeat(np.arange(days), several)).astype(float)
    new = days + gap + np.repeat(np.arange(target), 3).astype(float)
    try:
        found, worth = moments_of(old, new, horizon, None, 12, 0)
    except NoMomentsError:
        return
    assert len(found) <= 12
    assert worth <= len(found)
    for _, before, at, after in found:
        assert len(before) >= 100
        assert min(len(at), len(after)) >= 30
        assert old[before].max() <= old[at].min() - gap - 1  # as today
        assert old[at].max() < old[after].min() - 1  # a day between
        assert len(np.unique(old[at])) <= target
        assert len(at) <= 3 * target  # as many a day as the target has
    starts = [each.start for each in found]
    assert starts == sorted(starts)
    if worth == len(found):
        rows = np.concatenate([each.later for each in found])
        assert len(np.unique(rows)) == len(rows)


def test_later_rows_share_no_date_where_six_fit() -> None:
    """Of 200 days the first hundred are before all moments, and the last two after all."""
    old, new = np.repeat(np.arange(200.0), 20), 200 + np.repeat([0.0, 1.0], 60)
    found, worth = moments_of(old, new, None, None, 12, 0)
    assert worth == len(found) == 12
    assert found[0].start >= 100
    assert found[-1].later.max() == 3999
    assert {len(each.later) for each in found} == {40}
    overlapping, worth = moments_of(old, new, 40, None, 12, 0)
    assert len(overlapping) == 12
    assert worth == pytest.approx(
        97 / 40
    )  # from the hundredth day, two recent ones and one between


def test_a_group_is_not_in_recent_and_later_rows() -> None:
    old, new = np.repeat(np.arange(200.0), 10), 200 + np.repeat(np.arange(4.0), 30)
    groups = np.random.default_rng(0).integers(400, size=2000)
    found, _ = moments_of(old, new, 10, groups, 12, 0)
    for each in found:
        assert not np.isin(groups[each.later], groups[each.recent]).any()
    with pytest.raises(NoMomentsError, match="fewer than 100 rows before, or 30 at or after each"):
        moments_of(old, new, 10, np.zeros(2000), 12, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"old": 0.0}, "the old rows have one date"),
        ({"new": -50.0}, "dates of the target lie among those of the old rows"),
        ({"times": 30.0}, "the old rows last too short a time"),
        ({"horizon": 900}, "the old rows last too short a time"),
        ({"horizon": -1}, "the test rows do not lie after the target's"),
        ({"every": 40}, "fewer than 100 rows before, or 30 at or after each in time"),
    ],
)
def test_why_there_are_none(change: dict[str, float], reason: str) -> None:
    old = np.repeat(np.arange(200.0), 10)[:: int(change.get("every", 1))] * change.get("old", 1.0)
    new = 200 + change.get("new", 0.0) + np.arange(4.0) * change.get("times", 1.0)
    with pytest.raises(NoMomentsError, match=reason):
        moments_of(old, new, change.get("horizon"), None, 12, 0)


# --- what they say -------------------------------------------------------------------------------


def past_of_gains(worth: float, **gains: list[float]) -> Past:
    """Moments at which decisions gained so much over old."""
    both = gains["both"]
    named = {"old": [0.0] * len(both), "both x4": both, "target": both, **gains}
    lines = [
        {"start": start, "rows": 40, "old_over_recent": 9.0, "decision": name, "gain": gain}
        | {"over_both": gain - both[start]}
        for start in range(len(both))
        for name, each in named.items()
        for gain in [each[start]]
    ]
    return Past(lines, worth, len(both))


def test_the_interval_is_that_of_one_more_moment() -> None:
    gains = [3.0, -1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    line = past_of_gains(8, both=gains).line(BOTH)
    n, mean, deviation = 8, np.mean(gains), np.std(gains, ddof=1)
    low, high = stats.t.interval(0.95, n - 1, mean, deviation * (1 + 1 / n) ** 0.5)
    assert line["won"] == "7 of 8"
    assert [line[name] for name in ("past", "past_low", "past_high")] == pytest.approx(
        [mean, low, high], abs=0.006
    )
    apart = past_of_gains(3.4, both=gains).line(BOTH)  # overlapping ones are worth fewer
    assert apart["past_high"] - apart["past"] > 1.6 * (line["past_high"] - line["past"])
    assert past_of_gains(2.9, both=gains).line(BOTH)["past_low"] is None
    assert past_of_gains(2.9, both=gains).line(BOTH)["won"] == "7 of 8"
    for decision in (OLD, WEIGHTED):
        assert set(past_of_gains(8, both=gains).line(decision).values()) == {None}


def test_the_later_half_counts_where_it_differs() -> None:
    past = past_of_gains(12, both=[20.0, 21, 22, 23, 24, 25, -1, 2, 1, 3, 2, 1])
    line = past.line(BOTH)
    assert line["won"] == "5 of 6"
    assert line["past"] == pytest.approx(8 / 6, abs=0.01)
    assert "5 of 6, which differs from the first half: this half counts" in past.notes()[-1]
    assert past.sentence(BOTH, RMSE) == (
        "better than the old rows at 5 of the 6 latest moments, by 2 % in the middle"
    )
    assert "counts" not in past_of_gains(12, both=[1.0] * 12).notes()[-1]


@pytest.mark.parametrize(
    ("gains", "worth", "better"),
    [
        ({"target": [9.0] * 12}, 12, TARGET),
        ({"both x4": [9.0] * 12, "target": [12.0] * 12}, 12, TARGET),  # the larger one
        ({"target": [9.0] * 11 + [1.0]}, 12, TARGET),
        ({"target": [9.0] * 9 + [1.0] * 3}, 12, None),  # 9 of 12: p = 0.07
        ({"target": [9.0] * 12}, 3.4, None),  # three wins of three
        ({}, 12, None),
    ],
)
def test_another_decision_than_both_takes_a_sign_test(
    gains: dict[str, list[float]], worth: float, better: Decision | None
) -> None:
    past = past_of_gains(worth, both=[5.0, 4.0, 6.0] * 4, **gains)
    assert past.better_than_both(PLAIN) == better
    assert past.better_than_both([BOTH]) is None  # the folds exclude the others
    if better is not None:
        assert "better than both at 1" in past.sentence(better, RMSE, "over_both")


@pytest.mark.parametrize(
    ("gains", "decision", "words"),
    [
        ([5.0, -1.0, 9.0], BOTH, "better than the old rows at 2 of 3 earlier moments, by 5 %"),
        ([-5.0, -1.0, 9.0], BOTH, "at 1 of 3 earlier moments, worse by 1 %"),
        ([-5.0, -1.0, -9.0], BOTH, "never so before, at 3 earlier moments"),
        ([5.0, -1.0, 9.0], WEIGHTED, "both was better than the old rows at 2 of 3"),
        ([5.0, -1.0, 9.0], OLD, "both was better than the old rows at 2 of 3"),
    ],
)
def test_sentences(gains: list[float], decision: Decision, words: str) -> None:
    assert words in past_of_gains(3, both=gains).sentence(decision, RMSE)


# --- nothing later is known ----------------------------------------------------------------------


@pytest.mark.parametrize("words", [3, 60])
def test_fits_know_nothing_of_later_rows(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    names = np.array([f"w{each}x" for each in range(words)], object)
    frame = history(900, lambda day: 1.0).assign(word=random.choice(names, 900))
    frame.loc[random.random(900) < 0.1, "size"] = np.nan
    later = np.arange(700, 900)
    moment = Moment(0, np.arange(500), np.arange(520, 650), later)
    fits: list[tuple[Any, ...]] = []

    def seen(frame: pd.DataFrame) -> list[dict[str, Any]]:
        fits.append(())
        table = Table(frame, "y", keep=["word"])
        both = sides_of(table, table)
        both.find_units(False)
        proxy = proxy_of(both)
        assert isinstance(proxy, Trees)
        return judged(Rows(table), table.values.double().numpy()[:, None], moment, proxy)

    predict = Trees.predict

    def spied(self: Trees, x: Any, y: Any, weights: Any, others: Any) -> Any:
        fits[-1] += (x.tobytes(), y.tobytes(), weights.tobytes())
        return predict(self, x, y, weights, others)

    monkeypatch.setattr(Trees, "predict", spied)
    first = seen(frame)
    turned = frame.copy()
    for name in ("y", "size", "noise"):
        turned.loc[later, name] = 50 * random.permutation(frame[name][later])
    turned.loc[later, "word"] = "new"
    second = seen(turned)
    assert len(fits[0]) == 3 * len(PLAIN)
    assert fits[0] == fits[1]
    assert first != second  # which were judged


def test_each_row_stands_for_those_that_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "THINNED", 100)
    table = Table(history(900, lambda day: 1.0), "y")
    both = sides_of(table, table)
    both.find_units(False)
    proxy = proxy_of(both)
    assert isinstance(proxy, Trees)
    weighed: list[Any] = []
    monkeypatch.setattr(
        proxy,
        "losses_of",
        lambda x, y, weights, rows: weighed.append(weights) or np.ones(len(rows)),
    )
    judged(Rows(table), np.zeros((900, 1)), Moment(0, *np.split(np.arange(900), [500, 700])), proxy)
    sums = [(each[:100].sum(), each[100:300].sum(), each[300:].sum()) for each in weighed]
    assert np.allclose(sums, [(500, 0, 0), (500, 200, 0), (500, 800, 0), (0, 200, 0)])


# --- of a forecast -------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_a_history_of_new_laws_is_told() -> None:
    """Each thirty days have the opposite law: rows before it are of no use, as the folds know."""
    old = history(3000, lambda day: 1 - 2 * (day // 30 % 2))
    target = history(120, lambda day: 1.0, seed=1, start=300)
    found = forecast(old, target, "y", date="day", horizon=12)
    assert found.moments is not None
    assert list(found.moments) == [
        *("start", "rows", "old_over_recent", "decision", "gain", "over_both"),
    ]
    table = found.table.set_index("decision")
    assert table.loc["target", "won"].endswith("of 6")
    assert "on the target's own folds, and " in found.sentence
    assert len([word for word in found.sentence.split() if word.isalpha()]) <= 30
    again = Forecast.from_json(json.loads(json.dumps(found.to_json())))
    pd.testing.assert_frame_equal(again.moments, found.moments)
    assert found.plot().axes[0].get_ylabel() == "gain over old, % RMSE"


@pytest.mark.usefixtures("few")
def test_places_and_dates_tell_the_same() -> None:
    """Numbers in order, as arrays and as a table of one row a day."""
    frame = history(1200, lambda day: 1.0)[["size", "noise", "y"]]
    old, target = frame[:1100], frame[1100:]
    arrays = [
        TensorDataset(
            *(torch.tensor(part[n].to_numpy(np.float32)) for n in (["size", "noise"], "y"))
        )
        for part in (old, target)
    ]
    told = [
        forecast(old, target, "y", in_order=True).moments,
        forecast(*arrays, in_order=True).moments,
    ]
    assert told[0] is not None
    pd.testing.assert_frame_equal(*told, atol=1e-3)
    assert forecast(*arrays, in_order=False).moments is None


@pytest.mark.usefixtures("few")
def test_columns_and_rows_that_the_target_lacks_say_nothing() -> None:
    """A column without a value in the target is none at moments, undated rows are fitted."""
    old, target = (
        history(n, lambda day: 1.0, seed, start) for n, seed, start in ((1500, 0, 0), (160, 1, 150))
    )
    without = forecast(old.drop(columns="size"), target.drop(columns="size"), "y", date="day")
    lacking = forecast(old, target.drop(columns="size"), "y", date="day")
    pd.testing.assert_frame_equal(lacking.moments, without.moments)
    turned = target.assign(y=-target["y"])[:60].assign(day=np.nan)
    both = pd.concat([target, turned], ignore_index=True)
    found = forecast(old, both, "y", date="day")
    assert "60 target rows without 'day' are not judged" in found.sentence
    assert len(found.moments.groupby(["start", "decision"])) == len(found.moments)
    with pytest.raises(
        ValueError, match="date is 'day', which is no column with values of the old rows"
    ):
        forecast(old.drop(columns="day"), target, "y", date="day")
    with pytest.raises(ValueError, match="in_order is 'day': pass a bool"):
        forecast(old, target, "y", in_order="day")


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("turn", "decision", "than"), [(1e9, BOTH, "the old rows"), (20, TARGET, "both")]
)
def test_moments_judge_where_the_target_has_one_date(
    turn: float, decision: Decision, than: str
) -> None:
    """Its own rows cannot: 30 years, of a law that turns, and one more."""
    whole = build.table(6200, 0, year=1980 + np.arange(6200) // 200)
    angle = 2 * np.pi * whole["year"] / turn
    whole["y"] = np.cos(angle) * whole["size"] + np.sin(angle) * whole["noise"]
    found = forecast(whole[:6000], whole[6000:], "y", date="year", horizon=1)
    assert found.decision == decision
    assert f"better than {than} at " in found.sentence
    assert "the target has 1 date in 'year', and 4 are needed" in found.sentence
    table = found.table.set_index("decision")
    assert table["gain"].isna().all()
    assert table.loc["both", "won"].endswith(" of 6")
    assert table.index[table["chosen"]].tolist() == [decision.name]
    assert Forecast.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.plot().axes
    assert "nan" not in str(found).lower()


@pytest.mark.parametrize(
    ("days", "reason"),
    [
        (lambda frame: frame["day"].sample(frac=1, random_state=0).to_numpy(), "lie among those"),
        (lambda frame: 5, "the old rows have one date"),
    ],
)
def test_a_sentence_says_why_there_are_none(days: Callable[[Any], Any], reason: str) -> None:
    whole = history(1000, lambda day: 1.0)
    whole["day"] = np.where(
        whole.index < 800, days(whole), days(whole) if reason[:3] == "lie" else 90
    )
    whole.loc[800:, "day"] += np.arange(200) // 20
    found = forecast(whole[:800], whole[800:], "y", date="day")
    assert f"no earlier moments, since {reason}" in found.sentence.replace(
        "dates of the target ", ""
    )
    assert found.moments is None
    assert "won" not in found.table
