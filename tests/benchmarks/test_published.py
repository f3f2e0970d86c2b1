"""The benchmark of published gains runs in short, and the table reads all its entries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import figures, published


@pytest.mark.full
def test_every_part_gives_a_ratio_that_the_table_reads(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / figures.PUBLISHED
    parts = [part for part in published.FIGURES if part != "compile"]  # takes a minute
    published.main(["--rounds", "2", "--out", str(out), "--parts", *parts])
    found = json.loads(out.read_text())["figures"]
    assert len(found) == len(parts)
    for each in found:
        assert each["n"] == 2
        assert 0.2 < each["median"] < 50
    table = figures.table(tmp_path)
    assert (table["run"] == figures.PUBLISHED).sum() == len(parts)
