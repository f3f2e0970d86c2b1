"""The speed that the kit promises, held to its bounds; measure.py says what is compared.

The median decides; the interval is recorded with it. Full rounds under ASTKIT_FULL=1. One thread:
where something else runs, threads that wait for one another turn 4 ms into 250.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.benchmarks import measure

FULL = os.environ.get("ASTKIT_FULL") == "1"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.full
@pytest.mark.benchmark
@pytest.mark.parametrize("name", measure.FIGURES)
def test_ratio(name: str, record_property: Callable[[str, object], None]) -> None:
    figure, *rounds = measure.FIGURES[name]
    result = figure(rounds[FULL])
    for key, value in result.items():
        record_property(key, value)
    print(measure.line(result))
    assert result["kept"] is not False, measure.line(result)
