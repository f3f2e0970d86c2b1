"""A notebook's parameters and grids of them: what is read, and refused before anything runs."""

from __future__ import annotations

import json

import numpy as np
import papermill
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astkit.runs import parameters
from astkit.runs.parameters import Notebook
from tests.notebooks.conftest import FOLDER
from tests.runs import sweeping

DEFAULTS = {
    "rate": 0.1,
    "seed": 0,
    "names": ["a", "b"],
    "mode": "plain",
    "root": None,
    "log": "",
    "fails": [],
    "dies": [],
    "wait": 0.1,
}
MORE = {**DEFAULTS, "live": True, "pair": (1, 2), "options": {"a": 1}, "mixed": [1, "a"]}


@pytest.fixture
def toy(tmp_path):
    return parameters.read(sweeping.write(tmp_path / "toy.ipynb"))


@pytest.fixture
def more(tmp_path):
    return Notebook(tmp_path / "toy.ipynb", MORE, "0" * 8)


def test_defaults_are_those_of_the_cell(toy):
    assert toy.defaults == DEFAULTS
    assert toy.path.is_absolute()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_papermill_finds_the_same_in_the_notebooks_of_the_project(path):
    found = parameters.read(path).defaults
    inspected = papermill.inspect_notebook(path)
    assert list(found) == list(inspected)
    for name, value in found.items():
        assert value == eval(inspected[name]["default"])


def test_a_notebook_without_the_cell_has_no_parameters(tmp_path):
    bare = parameters.read(sweeping.write(tmp_path / "bare.ipynb", parameters=None))
    assert bare.parameters({}) == {}
    with pytest.raises(ValueError, match="no parameter 'x': tag its first code cell 'parameters'"):
        bare.parameters({"x": 1})


def test_an_annotated_parameter_is_read_and_other_statements_are_not(tmp_path):
    source = '"""What."""\nimport os\nx: int = -1  # one\ny: float\n'
    assert parameters.read(sweeping.write(tmp_path / "n.ipynb", parameters=source)).defaults == {
        "x": -1
    }


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    for content, error, sentence in (
        (None, FileNotFoundError, "there is no notebook"),
        ("print(1)", ValueError, "is not a notebook"),
        ("{}", ValueError, "is not a notebook"),
        ('{"nbformat": 4}', ValueError, "is not a notebook"),
        ('{"nbformat": 4, "nbformat_minor": 5, "cells": [3]}', ValueError, "is not a notebook"),
        ("[" * 100_000, ValueError, "is not a notebook"),
    ):
        path = tmp_path / "x.ipynb"
        if content is not None:
            path.write_text(content)
        with pytest.raises(error, match=sentence):
            parameters.read(path)


def test_a_cell_of_anything_but_literals_is_refused(tmp_path):
    for source, sentence in (
        ("a = 1\nb = a * 2", r"parameter b of n.ipynb is 'a \* 2': give it a literal"),
        ("a = {[]: 1}", r"parameter a of n.ipynb is '{\[\]: 1}': give it a literal"),
        (
            "%matplotlib inline\na = 1",
            r"n.ipynb is not plain Python \(invalid syntax .*\): move",
        ),
        ("a = 1\nb = = 2", r"n.ipynb is not plain Python .*: move all but assignments"),
    ):
        path = sweeping.write(tmp_path / "n.ipynb", parameters=source)
        with pytest.raises(ValueError, match=sentence):
            parameters.read(path)


def test_the_code_changes_with_the_code_alone(tmp_path):
    first = parameters.read(sweeping.write(tmp_path / "a.ipynb"))
    second = parameters.read(sweeping.write(tmp_path / "b.ipynb"))
    third = parameters.read(sweeping.write(tmp_path / "c.ipynb", sweeping.WORK + "\n1"))
    assert first.code == second.code != third.code


def test_an_unknown_name_is_told_with_what_is_near(toy):
    for name, remedy in (
        ("rates", "did you mean rate"),
        ("sed", "did you mean seed?"),
        ("q", "choose from rate, seed, names, mode, root"),
    ):
        with pytest.raises(ValueError, match=rf"toy.ipynb has no parameter '{name}': {remedy}"):
            toy.parameters({"seed": 1, name: 2})


