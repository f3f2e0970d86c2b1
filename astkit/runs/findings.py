"""Findings of `astkit doctor` and how they are shown."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Literal

Mark = Literal["ok", "--", "!!"]
WIDTH = 80
LEGEND = "ok: here and works   --: not here, may be added   !!: to be fixed"


@dataclass(frozen=True)
class Finding:
    """One thing looked at; ``core`` says that nothing works without it."""

    topic: str
    mark: Mark
    fact: str
    remedy: str = ""
    core: bool = False


def works(findings: list[Finding]) -> bool:
    """Whether the core works."""
    return not any(finding.core and finding.mark != "ok" for finding in findings)


def verdict(findings: list[Finding]) -> str:
    """One sentence on whether the core works."""
    if works(findings):
        return "The core of astkit works here."
    broken = [each.topic for each in findings if each.core and each.mark != "ok"]
    return f"astkit cannot work here: see to {', '.join(broken)} first."


def text(findings: list[Finding]) -> str:
    """The findings for people, in lines of at most 80 columns; commands are not broken."""
    wide = max(len(finding.topic) for finding in findings)
    lines = []
    for each in findings:
        said = f"{each.fact}: {each.remedy}" if each.remedy else each.fact
        # textwrap does not break at a no-break space
        kept = re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", "\xa0"), said)
        head = f"{each.mark}  {each.topic:<{wide}}  "
        lines += textwrap.wrap(
            kept,
            WIDTH,
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([*lines, "", LEGEND, verdict(findings)]).replace("\xa0", " ")
