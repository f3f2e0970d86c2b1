"""What the example of docs/compare.md prints and draws: `python -m tests.benchmarks.example`."""

from __future__ import annotations

import re
import time
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from astkit.files import read_json, write_atomic, write_json
from astkit.stamp import describe, stamp
from tests.benchmarks.bench import HERE, ROOT

PAGE = ROOT / "docs" / "compare.md"
RESULT = HERE / "example.json"
PICTURE = ROOT / "docs" / "static" / "compare.png"


def code() -> str:
    """The first block of Python on the page."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def example() -> str:
    """What it printed, and its picture, as Markdown."""
    result = read_json(RESULT)
    printed, picture = "\n".join(result["lines"]), PICTURE.relative_to(PAGE.parent)
    verdict = result["lines"][-1].rstrip(".").replace("[", "(").replace("]", ")")
    return "\n\n".join(
        [
            f"```text\n{printed}\n```",
            f"![{verdict}]({picture})",
            f"{result['seconds']:.0f} s of CPU time. {describe(result['stamp'])}",
        ]
    )


if __name__ == "__main__":
    names: dict[str, Any] = {}
    environment, start = stamp(), time.process_time()
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code(), PAGE.name, "exec"), names)
    seconds = time.process_time() - start
    lines = printed.getvalue().splitlines()
    write_json(RESULT, {"stamp": environment, "seconds": seconds, "code": code(), "lines": lines})
    write_atomic(PICTURE, names["report"].plot().png(dpi=220))
