"""`compare` with rows of a target: its controls, what is set aside, and what is named before."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from astkit import Comparison
from astkit.datasets.joined import joined, set_aside, shared_with_target
from astkit.datasets.table import Table
from tests import build
from tests.build import refused, rows
from tests.comparison.small_tasks import ROWS, interrupt, run, timeless

TARGET = rows(21, seed=5)
NEW = 21


@pytest.fixture(scope="module")
def report() -> Comparison:
    return run(target=TARGET, policies=["cached_loss"])


def test_controls_on_the_target_stand_beside_dense_training(report: Comparison) -> None:
    names = list(dict.fromkeys(entry["policy"] for entry in report.entries))
    assert names[:3] == ["dense", "both", "target alone"]
    assert report.old_rows == ROWS
    dense, both, alone = (report.visits(name, 0) for name in names[:3])
    assert {each["losses"].shape for each in (dense, both, alone)} == {(8, ROWS + NEW)}
    sums = [visits["trained"].sum(0) for visits in (dense, both, alone)]
    assert [int(each[:ROWS].sum() > 0) for each in sums] == [1, 1, 0]
    assert [int(each[ROWS:].sum() > 0) for each in sums] == [0, 1, 1]
    assert {int(each.sum()) for each in sums} == {2 * ROWS}
    expected = 2 * ROWS / (ROWS + NEW)  # every row equally often, to within a draw an epoch
    assert int((sums[1].float() - expected).abs().max()) < 2
    costs = {entry["flops"] for entry in report.entries if entry["policy"] in names[:3]}
    assert len(costs) == 1
    assert [each.policy for each in report.verdicts] == ["cached_loss"]
    assert int(report.visits("cached_loss", 0)["trained"][:, ROWS:].sum()) == 0


def test_the_target_alone_ends_with_its_best_weights(report: Comparison) -> None:
    first = next(e for e in report.entries if e["policy"] == "target alone")
    values = [value for _, _, value in first["curve"]]
    place = values.index(max(values))
    assert first["best_flops"] == first["curve"][place][0]
    assert 0 < first["best_step"] <= first["steps"]
    frame = report.table()
    assert frame.loc["target alone", ["best_step", "best_flops"]].notna().all()
    assert frame.loc["dense", ["best_step", "best_flops"]].isna().all()
    steps = sorted(e["best_step"] for e in report.entries if e["policy"] == "target alone")
    ends = " to ".join(str(step) for step in dict.fromkeys([steps[0], steps[-1]]))
    said = f"target alone: best at step {ends} of {first['steps']}, after "
    assert any(note.startswith(said) for note in report.notes)


def test_an_interrupted_comparison_ends_with_the_same_entries(report, tmp_path, monkeypatch):
    options = {"target": TARGET, "policies": ["cached_loss"], "seeds": [0], "out": tmp_path}
    interrupt(monkeypatch, 22, **options)  # of target alone, after 8 steps each of dense and both
    assert list((tmp_path / "checkpoints").glob("target_alone*/*.json"))
    again = run(**options)
    first = [entry for entry in report.entries if entry["seed"] == 0]
    for one, other in zip(timeless(again.entries), timeless(first), strict=True):
        assert {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)} == set()
    with pytest.raises(ValueError, match=r"data\.old was 64 and is 63"):
        run(**options | {"train": TensorDataset(*(part[:-1] for part in rows(ROWS).tensors))})


def test_rates_of_controls_are_searched_as_that_of_dense_training(capsys: Any) -> None:
    train, target, held = (rows(n, seed=seed, spread=2) for n, seed in ((64, 0), (21, 5), (24, 1)))
    data = {"train": train, "target": target, "validation": held}
    report = run(**data, policies=["cached_loss"], seeds=1, config=None, check_baseline=True)
    said = capsys.readouterr().out
    assert "both: learning rate" in said
    assert "target alone: learning rate" in said
    assert [note[:5] for note in report.notes[:2]] == ["both:", "targe"]


def test_suspects_and_the_explorer_rank_old_rows_unless_asked(report: Comparison) -> None:
    few = report.suspects(ROWS + NEW, "both")
    assert max(few.rows) < ROWS  # some may not have been drawn
    assert max(report.suspects(ROWS + NEW, "both", target=True).rows) >= ROWS
    assert f"of {ROWS} rows" in repr(few)
    left = report.suspects(4).drop()
    assert (len(left), left.old_rows) == (ROWS + NEW - 4, ROWS - 4)
    groups = report.samples("both").groups.values()
    assert max(int(group.max()) for group in groups if len(group)) < ROWS
    for target, count in ((False, ROWS), (True, ROWS + NEW)):
        samples = report.explore(500, target=target).content["samples"]
        assert sorted(each["row"] for each in samples) == list(range(count))


def entries(both: list[float], higher: bool) -> list[dict[str, Any]]:
    known = {"metric": "RMSE", "higher": higher, "flops": 1.0, "seconds": 1.0, "rate": 1.0}
    known |= {"curve": [], "visits": ""}
    dense = [{**known, "policy": "dense", "seed": s, "value": 10 + s / 10} for s in range(4)]
    return dense + [
        {**dense[0], "policy": "both", "seed": s, "value": v} for s, v in enumerate(both)
    ]


def test_the_first_line_says_what_training_on_both_gains() -> None:
    def lines(both: list[float], higher: bool) -> list[str]:
        made = {"entries": entries(both, higher), "metric": "RMSE", "higher": higher}
        return Comparison(made, Path("nowhere")).before

    (line,) = lines([7.4, 7.6, 7.5, 7.8], higher=False)
    assert line.startswith("training on both: RMSE 25.4 % lower [23.9, ")
    assert lines([7.4, 7.6, 7.5, 7.8], higher=True) == []
    assert lines([7.4, 13.6, 7.5, 12.8], higher=False) == []


def table(count: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    return build.table(count, seed, law=5 - shift)


def test_a_table_says_what_is_set_aside_and_what_trees_reach(capsys: Any) -> None:
    from astkit import compare

    report = compare(
        table(300, 0),
        label="y",
        target=table(100, 1, 9.0),
        test=table(80, 2, 9.0),
        policies="infobatch",
        seeds=2,
        epochs=20,
        lr=0.01,
        check_baseline=False,
    )
    said = capsys.readouterr().out.splitlines()[1:]
    assert said[0] == (
        "rows: 300 to train on, 20 to validate, set aside of the target, 80 to test, and 80 of the"
        " target to train on"
    )
    assert report.gains[0].startswith("training on both: RMSE ")
    assert said[-5:] == [*report.gains, "", *report.verdict.splitlines()]
    assert "boosted trees, trained on all rows, reach RMSE" in report.notes[-1]


def test_a_fifth_of_the_units_is_set_aside() -> None:
    left, held = set_aside(rows(30), ["validation"])
    assert (len(left), len(held["validation"])) == (24, 6)
    labels = torch.tensor([int(y) for _, y in held["validation"]])
    assert labels.bincount().tolist() == [2, 2, 2]
    grouped = rows(30)
    grouped.groups = [row // 3 for row in range(30)]
    left, held = set_aside(grouped, ["validation"])
    mine = {grouped.groups[row] for row in held["validation"].indices}
    assert len(mine) == 2
    assert not mine & {grouped.groups[row] for row in left.indices}
    series = Table(pd.DataFrame({"x": range(100), "y": np.sin(np.arange(100) / 9)}), label="y")
    left, held = set_aside(series, ["test", "validation"])
    assert held["test"].rows.tolist() == list(range(80, 100))
    assert held["validation"].rows.tolist() == list(range(60, 80))


def test_what_the_target_shares_is_named_before_training(capsys: Any) -> None:
    x, y = TARGET.tensors
    test = TensorDataset(torch.cat([x[:3], rows(9, seed=6).tensors[0]]), torch.cat([y[:3], y[:9]]))
    report = run(target=TARGET, test=test, policies=["infobatch"], seeds=1)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("target and test share 3 rows with equal inputs")
    assert said[0] in report.notes
    days = pd.date_range("2024-01-01", periods=12)
    frame = pd.DataFrame({"day": days, "who": list("abcdefghijkl"), "y": np.arange(12) + 0.5})
    one = Table(frame, label="y", groups="who")
    other = Table(frame.tail(3).assign(who=["l", "m", "n"], y=[1, 2, 3.0]), like=one)
    assert shared_with_target(one, test=other, validation=None) == [
        "target and test share groups l; days 2024-01-10, 2024-01-11, 2024-01-12: what is trained"
        " on says nothing of new rows"
    ]
    assert shared_with_target(one, test=rows(3, seed=7)) == []


def test_mistakes_are_one_sentence() -> None:
    wide, nine = TensorDataset(torch.zeros(20, 5), torch.zeros(20).long()), rows(9)
    refused(
        (lambda: run(target=wide), "those of train"),
        (lambda: run(target=TARGET, train=None), "target is given without train"),
        (
            lambda: run(target=TARGET, test=joined(TARGET, TARGET)),
            "validation or test data are joi",
        ),
        (lambda: set_aside(nine, ["validation"]), "target has 9 rows, groups or dates, too few"),
    )
