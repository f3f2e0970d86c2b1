"""A step is short to read: few calls, in few files."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.calls import counted


@pytest.mark.parametrize(
    ("policy", "most", "most_files"),
    [(None, 100, 10), ({"name": "gate", "rate": 0.25}, 180, 14)],
)
def test_a_step_makes_few_calls_in_few_files(policy: Any, most: int, most_files: int) -> None:
    calls, files, by_function = counted(policy)
    assert calls <= most, by_function.most_common(20)
    assert len(files) <= most_files, files
