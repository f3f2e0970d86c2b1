"""Published figures beside results: what the committed files hold, and "not run" without them."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import figures, readings
from tests.benchmarks.figures import NEEDS_GPU, NOT_RUN, ROOT

STAMP = {"devices": [], "threads": 1}


def row(table, claim):
    (index,) = [i for i, name in enumerate(table["claim"]) if name == claim]
    return table.iloc[index]


@pytest.fixture(scope="module")
def table():
    return figures.table()


@pytest.fixture
def lay(tmp_path):
    """Lay a report down as one of the committed files."""

    def write(run, report):
        path = tmp_path / run
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"stamp": STAMP, **report}))
        return tmp_path

    return write


def test_the_table_has_a_line_for_each_figure_in_the_order_of_the_features(table):
    assert list(table.index) == sorted(table.index)
    assert list(table.columns) == ["claim", "origin", "measured", "n", "run", "other conditions"]
    assert len(table) == len(figures.FIGURES)
    assert table["origin"].map(bool).all()
    assert table[["claim", "origin"]].map(len).max().max() <= 42
    without = table["measured"].isin([NOT_RUN, NEEDS_GPU])
    measured = table[~without]
    assert (measured["n"].astype(int) > 0).all()
    assert all((ROOT / run).is_file() for run in measured["run"])
    assert set(table[without]["n"]) == set(table[without]["run"]) == {""}


def test_without_entries_everything_is_not_run(lay, tmp_path):
    assert set(figures.table(tmp_path)["measured"]) == {NOT_RUN, NEEDS_GPU}
    for figure in figures.FIGURES:
        if figure.run:
            lay(figure.run, {"results": [], "settings": {}, "figures": [], "speed": []})
    assert set(figures.table(tmp_path)["measured"]) == {NOT_RUN, NEEDS_GPU}


def test_what_notebook_03_writes_is_found(lay):
    arms = (
        "plain",
        "accumulation, 2 x 64",
        "channels_last",
        "metrics every 10",
        "all that auto picks",
    )
    speeds = {**dict.fromkeys(arms, 1.0), "bf16": 2.0}
    seconds = {name: [n / speed for n in (1.0, 2.0, 3.0)] for name, speed in speeds.items()}
    memory = {"plain": 100, "bf16": 60}
    reports = {
        name: {
            "memory": memory.get(name),
            "batch_size": 64 if name.startswith("acc") else 128,
            "effective_batch_size": 128,
        }
        for name in speeds
    }
    bench = {"model": "simple_cnn", "device": "cpu"}
    done = {"bench": bench, "seconds": seconds, "baseline": "plain", "reports": reports}
    found = figures.table(lay(figures.SWITCHES, {"dense": done, "gated": {}}))
    asked = [each.claim for each in figures.FIGURES if each.run == figures.SWITCHES]
    assert NOT_RUN not in {row(found, claim)["measured"] for claim in asked}
    assert row(found, "mixed precision, speed")["measured"] == "2 x [2, 2], simple_cnn, CPU"
    assert row(found, "mixed precision, memory saved")["measured"] == "40%, simple_cnn, CPU"
    effective = row(found, "accumulation, effective batch")
    assert effective["measured"] == "2 x (64 loaded, 128 a step)"
    done["reports"]["bf16"]["memory"] = None
    found = figures.table(lay(figures.SWITCHES, {"dense": done, "gated": {}}))
    assert row(found, "mixed precision, memory saved")["measured"] == NOT_RUN


def test_a_gpu_is_named():
    assert readings.device({"stamp": {"devices": ["NVIDIA H100"]}}) == "NVIDIA H100"
    assert readings.device({"stamp": STAMP}) == "CPU"


def test_decisions_are_compared_seed_by_seed():
    def run(arm, seed, trained):
        return {"arm": arm, "seed": seed, "samples_trained": trained}

    by_batch = "sample by sample, per batch"
    runs = [run(readings.GATE, 0, 10), run(readings.GATE, 1, 20)]
    runs += [run(by_batch, 0, 20), run(by_batch, 1, 20)]
    runs += [run(readings.BY_SAMPLE, 0, 7), run(readings.BY_SAMPLE, 1, 8)]
    text, _ = readings.same_decisions({"results": runs})
    assert text.startswith("as many trained in 1 of 2 runs with a step a batch, 0 with")
