"""The trees of a forecast are those of a literal pipeline, and hold no rows."""

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from astkit import Table
from astkit.aim.decisions import BOTH, FLAT, OLD, TARGET, WEIGHTED, WEIGHTED_BOTH, Decision
from astkit.aim.forecast import Forecast, forecast
from tests import build
from tests.build import refused

OLD_ROWS = build.table(200, law=-1.0)
NEW_ROWS = build.table(80, 1)
LATER = build.table(120, 2)
RATIO = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def decided(decision: Decision, tables: tuple[Table, Table], kept: bool = True) -> Forecast:
    """As `forecast` answers, with weights of mean 1; of old rows alone unless ``kept``."""
    old, new = map(len, tables)
    weights = RATIO.clone() if decision.weighted else torch.full((old,), float(decision.old))
    weights = weights / weights.mean().clamp_min(1e-9)
    if kept:
        weights = torch.cat([weights, torch.full((new,), float(decision.times))]).double()
    told = None if decision == OLD else weights / weights.mean()
    return Forecast(decision, "", told, tables=tables)


@pytest.mark.parametrize("task", ["regression", "classes"])
@pytest.mark.parametrize(
    ("decision", "kept"),
    [
        *((each, True) for each in (OLD, BOTH, Decision(times=4), TARGET, WEIGHTED, WEIGHTED_BOTH)),
        *((each, False) for each in (WEIGHTED, FLAT)),
    ],
)
def test_the_trees_are_those_of_a_literal_pipeline(
    decision: Decision, kept: bool, task: str, tmp_path: Path
) -> None:
    old, new, later = (frame.copy() for frame in (OLD_ROWS, NEW_ROWS, LATER))
    for frame in (old, new, later):
        frame.loc[frame.index[::5], "noise"] = np.nan
        if task == "classes":
            frame["y"] = np.where(frame["y"] > 0.5, "high", np.where(frame["y"] < 0, "low", "no"))
    first = Table(old, "y")
    found = decided(decision, (first, Table(new, like=first)), kept).fit()

    weight = (RATIO / RATIO.mean()).tolist() if decision.weighted else [1.0] * 200
    use_old, use_new = decision.old, decision.times * kept
    frames = [*[old] * use_old, *[new] * bool(use_new)]
    x = np.concatenate([Table(each, like=first).matrix(scaled=False) for each in frames])
    y = pd.concat([each["y"] for each in frames]).to_numpy()
    weights = [*(weight if use_old else []), *[float(use_new)] * (80 * bool(use_new))]
    kind = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    y = y.astype("float32") if task == "regression" else y
    literal = kind(early_stopping=False, random_state=0).fit(x, y, sample_weight=weights)
    others = Table(later, like=first).matrix(scaled=False)
    assert np.isnan(others).any()

    assert isinstance(found, Pipeline)
    check_is_fitted(found)
    later.loc[3:, "y"] = None
    later.to_csv(tmp_path / "later.csv", index=False)
    for given in (later, later.drop(columns="y"), tmp_path / "later.csv"):
        said = found.predict(given)
        if task == "regression":
            np.testing.assert_allclose(said, literal.predict(others), rtol=1e-6)
        else:
            assert said.tolist() == literal.predict(others).tolist()
            np.testing.assert_allclose(
                found.predict_proba(given), literal.predict_proba(others), rtol=1e-5
            )
            assert found.classes_.tolist() == ["high", "low", "no"]
    joblib.dump(found, tmp_path / "trees")
    np.testing.assert_array_equal(joblib.load(tmp_path / "trees").predict(later), said)
    again = clone(found).fit(old, old["y"])
    assert len(again.predict(later)) == 120


def test_what_is_stored_holds_no_rows(tmp_path: Path) -> None:
    sizes = []
    for rows in (300, 3000):
        old = Table(build.table(rows, who=["a", "b", "c"] * (rows // 3)), "y", groups="who")
        new = Table(build.table(60, 1, who="d"), like=old)
        read = decided(TARGET, (old, new)).fit().named_steps["read"]
        joblib.dump(read, tmp_path / "read")
        sizes.append((tmp_path / "read").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 500
    assert sizes[1] < 20_000


def test_a_forecast_of_files_fits_what_it_decides(tmp_path: Path) -> None:
    OLD_ROWS.assign(empty="").to_csv(tmp_path / "old.csv", index=False)
    only = NEW_ROWS.assign(empty="", size=lambda rows: rows["size"].where(rows["size"] > 0))
    only.to_csv(tmp_path / "new.csv", index=False)
    found = forecast(tmp_path / "old.csv", tmp_path / "new.csv", "y")
    assert found.decision.times
    error = found.fit().predict(LATER) - LATER["y"]
    assert np.sqrt((error**2).mean()) < 1
    assert "tables" not in found.to_json()
    assert "Table(" not in repr(found)
    loaded = Forecast.from_json(found.to_json())
    assert (loaded.decision, loaded.lines) == (found.decision, found.lines)
    arrays = forecast(build.numbers(200), build.numbers(60, seed=1))
    refused((loaded.fit, "knows no tables"), (arrays.fit, "knows no tables"))


def test_trees_see_columns_without_a_value_and_classes_of_one_side() -> None:
    first: Any = OLD_ROWS.assign(gone=1.0, y=np.where(OLD_ROWS["size"] > 0, "a", "b"))
    then = NEW_ROWS.assign(gone=np.nan, y=np.where(NEW_ROWS["size"] > 0, "a", "b"))
    old = Table(first, "y")
    found = decided(TARGET, (old, Table(then, like=old))).fit()
    assert np.mean(found.predict(then) == then["y"]) > 0.9
    one = decided(TARGET, (old, Table(then.assign(y="a"), like=old))).fit()
    assert set(one.predict(then)) == {"a"}
