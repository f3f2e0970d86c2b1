"""Texts of two kinds, and characters as numbers."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from astkit.datasets.pairs import docs_pairs

MOST = 256  # largest number of different characters
PROSE = "docstrings of scikit-learn 1.9.1 (BSD 3-clause)"
PROSE_SHA256 = "0d3bac9973c87f2b2c3d688754ac23e84fbf3f4bda42477ab496f3fc03b089a5"


def encoded(*texts: str) -> tuple[list[Tensor], int]:
    """Characters of each text as int64 ``[length]``, and the number of different ones.

    Of all texts together, the `MOST` - 1 most frequent characters have a number; others are 0.
    """
    counts = Counter("".join(texts))
    ranked = [character for character, _ in counts.most_common(MOST - 1)]
    number = torch.zeros(sys.maxunicode + 1, dtype=torch.int64)
    number[[ord(character) for character in sorted(ranked)]] = torch.arange(1, len(ranked) + 1)
    codes = (np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64) for text in texts)
    return [number[torch.from_numpy(each)] for each in codes], 1 + len(ranked)


def read_text(path: str | Path) -> str:
    """The text in a file, without a byte order mark; ``ValueError`` if it is not UTF-8."""
    try:
        return Path(path).expanduser().read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): convert it") from error


def documentation() -> str:
    """Paragraphs of the documentation of Python, torch and numpy; see data/README.md."""
    sides = (side for pair in docs_pairs() for side in (pair.source, pair.target))
    return "\n".join(dict.fromkeys(sides))


def pinned_prose() -> str:
    """`prose` of the version that `PROSE` names; ``ValueError`` if another one is installed."""
    text = prose()
    if hashlib.sha256(text.encode()).hexdigest() != PROSE_SHA256:
        raise ValueError(f"the other text is from {PROSE}: install this version of scikit-learn")
    return text


@lru_cache(maxsize=1)
def prose() -> str:
    """Paragraphs of at least 12 words, without code, of the docstrings of the scikit-learn here.

    Its files are parsed, not imported.
    """
    import sklearn

    folder = Path(sklearn.__file__).parent
    paragraphs: dict[str, None] = {}
    for path in sorted(folder.rglob("*.py")):
        if "tests" in path.relative_to(folder).parts:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for part in (ast.get_docstring(node, clean=False) or "").split("\n\n"):
                    words = part.split()
                    if len(words) >= 12 and ">>>" not in part:
                        paragraphs[" ".join(words)] = None
    return "\n".join(paragraphs)