def test_a_text_becomes_the_type_of_the_default(more):
    for name, text, value in (
        ("rate", "0.25", 0.25),
        ("rate", "1e-3", 0.001),
        ("rate", "1", 1.0),
        ("rate", ".5", 0.5),
        ("seed", "7", 7),
        ("seed", "-7", -7),
        ("seed", "1_000", 1000),
        ("names", "c", ["c"]),
        ("names", '["c"]', ["c"]),
        ("names", "[]", []),
        ("fails", "3", [3]),
        ("fails", "[0.2, 3]", [0.2, 3]),
        ("mode", "full", "full"),
        ("mode", "'full'", "'full'"),
        ("mode", "123", "123"),
        ("mode", "off", "off"),
        ("mode", "null", "null"),
        ("mode", "2024-01-01", "2024-01-01"),
        ("mode", "[a", "[a"),
        ("mode", "", ""),
        ("mode", "run #3", "run #3"),
        ("mode", "/data/a #b/c", "/data/a #b/c"),
        ("mode", "two\nlines", "two\nlines"),
        ("mode", " with spaces ", " with spaces "),
        ("mode", "'a' and 'b'", "'a' and 'b'"),
        ("root", "x", "x"),
        ("root", "3", 3),
        ("root", "null", None),
        ("root", "[1, 2]", [1, 2]),
        ("root", "run #3", "run #3"),
        ("root", "#3", "#3"),
        ("root", "no", "no"),
        ("root", "1:30", "1:30"),
        ("root", "a: b", "a: b"),
        ("root", "2024-01-01", "2024-01-01"),
        ("names", "run #3", ["run #3"]),
        ("live", "false", False),
        ("pair", "[3, 4]", (3, 4)),
        ("pair", "3", (3,)),
        ("options", '{"b": 2}', {"b": 2}),
        ("mixed", "['b', 2.5]", ["b", 2.5]),
        ("root", "['it\\'s', (1, .5)]", ["it's", (1, 0.5)]),
        ("root", "[a, b", "[a, b"),
    ):
        found = more.from_text(name, text)
        assert found == value
        assert type(found) is type(value)


def test_another_type_is_refused_with_the_default(more):
    for name, text, kind in (
        ("rate", "high", "a number"),
        ("rate", "true", "a number"),
        ("rate", "null", "a number"),
        ("rate", "[0.1, 0.2]", "a number"),
        ("rate", "", "a number"),
        ("seed", "0.5", "a whole number"),
        ("seed", "true", "a whole number"),
        ("seed", "one", "a whole number"),
        ("seed", "1:30", "a whole number"),
        ("live", "no", "true or false"),
        ("live", "1", "true or false"),
        ("live", "maybe", "true or false"),
        ("names", "[1, 2]", r"a list such as \[1, 2\], of entries like 'a'"),
        ("pair", "a", r"a list such as \[1, 2\], of entries like 1"),
        ("options", "[1]", "a mapping"),
        ("options", "{b: 2}", "a mapping"),
    ):
        sentence = rf"^{name} is .*default in toy.ipynb is .*: give {kind}"
        with pytest.raises(ValueError, match=sentence):
            more.from_text(name, text)


def test_values_from_python_are_held_to_the_same(toy):
    given = {"rate": np.float64(0.5), "seed": np.int64(3), "names": "c"}
    found = toy.parameters(given)
    assert found == {**DEFAULTS, "rate": 0.5, "seed": 3, "names": ["c"]}
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(ValueError, match="seed is '3'"):
        toy.parameters({"seed": "3"})
    with pytest.raises(ValueError, match="mode is 3"):
        toy.parameters({"mode": 3})


finite = st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.one_of(
        st.tuples(st.just("mode"), st.text()),
        st.tuples(st.just("rate"), finite),
        st.tuples(st.just("seed"), st.integers()),
        st.tuples(st.just("names"), st.lists(st.text())),
        st.tuples(st.just("root"), anything),
        st.tuples(st.just("pair"), st.tuples(st.integers(), st.integers())),
    )
)
def test_what_is_written_as_text_is_read_back(parameter):
    name, value = parameter
    notebook = Notebook(sweeping.Path("toy.ipynb"), MORE, "0" * 8)
    (text,) = parameters.assignments([f"{name}={notebook.to_text(name, value)}"]).values()
    found = notebook.from_text(name, text)
    assert found == value
    assert type(found) is type(value)


def test_options_of_another_form_are_refused():
    for options, sentence in (
        (["rate"], "-p got 'rate': give name=value"),
        (["=3"], "-p got '=3': give name=value"),
        (["a b=3"], "-p got 'a b=3': give name=value"),
        (["rate=1", "rate=2"], "-p gives rate twice"),
    ):
        with pytest.raises(ValueError, match=sentence):
            parameters.assignments(options)


