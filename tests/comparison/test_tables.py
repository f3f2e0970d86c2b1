"""`compare` of tables: a table alone, a model of one's own, and what has to be said beside it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import nn

from astkit import Table, compare
from astkit.comparison.tables import with_table
from tests.build import refused

ROWS = 300
NOTHING = dict.fromkeys(("make_model", "train", "validation", "test", "criterion", "metrics"), None)


def frame() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    made = pd.DataFrame({"x": draw.normal(size=ROWS), "word": draw.choice(["u", "v"], ROWS)})
    return made.assign(y=1000 + 50 * made["x"] + 10 * draw.normal(size=ROWS))


def test_a_table_alone_is_compared_with_a_network_of_its_own(capsys) -> None:
    report = compare(frame(), label="y", policies="infobatch", seeds=1)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "regression of y: 300 rows, 2 columns"
    assert said[1] == "rows: 217 to train on, 38 to validate, 45 to test"
    entry = report.entries[0]
    assert (entry["metric"], entry["higher"]) == ("RMSE", False)
    assert 5 < entry["value"] < 40  # in the label's unit, of which the deviation is 50


def test_a_model_of_ones_own_predicts_in_standard_deviations() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(1))

    options = {"label": "y", "policies": "infobatch", "seeds": 1, "epochs": 20}
    report = compare(model, frame(), **options)
    assert report.entries[0]["value"] < 40
    given = with_table(
        {**NOTHING, "make_model": model, "train": frame(), "criterion": len}, label="y"
    )
    assert given["make_model"] is model  # a criterion of one's own knows the label's unit
    assert given["criterion"] is len


def test_tables_bring_their_model_and_objective() -> None:
    train = Table(frame(), label="y")
    given = with_table({**NOTHING, "train": train, "metrics": "mine"}, label=None)
    assert given["make_model"] == train.model
    assert given["metrics"] == "mine"
    assert given["criterion"](train.values + train.label.deviation, train.values).mean() == (
        pytest.approx(1, rel=1e-4)
    )


def test_what_is_missing_is_said_before_anything_is_trained() -> None:
    needs = "is a table, of which .*: give label="
    refused(
        (lambda: compare(frame()), f"make_model {needs}"),
        (lambda: compare("table.csv"), f"make_model {needs}"),
        (lambda: compare(nn.Identity, frame()), f"train {needs}"),
        (lambda: compare(date="day"), "date is 'day', which is of a table: give its label= too"),
        (lambda: compare(frame(), label="z", seeds="many"), "there is no column 'z'"),  # file first
        (lambda: compare(None, label="y"), "train is missing"),
    )


def test_another_encoding_is_another_comparison(tmp_path: Path) -> None:
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    def compared(encoder: object) -> None:
        train = Table(frame()[["x", "y"]], label="y", encoder=encoder)
        compare(None, train, train, train, policies="infobatch", seeds=1, epochs=1, out=tmp_path)

    compared(StandardScaler())
    compared(StandardScaler())
    refused((lambda: compared(MinMaxScaler()), "was made with other settings"))


def test_groups_and_dates_reach_the_report(capsys) -> None:
    days = np.arange(ROWS) // 5
    grouped = frame().assign(day=days, owner=[f"o{day % 40}" for day in days])
    options = {"label": "y", "policies": "infobatch", "seeds": 1, "epochs": 1}
    report = compare(grouped, groups="owner", date="day", drop=["day"], **options)
    assert "regression of y: 300 rows, 2 columns" in capsys.readouterr().out
    assert report.entries[0]["test_rows"] == 45
