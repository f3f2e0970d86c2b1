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

from astkit import Table
from astkit.aim.decisions import BOTH, FLAT, OLD, TARGET, WEIGHTED, WEIGHTED_BOTH, Decision
from astkit.aim.forecast import Forecast, forecast
from tests import build
from tests.build import refused

OLD_ROWS, NEW_ROWS, LATER = build.table(200, law=-1.0), build.table(80, 1), build.table(120, 2)
RATIO = np.random.default_rng(0).random(200)
DECISIONS = [OLD, BOTH, Decision(times=4), TARGET, WEIGHTED, WEIGHTED_BOTH]


def decided(decision: Decision, old: Table, new: Table, trained_on: bool = True) -> Forecast:
    """As `forecast` answers, with weights of mean 1; of old rows alone unless ``trained_on``."""
    of_old = RATIO / RATIO.mean() if decision.weighted else np.full(len(old), float(decision.old))
    of_new = np.full(len(new) * trained_on, float(decision.times))
    weights = torch.from_numpy(np.concatenate([of_old, of_new]))
    told = None if decision == OLD else weights / weights.mean()
    return Forecast(decision, "", told, tables=(old, new))


@pytest.mark.parametrize("task", ["regression", "classes"])
@pytest.mark.parametrize(
    ("decision", "trained_on"),
    [*((each, True) for each in DECISIONS), (WEIGHTED, False), (FLAT, False)],
)
def test_the_trees_are_those_of_a_literal_pipeline(
    decision: Decision, trained_on: bool, task: str, tmp_path: Path
) -> None:
    old, new, later = (frame.copy() for frame in (OLD_ROWS, NEW_ROWS, LATER))
    for frame in (old, new, later):
        frame.loc[frame.index[::5], "noise"] = np.nan
        if task == "classes":
            frame["y"] = np.where(frame["y"] > 0.5, "high", np.where(frame["y"] < 0, "low", "no"))
    first = Table(old, "y")
    found = decided(decision, first, Table(new, like=first), trained_on).fit()

    weights = {"old": (RATIO / RATIO.mean() if decision.weighted else np.ones(200)) * decision.old}
    weights["new"] = np.full(80, float(decision.times * trained_on))
    used = {"old": old, "new": new}
    frames = [used[name] for name in used if weights[name].any()]
    kind = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    trees = kind(early_stopping=False, random_state=0).fit(
        np.concatenate([Table(each, like=first).matrix(scaled=False) for each in frames]),
        pd.concat([each["y"] for each in frames]).to_numpy(),
        sample_weight=np.concatenate([weights[name] for name in used if weights[name].any()]),
    )
    x = Table(later, like=first).matrix(scaled=False)

    later.loc[3:, "y"] = None
    later.to_csv(tmp_path / "later.csv", index=False)
    joblib.dump(found, tmp_path / "trees")
    assert len(clone(found).fit(old, old["y"]).predict(later)) == 120
    for pipeline in (found, joblib.load(tmp_path / "trees")):
        for given in (later, later.drop(columns="y"), tmp_path / "later.csv"):
            if task == "regression":
                np.testing.assert_allclose(pipeline.predict(given), trees.predict(x), rtol=1e-4)
            else:
                assert pipeline.predict(given).tolist() == trees.predict(x).tolist()
                shares = trees.predict_proba(x)
                np.testing.assert_allclose(pipeline.predict_proba(given), shares, rtol=1e-4)


def test_cells_and_columns_that_reading_leaves_out_are_told() -> None:
    first = Table(OLD_ROWS.assign(kind=["a", "b"] * 100), "y")
    found = decided(OLD, first, Table(NEW_ROWS.assign(kind="a"), like=first)).fit()
    with pytest.warns(UserWarning, match="further columns, left out: more"):
        found.predict(LATER.assign(kind="a", more=1.0))


def test_what_is_stored_holds_no_rows(tmp_path: Path) -> None:
    sizes = []
    for rows in (300, 3000):
        old = Table(build.table(rows, who=["a", "b", "c"] * (rows // 3)), "y", groups="who")
        new = Table(build.table(60, 1, who="d"), like=old)
        joblib.dump(decided(TARGET, old, new).fit()["read"], tmp_path / "read")
        sizes.append((tmp_path / "read").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 500


def test_a_forecast_of_files_fits_what_it_decides(tmp_path: Path) -> None:
    for name, frame in (("old", OLD_ROWS), ("new", NEW_ROWS)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    found = forecast(tmp_path / "old.csv", tmp_path / "new.csv", "y")
    assert found.decision.times
    trees = found.fit()
    assert np.sqrt(((trees.predict(LATER) - LATER["y"]) ** 2).mean()) < 1
    assert len(trees[:-1].transform(LATER)) == len(LATER)  # the reading alone
    loaded = Forecast.from_json(found.to_json())
    assert "Table(" not in repr(found)
    arrays = forecast(build.numbers(200), build.numbers(60, seed=1))
    refused((loaded.fit, "knows no tables"), (arrays.fit, "knows no tables"))


def test_trees_take_columns_without_a_value_and_one_class() -> None:
    first: Any = OLD_ROWS.assign(gone=1.0, y=np.where(OLD_ROWS["size"] > 0, "a", "b"))
    then = NEW_ROWS.assign(gone=np.nan, y=np.where(NEW_ROWS["size"] > 0, "a", "b"))
    old = Table(first, "y")
    for later in (then, then.assign(y="a")):
        fitted = decided(TARGET, old, Table(later, like=old)).fit()
        assert np.mean(fitted.predict(later) == later["y"]) > 0.9
