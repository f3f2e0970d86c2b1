"""Reports small enough to commit."""

from __future__ import annotations

import pytest

from tests.benchmarks.condense import condensed
from tests.runs.test_tables import result, results  # noqa: F401 (a fixture)

# ruff: noqa: F811


def test_condensing_keeps_means_over_each_pass(results):
    kept = condensed({"results": results, "stamp": {}})["results"][0]
    assert kept["steps"] == [{"step": 1.5, "epoch": 0.0, "rate": pytest.approx(0.2)}]
    assert kept["training_steps"] == 2
    assert len(results[0]["steps"]) == 2  # what was condensed is as it was
