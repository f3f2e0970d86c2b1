"""What the last whole run of ``make test-full`` did: date, counts, minutes, the slowest ten tests.

    python -m tests.benchmarks.full_run out/full-*.xml

reads what pytest's ``--junitxml`` wrote and keeps it in tests/benchmarks/full_run.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from astkit.files import write_json
from astkit.stamp import stamp

COUNTS = ("tests", "failures", "errors", "skipped")
RESULT = Path(__file__).with_name("full_run.json")


def summary(reports: list[Path]) -> dict[str, Any]:
    """The parts of one run together."""
    suites = [suite for path in reports for suite in ElementTree.parse(path).iter("testsuite")]
    cases = [case for suite in suites for case in suite.iter("testcase")]
    slowest = sorted(cases, key=lambda case: -float(case.attrib["time"]))[:10]
    return {
        "date": min(suite.attrib["timestamp"] for suite in suites)[:10],
        **{name: sum(int(suite.attrib[name]) for suite in suites) for name in COUNTS},
        "minutes": round(sum(float(suite.attrib["time"]) for suite in suites) / 60, 1),
        "slowest": [
            {
                "test": f"{case.attrib['classname']}.{case.attrib['name']}",
                "seconds": round(float(case.attrib["time"]), 1),
            }
            for case in slowest
        ],
        "stamp": stamp(),
    }


if __name__ == "__main__":
    found = summary([Path(name) for name in sys.argv[1:]])
    write_json(RESULT, found)
    print(json.dumps(found, indent=1))
