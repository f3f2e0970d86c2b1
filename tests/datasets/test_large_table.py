"""Two million rows of numbers and words fit into three times the size of their file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROWS, CHUNK = 2_000_000, 100_000
WORDS = (3, 8, 20, 100, 1000, 10_000, 50_000, 200_000)
"""Distinct words of each column."""

SCRIPT = """
import json, resource, sys, time
import torch, pandas
import sklearn.decomposition, sklearn.feature_extraction.text, sklearn.pipeline
from astkit import Table
from astkit.datasets.table_parts import divide_table

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before, start = peak(), time.perf_counter()
if sys.argv[2] == "table":
    table = Table(sys.argv[1], label="y")
else:
    table = divide_table(sys.argv[1], "y").train
seconds = time.perf_counter() - start
x, y = table[torch.arange(0, len(table), 10_000)]
stored = table.numbers.nbytes + table.codes.nbytes + sum(each.nbytes for each in table.vectors)
print(json.dumps({
    "peak": peak() - before, "seconds": seconds, "rows": len(table), "stored": stored,
    "inputs": list(x.shape), "finite": bool(x.isfinite().all()),
}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 columns of numbers, 8 of words, and a label."""
    path = tmp_path_factory.mktemp("large") / "large.csv"
    draw = np.random.default_rng(0)
    words = [np.array([f"w{count}_{each:x}" for each in range(count)]) for count in WORDS]
    for start in range(0, ROWS, CHUNK):
        x = draw.normal(size=(CHUNK, 12))
        columns = {f"x{place}": x[:, place] for place in range(12)}
        columns |= {f"c{len(each)}": draw.choice(each, CHUNK) for each in words}
        columns["y"] = x[:, 0] + draw.normal(size=CHUNK)
        frame = pd.DataFrame(columns)
        frame.to_csv(
            path, mode="a", index=False, header=not start, float_format="%.6g", lineterminator="\n"
        )
    return path


@pytest.mark.alone
@pytest.mark.parametrize("read", ["table", "parts"])
def test_a_large_table_takes_three_times_its_file(large: Path, read: str) -> None:
    """Numbers and codes are stored, words become columns when rows are read."""
    command = [sys.executable, "-c", SCRIPT, str(large), read]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    print({**found, "file": large.stat().st_size})
    assert found["rows"] == (ROWS if read == "table" else 1_445_000)
    assert found["inputs"] == [len(range(0, found["rows"], 10_000)), 12 + 4 + 9 + 21 + 5 * 17]
    assert found["finite"]
    assert found["stored"] < 110 * found["rows"]
    assert found["peak"] < 3 * large.stat().st_size
