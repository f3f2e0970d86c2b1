"""The origin's figures beside results that are known."""

from __future__ import annotations

from astkit.runs import claims
from tests.runs.test_tables import result, results  # noqa: F401 (a fixture)

# ruff: noqa: F811


def test_claims_stand_beside_the_means_measured(results):
    batch = {"arm": "batched gate", "speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6}
    table = claims.table({"results": results, "batches": [{**batch, "rounds": 9}]})
    measured = table["measured"]
    assert measured["accuracy of the gate"] == "85.0%"
    assert measured["speed over dense, whole run"] == "1.50 x"
    assert measured["speed over dense, a batch, interleaved"] == "1.50 x [1.40, 1.60]"
    assert measured["FLOPs, dense over gate"] == "2.67 x"
    assert measured["energy saved"] == "joules not measured (90.0% of its units)"
    assert set(table["n"]) == {2, 9}


def test_claims_without_a_run_say_so():
    assert set(claims.table({"results": []})["measured"]) == {"not run"}
