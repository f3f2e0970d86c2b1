"""Which of astkit's requirements are met here, read from the installed distribution itself."""

from __future__ import annotations

import json
import operator
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from itertools import zip_longest
from pathlib import Path

_CLAUSE = re.compile(r"(<=|>=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Requirement:
    """A package that astkit asks for: ``extra`` is "" for the core, ``wanted`` is such as >=2,<3.

    ``version`` is the installed one, ``None`` where there is none.
    """

    name: str
    wanted: str
    extra: str
    version: str | None

    @property
    def met(self) -> bool:
        """Whether it is installed, in a version that is ``wanted``."""
        return self.version is not None and within(self.version, self.wanted)

    def __str__(self) -> str:
        if self.version is None or self.met:
            return self.name
        return f"{self.name} {self.version} (wanted: {self.wanted})"


def requirements() -> list[Requirement]:
    """What the distribution "astkit" asks for, core and extras, in its own order.

    Raises ``importlib.metadata.PackageNotFoundError`` where astkit runs without being installed.
    """
    return [_parsed(line) for line in metadata.requires("astkit") or []]


def within(version: str, wanted: str) -> bool:
    """Whether the release ``version`` satisfies every clause of ``wanted``, such as ">=2.9,<3".

    Of PEP 440 what astkit's own requirements use: releases of numbers, compared part by part with
    zeros for absent parts; what follows them (2.9.0+cpu, 3.0rc1) is left out of account.
    """
    release = re.match(r"\d+(\.\d+)*", version)
    if release is None:
        return False
    return all(
        _COMPARE[sign](_order(release[0], bound), 0) for sign, bound in _CLAUSE.findall(wanted)
    )


def install_command(extra: str) -> str:
    """The command that installs ``extra`` into this environment, core alone for ""."""
    brackets = f"[{extra}]" if extra else ""
    checkout = _checkout()
    if checkout is None:
        return f"pip install 'astkit{brackets}'"
    own = Path(sys.prefix).resolve() == (checkout / ".venv").resolve()
    return f"{'.venv/bin/pip' if own else 'python -m pip'} install -e '.{brackets}'"


def _checkout() -> Path | None:
    """The checkout that astkit was installed from with ``pip install -e``, or runs from."""
    try:
        origin = metadata.distribution("astkit").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = '{"dir_info": {"editable": true}}'
    editable = json.loads(origin or "{}").get("dir_info", {}).get("editable")
    return Path(__file__).resolve().parents[2] if editable else None


def _parsed(line: str) -> Requirement:
    head, _, marker = line.partition(";")
    name = re.match(r"[\w.-]+", head)
    extra = re.search(r"extra\s*==\s*['\"](.+?)['\"]", marker)
    assert name is not None, line
    wanted = head[name.end() :].strip()
    return Requirement(name[0], wanted, extra[1] if extra else "", _version(name[0]))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _order(a: str, b: str) -> int:
    """-1, 0 or 1: ``a`` is before, the same as or after ``b``."""
    pairs = zip_longest(map(int, a.split(".")), map(int, b.split(".")), fillvalue=0)
    return next(((x > y) - (x < y) for x, y in pairs if x != y), 0)
