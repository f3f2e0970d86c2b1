"""Text pairs: a fixed set from Python documentation, or a user's JSONL file.

A pair is a paragraph and the following one. They are stored in ``data/docs_pairs.jsonl.gz``, since
other package versions give other pairs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from astkit.files import shipped

FILE = "docs_pairs.jsonl.gz"
VALIDATION_SHARE = 0.15
_FORM = '{"source": "some words", "target": "some words"}'


@dataclass(frozen=True)
class TextPair:
    """``source``: a paragraph; ``target``: the next one; ``origin``: package and version, such as
    "numpy 2.4.6", empty if unknown."""

    source: str
    target: str
    origin: str = ""


def words(text: str) -> list[str]:
    """The words of ``text`` in lower case: runs of letters, digits and underscores."""
    return re.findall(r"\w+", text.lower())


def in_validation(source: str) -> bool:
    """Whether a pair with this source is in the validation part.

    Depends only on the source's words (BLAKE2b), so equal sources are always in the same part.
    """
    digest = hashlib.blake2b(" ".join(words(source)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < VALIDATION_SHARE * 2**64


def docs_pairs() -> list[TextPair]:
    """The stored pairs, as they come with the package and its exports."""
    return read_pairs(shipped(f"data/{FILE}"))


def read_pairs(path: str | os.PathLike[str]) -> list[TextPair]:
    """The pairs of a JSONL file, plain or gzipped: ``{"source": ..., "target": ...}`` per line.

    Raises ``FileNotFoundError`` for a missing file, and ``ValueError`` for one that is damaged or
    empty, or has a line without words in source or target.
    """
    path = Path(path).expanduser()
    content = path.read_bytes()
    try:
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        lines = content.decode().split("\n")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as JSON lines ({error}): rewrite it") from error
    pairs = [_pair(line, f"{path} line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise ValueError(f"{path} contains no pair: give lines of the form {_FORM}")
    return pairs


def _pair(line: str, where: str) -> TextPair:
    with suppress(ValueError, KeyError, TypeError):
        entry = json.loads(line)
        source, target = entry["source"], entry["target"]
        if all(isinstance(side, str) and words(side) for side in (source, target)):
            return TextPair(source, target, str(entry.get("origin", "")))
    raise ValueError(f"{where} is {line.strip()[:60]!r}: give {_FORM}")
