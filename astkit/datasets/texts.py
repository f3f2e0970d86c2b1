"""Texts of two kinds, from documentation."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

from astkit.datasets.pairs import docs_pairs


def documentation() -> str:
    """Paragraphs of the documentation of Python, torch and numpy; see data/README.md."""
    sides = (side for pair in docs_pairs() for side in (pair.source, pair.target))
    return "\n".join(dict.fromkeys(sides))


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