def test_options_may_hold_equals_signs():
    assert parameters.assignments(["a=b=c", " d = e"]) == {"a": "b=c", "d": " e"}


def test_the_seed_of_a_run():
    for values, seed in (
        ({}, 0),
        ({"seed": 4}, 4),
        ({"seeds": [5]}, 5),
        ({"seeds": (5,)}, 5),
        ({"seeds": [5, 6]}, 0),
        ({"seeds": 3}, 3),
        ({"seed": None}, 0),
        ({"seed": True}, 0),
        ({"seed": 1, "seeds": [2]}, 1),
    ):
        assert parameters.seed_of(values) == seed


# --- grids -----------------------------------------------------------------------------------

GRID = Notebook(
    sweeping.Path("/toy.ipynb"),
    {"rate": 0.1, "seed": 0, "seeds": [0, 1], "mode": "plain", "live": True, "root": None},
    "0" * 8,
)


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
        ("live=true,false", [True, False]),
        ("seeds=0,1", [[0], [1]]),
        ("seeds=0..1", [[0], [1]]),
        ("seeds=[0,1],[2]", [[0, 1], [2]]),
        ("seeds=[0, 1]", [[0, 1]]),
        ("mode=plain,full", ["plain", "full"]),
        ("mode='a,b',c", ["a,b", "c"]),
        ('mode="a,b","it\'s"', ["a,b", "it's"]),
        ("mode=it's,that's", ["it's", "that's"]),
        ("mode=0.7*loss + 0.3*contrast,loss", ["0.7*loss + 0.3*contrast", "loss"]),
        ("mode=0..4,1", ["0..4", "1"]),
        ("mode=", [""]),
        ("mode='f(a, b)',c", ["f(a, b)", "c"]),
        ("root={'a': [1, 2], 'b': 'x,y'},None,3", [{"a": [1, 2], "b": "x,y"}, None, 3]),
        ("root=null,x", [None, "x"]),
        ("root=[[1,2],[3,']']],'x'", [[[1, 2], [3, "]"]], "x"]),
    ):
        (found,) = GRID.grid([option]).values()
        assert found == values, option
        assert [type(value) for value in found] == [type(value) for value in values]


def test_bad_options_are_refused():
    for option, sentence in (
        ("rate=0.05,,0.1", "rate is '', but its default"),
        ("seed=4..0", "seed is 4..0: give the smaller number first"),
        ("seeds=[0,1", r"seeds is '\[0,1': close its brackets, and quote its strings"),
        ("rates=1", "no parameter 'rates': did you mean rate"),
        ("rate=[0.1,0.2]", r"rate is \[0.1, 0.2\], but its default"),
        ("rate=0.1..0.2", "rate is '0.1..0.2', but its default"),
        ("seed=0..4.5", "seed is '0..4.5', but its default"),
        ("rate", "-p got 'rate'"),
        ("seed=0..9999999999", "seed is 0..9999999999: give at most 100,000 values"),
        ("seed=1:30", "seed is '1:30', but its default"),
    ):
        with pytest.raises(ValueError, match=sentence):
            GRID.grid([option])


def test_combinations_are_the_product_with_the_last_name_fastest():
    values = {"rate": np.array([0.1, 0.2]), "seed": range(3), "mode": "full"}
    expected = [
        {"rate": rate, "seed": seed, "mode": "full"} for rate in (0.1, 0.2) for seed in range(3)
    ]
    rows = GRID.combinations(values)
    assert rows == expected == json.loads(json.dumps(rows))
    assert GRID.combinations({}) == [{}]
    assert len(GRID.combinations({"root": [True, 1, 1.0]})) == 3
    assert parameters.varying(rows) == ["rate", "seed"]
    assert parameters.varying(rows[:1]) == parameters.varying([]) == []


def test_bad_grids_are_refused():
    for values, sentence in (
        ({"rate": []}, "rate has no values: give one or more"),
        ({"rate": [0.1, 0.2, 0.10]}, "rate contains 0.1 twice: give each value once"),
        ({"rate": [1, 1.0]}, "rate contains 1.0 twice"),
        ({"seeds": [0, [0]]}, r"seeds contains \[0\] twice"),
        ({"rate": [0.1, "high"]}, "rate is 'high'"),
        ({"sede": [1]}, "no parameter 'sede': did you mean seed"),
        ({"seed": range(1000), "rate": np.linspace(0, 1, 101)}, "101,000 combinations: give at"),
    ):
        with pytest.raises(ValueError, match=sentence):
            GRID.combinations(values)
