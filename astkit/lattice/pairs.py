"""Pairs of texts: the frozen ones from Python's own documentation, or a user's JSONL file.

A pair is a paragraph and the one that follows it. Other versions of the packages give other pairs,
so the ones that results refer to are frozen in one file, ``data/docs_pairs.jsonl.gz``, which
``python -m tests.benchmarks.docs_pairs`` has written.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import sysconfig
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from astkit.datasets.cifar10 import search_places

FILE = "docs_pairs.jsonl.gz"
# beside the package, not in it: what an editable install copies there would hide the checkout
SHARE = Path(sysconfig.get_path("data")) / "share" / "astkit"
VALIDATION_SHARE = 0.15
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class TextPair:
    """``source``: a paragraph; ``target``: the one after it; ``origin``: where it was taken from,
    such as "numpy 2.4.6", empty if unknown."""

    source: str
    target: str
    origin: str = ""


def words(text: str) -> list[str]:
    """The words of ``text`` in lower case: runs of letters, digits and underscores."""
    return _WORDS.findall(text.lower())


def is_prose(pair: TextPair) -> bool:
    """Whether both sides have from 3 to 80 words."""
    return all(3 <= len(words(side)) <= 80 for side in (pair.source, pair.target))


def in_validation(source: bytes | str) -> bool:
    """Whether a pair with this source belongs to the validation part, whatever else there is.

    A function of the source alone (BLAKE2b), so equal sources are never on both sides; a text
    counts as its words, so that spaces and capitals do not tell two of them apart.
    """
    key = " ".join(words(source)).encode() if isinstance(source, str) else source
    number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return number < VALIDATION_SHARE * 2**64


def docs_pairs(root: str | os.PathLike[str] | None = None) -> list[TextPair]:
    """The frozen pairs, from the first of: ``root``, the folder that ``ASTKIT_DATA`` names, the
    place where a wheel puts them, ``data/`` of the checkout, ``data/`` of the current folder.

    Raises ``FileNotFoundError`` that says how to write them where none has the file, and
    ``ValueError`` for a damaged one.
    """
    places = search_places(None if root is None else Path(root))
    places.insert(len(places) - 1, SHARE)
    for place in places:
        if (place / FILE).is_file():
            return read_pairs(place / FILE)
    raise FileNotFoundError(
        f"the frozen text pairs, {FILE}, are in none of {', '.join(map(str, places))}: copy the"
        " file from the project's data/ folder to one of them, or name its folder in ASTKIT_DATA"
    )


def read_pairs(path: str | os.PathLike[str]) -> list[TextPair]:
    """The pairs of a JSONL file, plain or gzipped: ``{"source": ..., "target": ...}`` a line.

    Raises ``FileNotFoundError`` where there is none, and ``ValueError`` for a file that cannot be
    read, is empty, or holds a line that is not such a pair with a word on each side.
    """
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            pairs = [
                _pair(line, f"{path} line {n}") for n, line in enumerate(file, 1) if line.strip()
            ]
    except FileNotFoundError:
        raise
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON lines ({error}): write it anew") from error
    if not pairs:
        raise ValueError(f"{path} holds no pair: give lines of the form {_FORM}")
    return pairs


_FORM = '{"source": "some words", "target": "some words"}'


def _pair(line: str, where: str) -> TextPair:
    try:
        entry = json.loads(line)
        source, target = entry["source"], entry["target"]
        usable = all(isinstance(side, str) and words(side) for side in (source, target))
    except (ValueError, KeyError, TypeError):
        usable = False
    if not usable:
        raise ValueError(f"{where} is {line.strip()[:60]!r}: give {_FORM}")
    return TextPair(source, target, str(entry.get("origin", "")))


def topics_pairs() -> list[TextPair]:
    """Pairs of the language reference that every Python brings along, `pydoc_data.topics`."""
    from pydoc_data.topics import topics

    pairs = [
        TextPair(" ".join(first.split()), " ".join(second.split()))
        for _, text in sorted(topics.items())
        for first, second in pairwise(text.split("\n\n"))
    ]
    return list({" ".join(words(pair.source)): pair for pair in pairs if is_prose(pair)}.values())
