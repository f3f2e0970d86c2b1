"""The encoding of a table: known values, training rows alone, words never seen, missing cells."""

import sys

import numpy as np
import pandas as pd
import pytest

from astkit.datasets.table_encoder import CLIP, TableEncoder


def words(*cells: str | None) -> pd.Series:
    return pd.Series(cells, dtype="category")


def test_numbers_are_standardised_filled_by_the_median_and_clipped() -> None:
    train = pd.DataFrame({"a": [0.0, 2, 4, np.nan], "b": [1.0] * 4})
    encoder = TableEncoder().fit(train)
    assert encoder.names == ["a", "b", "a missing"]
    deviation = np.std([0, 2, 4, 2])
    expected = [[-2 / deviation, 0, 0], [0, 0, 0], [2 / deviation, 0, 0], [0, 0, 1]]
    assert encoder.numbers(train) == pytest.approx(np.array(expected))
    later = pd.DataFrame({"a": [1e6, -1e6, np.nan], "b": [np.nan, 3.0, 1.0]})
    assert encoder.numbers(later)[:, 0].tolist() == [CLIP, -CLIP, 0]
    assert encoder.numbers(later)[:, 1].tolist() == [0, 2, 0]  # a constant is not divided


def test_dates_are_days_weekday_month_and_hour() -> None:
    """2024-02-29 was a Thursday; days are exact also where float32 would not be."""
    moments = pd.to_datetime(["2024-02-29 18:00", "2024-03-01 06:00", None])
    encoder = TableEncoder().fit(pd.DataFrame({"d": moments}))
    assert encoder.names == ["d day", "d weekday", "d month", "d hour", "d day missing"]
    values = encoder.numbers(pd.DataFrame({"d": moments}), scaled=False)
    assert values[0].tolist() == [19782.75, 3, 2, 18, 0]
    assert values[1].tolist() == [19783.25, 4, 3, 6, 0]
    assert np.isnan(values[2, :4]).all()
    assert values[2, 4] == 1
    days = pd.DataFrame({"d": pd.to_datetime(["2024-02-29", "2024-03-01"])})
    assert TableEncoder().fit(days).names == ["d day", "d weekday", "d month"]


def test_few_words_are_one_hot_and_rare_ones_are_others() -> None:
    train = pd.DataFrame({"c": words(*["u"] * 6, *["v"] * 5, "w", None)})
    encoder = TableEncoder().fit(train)
    vectors = encoder.vectors("c", ["u", "v", "w", "new"])
    assert vectors.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert encoder.unknown("c", ["u", "new", "w"]) == ["new"]


def test_many_words_are_their_frequency_and_letters() -> None:
    names = [f"{kind} {number}" for kind in ("street", "avenue") for number in range(40)]
    cells = [name for place, name in enumerate(names) for _ in range(1 + place % 4)]
    encoder = TableEncoder().fit(pd.DataFrame({"c": words(*cells)}))
    vectors = encoder.vectors("c", [*names, "street 99", "avenue 99"])
    assert vectors.shape == (83, 17)
    counts = np.array([1 + place % 4 for place in range(80)])
    order = np.argsort(counts, kind="stable")
    assert (np.diff(vectors[order, 0]) >= 0).all()  # of the shares
    weighted = np.average(vectors[:80], axis=0, weights=counts)
    assert weighted == pytest.approx(np.zeros(17), abs=0.05)
    assert np.abs(vectors).max() <= CLIP
    near = [
        np.linalg.norm(vectors[80, 1:] - vectors[rows, 1:].mean(0))
        for rows in ([*range(40)], [*range(40, 80)])
    ]
    assert near[0] < near[1]  # a new street is more like streets
    again = TableEncoder().fit(pd.DataFrame({"c": words(*cells)}))
    assert np.array_equal(again.vectors("c", names), encoder.vectors("c", names))


def test_many_words_without_scikit_learn_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.decomposition", None)
    frame = pd.DataFrame({"c": words(*(f"w{row}" for row in range(40)))})
    with pytest.raises(ModuleNotFoundError, match="column 'c' has 40 different words, which sci"):
        TableEncoder().fit(frame)
