"""Mutants are what they say, and the committed figures hold."""

from __future__ import annotations

import json

from benchmarks import mutants

SOURCE = '''\
LIMIT = 3

def kept(values, limit=LIMIT):
    """The values up to limit."""
    if not values:
        return None
    elif (
        limit > 3
    ):
        limit -= 1
    log(values)
    return [v for v in values if v <= limit and v != 0]
'''


def test_a_mutant_changes_one_statement_of_a_function_and_moves_no_line() -> None:
    drawn = list(mutants.mutants_of("x.py", SOURCE))
    changed = {(mutant.line, mutant.becomes) for mutant in drawn}
    assert {
        (5, "if not (not values):"),
        (7, "if limit >= 3:"),
        (10, "limit += 1"),
        (10, "pass"),
        (11, "pass"),
        (12, "return [v for v in values if v < limit and v != 0]"),
        (12, "return [v for v in values if v <= limit or v != 0]"),
        (12, "return None"),
    } <= changed
    assert {line for line, _ in changed} <= {5, 6, 7, 10, 11, 12}
    for mutant in drawn:
        text = mutants.mutated(SOURCE, mutant)
        compile(text, "x.py", "exec")
        assert text != SOURCE
        assert len(text.splitlines()) == len(SOURCE.splitlines())


def test_the_committed_share_is_that_of_its_mutants() -> None:
    report = json.loads(mutants.RESULTS.read_text())
    caught = [bool(each["caught"]) for each in report["mutants"]]
    assert len(caught) >= 60
    assert report["caught"] == mutants.share(sum(caught), len(caught))
