"""What the first examples of README and docs/compare.md print.

``python -m benchmarks.example`` runs both anew, or those that are named after it.
"""

from __future__ import annotations

import re
import sys
import textwrap
import time
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from astkit.files import read_json, write_atomic, write_json
from astkit.stamp import describe, stamp
from benchmarks import natural_training
from benchmarks.bench import HERE, ROOT

PAGES = {"docs/compare.md": HERE / "example.json", "README.md": HERE / "example_readme.json"}
PICTURE = ROOT / "docs" / "static" / "compare.png"
KNOWN = re.compile(
    r"forecast: |on the [\d,]+ test rows|training (on|is short)|Next: "
    r"|auto: (better|worse|no|cannot)"
)
"""How lines begin that README shows."""
BIKES = "bikes, last three months"


def code(page: str = "docs/compare.md") -> str:
    """The first block of Python on a page."""
    found = re.search(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def example() -> str:
    """What that of docs/compare.md printed, and its picture, as Markdown."""
    result = read_json(PAGES["docs/compare.md"])
    printed, picture = "\n".join(result["lines"]), PICTURE.relative_to(ROOT / "docs")
    verdict = next(line for line in result["lines"] if line.startswith("aim: "))
    verdict = verdict.rstrip(".").replace("[", "(").replace("]", ")")
    return "\n\n".join(
        [
            f"```text\n{printed}\n```",
            f"![{verdict}]({picture})",
            f"{result['seconds']:.0f} s of CPU time. {describe(result['stamp'])}",
        ]
    )


def on_bikes() -> str:
    """What that of README printed, each line once."""
    result = read_json(PAGES["README.md"])
    lines = dict.fromkeys(line.rstrip(".") for line in result["lines"] if KNOWN.match(line))
    printed = "\n".join(textwrap.fill(line, 88, subsequent_indent="  ") for line in lines)
    found = natural_training.gains(read_json(natural_training.RESULTS)["entries"])
    later = next(each["aim"] for each in found if each["shift"] == BIKES and each["later"])
    mean, low, high = later
    if low > 0 or high < 0:
        raise ValueError(f"later months: {later} excludes 0, unlike the sentence below")
    return (
        f"```text\n{printed}\n```\n"
        f"An excerpt; the call takes {result['seconds']:.0f} s of CPU time. Where the test hours"
        f" are of later months, nothing can be told: over {natural_training.SPLITS} splits and"
        f" longer runs `aim` gains {mean:.1f} % [{low:.1f}, {high:.1f}]."
    )


def main() -> None:
    """Run the examples as they stand."""
    for page in sys.argv[1:] or PAGES:
        names: dict[str, Any] = {}
        environment, start = stamp(), time.process_time()
        with redirect_stdout(StringIO()) as printed:
            exec(compile(code(page), page, "exec"), names)
        seconds = time.process_time() - start
        lines = printed.getvalue().splitlines()
        content = {"stamp": environment, "seconds": seconds, "code": code(page), "lines": lines}
        write_json(PAGES[page], content)
        if page == "docs/compare.md":
            write_atomic(PICTURE, names["report"].plot().png(dpi=220))


if __name__ == "__main__":
    main()
