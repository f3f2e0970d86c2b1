"""Bytes that selection adds in several processes: the formula of docs/distributed.md is right."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import distributed


def check(row: dict[str, object]) -> None:
    for part, expected in row["formula"].items():  # type: ignore[attr-defined]
        assert row["counted"][part] == pytest.approx(expected, rel=0.2), row  # type: ignore[index]


def test_the_committed_counts_are_those_of_the_formula() -> None:
    figures = json.loads(distributed.RESULTS.read_text())["figures"]
    assert {(row["policy"], row["world"]) for row in figures} == {
        (name, world) for name in distributed.NAMES for world in (2, 3)
    }
    for row in figures:
        steps = distributed.STEPS / (4 if row["policy"] == "auto" else 1)
        now = distributed.formula(row["policy"], row["rows"], row["world"], steps)
        assert tuple(row["formula"].values()) == now
        check(row)


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", distributed.NAMES)
def test_what_is_exchanged_is_counted(name: str, world: int) -> None:
    check(distributed.measured(name, world))  # the first step exchanges more
