"""Sweeps: every combination into a folder of its own, once, whatever fails or interrupts."""

import collections
import itertools
import re
import threading
import time

import numpy as np
import pytest

from astkit.runs import sweep
from astkit.runs.record import Record
from astkit.runs.runner import Notebook
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811
RATES, SEEDS = [0.05, 0.1, 0.2], range(4)
PLAN = Notebook(
    sweeping.Path("/toy.ipynb"),
    ("rate", "seed", "mode"),
    {"rate": 0.1, "seed": 0, "mode": "plain"},
    "0" * 8,
)


def run(toy, values, root):
    lines = []
    return sweep.run_sweep(toy, values, root, announce=lines.append), lines


def test_bad_values_are_refused():
    for values, sentence in (
        ({"rate": []}, "rate has no values: give one or more"),
        ({"rate": [0.1, "high"]}, "rate is 'high'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            sweep.combinations(PLAN, values)


def test_combinations_are_the_product_with_the_last_name_fastest():
    values = {"rate": np.array([0.1, 0.2]), "seed": range(3), "mode": "full"}
    rows = sweep.combinations(PLAN, values)
    assert rows == [
        {"rate": rate, "seed": seed, "mode": "full"} for rate in (0.1, 0.2) for seed in range(3)
    ]
    assert sweep.combinations(PLAN, {}) == [{}]
    assert sweep.combinations(PLAN, {"rate": np.array(0.5)}) == [{"rate": 0.5}]
    assert sweep.varying(rows) == ["rate", "seed"]
    assert sweep.varying(rows[:1]) == sweep.varying([]) == []


def test_every_combination_is_run_once_in_a_folder_of_its_own(toy, root, process):
    seen = process("complete")
    outcomes, lines = run(toy, {"rate": RATES, "seed": SEEDS}, root)
    product = [{"rate": rate, "seed": seed} for rate, seed in itertools.product(RATES, SEEDS)]
    assert [done.parameters for done in outcomes] == seen == product
    assert len({done.folder for done in outcomes}) == len(product)
    for done in outcomes:
        record = Record(done.folder)
        assert record.status == done.status == "complete"
        assert done.parameters.items() <= record.config["parameters"].items()
    assert re.fullmatch(r"12/12  complete  rate=0.2  seed=3  \d+\.\d s", lines[-1])
    again, lines = run(toy, {"rate": RATES, "seed": SEEDS}, root)
    assert len(seen) == len(product)
    assert [done.seconds for done in again] == [done.seconds for done in outcomes]
    assert lines[-1] == "12/12  complete  rate=0.2  seed=3  before, so not run again"


def test_a_failing_or_damaged_run_affects_no_other_and_is_redone(toy, root, process):
    lucky = []

    def act(record, parameters):
        return "complete" if lucky or parameters["seed"] != 2 else error("two\nlines")

    seen = process(act)
    outcomes, lines = run(toy, {"seed": SEEDS}, root)
    assert [done.status for done in outcomes] == ["complete"] * 2 + ["failed", "complete"]
    assert outcomes[2].error == "ValueError: two lines in cell [3]"
    assert lines[2].startswith("3/4  failed  seed=2")
    lucky.append(True)
    damaged = {1: "result.json", 3: "config.json"}
    before = {}
    for number, name in damaged.items():
        path = outcomes[number].folder / name
        before[path] = path.read_text()
        path.write_text("[1]")
    outcomes, _ = run(toy, {"seed": SEEDS}, root)
    assert [done.status for done in outcomes] == ["complete", "failed", "complete", "failed"]
    for number, name in damaged.items():
        assert f"{name} is damaged (not a mapping)" in outcomes[number].error
    for path, text in before.items():
        path.write_text(text)
    outcomes, _ = run(toy, {"seed": SEEDS}, root)
    assert {done.status for done in outcomes} == {"complete"}
    assert [parameters["seed"] for parameters in seen] == [0, 1, 2, 3, 2]


def test_two_sweeps_share_the_work(toy, root, process):
    def act(record, parameters):
        time.sleep(0.05)
        return "complete"

    seen = process(act)
    results = []

    def work():
        results.append(run(toy, {"rate": RATES, "seed": SEEDS}, root)[0])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = collections.Counter((given["rate"], given["seed"]) for given in seen)
    assert counts == dict.fromkeys(itertools.product(RATES, SEEDS), 1)
    assert len(list(root.iterdir())) == len(counts)
    for outcomes in results:
        assert {done.status for done in outcomes} <= {"complete", "busy"}
