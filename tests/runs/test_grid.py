"""Grids of parameters: the syntax of values, and every combination once."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astkit.runs import grid
from astkit.runs.parameters import Notebook
from tests.runs import sweeping

DEFAULTS = {"rate": 0.1, "seed": 0, "seeds": [0, 1], "mode": "plain", "root": None}
TOY = Notebook(sweeping.Path("/toy.ipynb"), DEFAULTS, "0" * 8)


def test_values_of_an_option():
    for option, values in (
        ("rate=0.05,0.1,0.2", [0.05, 0.1, 0.2]),
        ("rate= 0.05 , 1e-3", [0.05, 0.001]),
        ("rate=1", [1.0]),
        ("seed=0..4", [0, 1, 2, 3, 4]),
        ("seed=-1..1", [-1, 0, 1]),
        ("seed=3..3", [3]),
        ("seed=0..2,7", [0, 1, 2, 7]),
        ("rate=1..2", [1.0, 2.0]),
        ("seeds=0,1", [[0], [1]]),
        ("seeds=0..1", [[0], [1]]),
        ("seeds=[0,1],[2]", [[0, 1], [2]]),
        ("seeds=[0, 1]", [[0, 1]]),
        ("mode=plain,full", ["plain", "full"]),
        ("mode='a,b',c", ["a,b", "c"]),
        ('mode="a,b","it\'s"', ["a,b", "it's"]),
        ("mode=it's,that's", ["it's", "that's"]),
        ("mode=0.7*loss + 0.3*contrast,loss", ["0.7*loss + 0.3*contrast", "loss"]),
        ("mode='0..4'", ["0..4"]),
        ("mode=", [""]),
        ("mode=f(a, b),c", ["f(a, b)", "c"]),
        ("mode=:),b", [":)", "b"]),
        ("root={'a': [1, 2], 'b': 'x,y'},null,3", [{"a": [1, 2], "b": "x,y"}, None, 3]),
        ("root=[[1,2],[3,']']],x", [[[1, 2], [3, "]"]], "x"]),
    ):
        (found,) = grid.from_options(TOY, [option]).values()
        assert found == values
        assert [type(value) for value in found] == [type(value) for value in values]


def test_bad_options_are_refused():
    for option, sentence in (
        ("rate=0.05,,0.1", "rate=0.05,,0.1 has an empty value: remove a comma"),
        ("rate=0.05,", "has an empty value"),
        ("seed=4..0", "seed is 4..0: give the smaller number first"),
        ("seeds=[0,1", r"seeds=\[0,1 is not closed: add the missing \]"),
        ("mode='a,b", "is not closed: add the missing '"),
        ("rates=1", "no parameter 'rates': did you mean rate"),
        ("rate=[0.1,0.2]", r"rate is \[0.1, 0.2\], but its default"),
        ("rate=0.1..0.2", "rate is '0.1..0.2', but its default"),
        ("seed=0..4.5", "seed is '0..4.5', but its default"),
        ("rate", "-p got 'rate'"),
        ("seed=0..9999999999", "seed is 0..9999999999: give at most 100,000 values"),
        ("seed=1:30", "seed is '1:30', but its default"),
    ):
        with pytest.raises(ValueError, match=sentence):
            grid.from_options(TOY, ["seed=1"] * (not option.startswith("seed=")) + [option])


json_values = st.recursive(
    st.integers() | st.text("ab,'\"[]{}:. ") | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a,]"), inner, max_size=2),
    max_leaves=6,
)


@given(st.lists(json_values, min_size=1, max_size=4))
def test_json_literals_with_commas_between_come_apart_again(values):
    option = "root=" + ",".join(json.dumps(value) for value in values)
    if '\\"' not in option:  # quotes are not escaped within quotes
        assert grid.from_options(TOY, [option])["root"] == values


def test_combinations_are_the_product_with_the_last_name_fastest():
    values = {"rate": [0.1, 0.2], "seed": range(3), "mode": "full"}
    expected = [
        {"rate": rate, "seed": seed, "mode": "full"}
        for rate, seed in itertools.product([0.1, 0.2], range(3))
    ]
    assert grid.combinations(TOY, values) == expected
    assert grid.combinations(TOY, {}) == [{}]


def test_arrays_and_tuples_are_values_too():
    rows = grid.combinations(TOY, {"rate": np.linspace(0, 1, 3), "seed": (1, np.int64(2))})
    assert rows == [{"rate": r, "seed": s} for r in (0.0, 0.5, 1.0) for s in (1, 2)]
    assert json.loads(json.dumps(rows)) == rows


def test_bad_grids_are_refused():
    for values, sentence in (
        ({"rate": []}, "rate has no values: give one or more"),
        ({"rate": [0.1, 0.2, 0.10]}, "rate contains 0.1 twice: give each value once"),
        ({"rate": [1, 1.0]}, "rate contains 1.0 twice"),
        ({"seeds": [0, [0]]}, r"seeds contains \[0\] twice"),
        ({"rate": [0.1, "high"]}, "rate is 'high'"),
        ({"sede": [1]}, "no parameter 'sede': did you mean seed"),
        ({"seed": [0, 0]}, "seed contains 0 twice"),
        ({"seed": range(10**30)}, "seed has more than 100,000 values"),
        ({"seed": range(1000), "rate": np.linspace(0, 1, 101)}, "101,000 combinations: give at"),
    ):
        with pytest.raises(ValueError, match=sentence):
            grid.combinations(TOY, values)


def test_true_and_one_are_two_values():
    assert len(grid.combinations(TOY, {"root": [True, 1, 1.0]})) == 3


def test_varying_names_are_those_that_differ():
    rows = grid.combinations(TOY, {"rate": [0.1, 0.2], "seed": [5], "mode": ["a", "b"]})
    assert grid.varying(rows) == ["rate", "mode"]
    assert grid.varying(rows[:1]) == grid.varying([]) == []
