"""CPU seconds of each notebook with preset "quick": `make quick`.

    python -m benchmarks.quick          all, three times each
    python -m benchmarks.quick 00 03    some anew; others keep what was measured

User and system seconds are those of `astkit run` and of the kernel that it starts, with one thread.
A notebook takes at most `MOST` of both, in the median.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from astkit.files import read_json, write_json
from astkit.stamp import describe, stamp

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("quick.json")
RUNS = 3
MOST = 25.0  # CPU seconds


def notebooks() -> dict[str, Path]:
    """The notebooks by their numbers."""
    return {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("0*.ipynb"))}


def seconds(path: Path) -> dict[str, float]:
    """User and system seconds of one run, of all processes that it starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "astkit", "run", path, "-p", "preset=quick"]
        run = [*command, "--runs", folder]
        subprocess.run(run, check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"user": after.ru_utime - before.ru_utime, "system": after.ru_stime - before.ru_stime}


def median(row: dict[str, Any]) -> tuple[float, float, float]:
    """User and system seconds of a notebook, and both together: medians of its runs."""
    runs = row["runs"]
    both = [run["user"] + run["system"] for run in runs]
    parts = [statistics.median(run[name] for run in runs) for name in ("user", "system")]
    return parts[0], parts[1], statistics.median(both)


def main(numbers: list[str]) -> None:
    """Measure these notebooks, or all, and write what is known of each."""
    known = notebooks()
    if unknown := set(numbers) - set(known):
        raise SystemExit(f"{', '.join(sorted(unknown))}: give some of {', '.join(known)}")
    content = read_json(RESULTS) or {"notebooks": {}}
    content |= {"stamp": stamp(), "load_before": list(os.getloadavg())}
    print(describe(content["stamp"]))
    for number in numbers or known:
        row = {"runs": [seconds(known[number]) for _ in range(RUNS)]}
        row["commit"] = content["stamp"]["commit"]
        content["notebooks"][number] = row
        user, system, both = median(row)
        verdict = "kept" if both <= MOST else "MISSED"
        print(f"{number}: {user:.1f} s user, {system:.1f} s system (at most {MOST:g}: {verdict})")
        write_json(RESULTS, content)


if __name__ == "__main__":
    main(sys.argv[1:])
