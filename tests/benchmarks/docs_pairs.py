"""Pairs of paragraphs from the documentation installed here.

``python -m tests.benchmarks.docs_pairs data/docs_pairs.jsonl.gz`` writes the file that the package
reads: paragraphs of ``pydoc_data.topics``, and of the docstrings of the standard library, numpy and
torch the summary with the paragraph after it. Nothing is imported for that; the sources are parsed.
"""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from astkit.datasets.pairs import TextPair, words
from astkit.files import write_atomic

_SECTION = re.compile(
    r"(parameters?|returns?|args|arguments|raises?|yields?|notes?|examples?|see also|shape|inputs?"
    r"|outputs?|attributes|references|warnings?|keyword args|usage|methods)\b\s*(:|-{3,}|$)",
    re.IGNORECASE,
)
_MARKUP = re.compile(r">>>|\.\. |::$|-{3,}|={3,}|\*{3,}|[|+]-")
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "testing"}
_LEFT_OUT |= {"f2py", "distutils", "_inductor", "_dynamo", "onnx", "ensurepip", "_pyinstaller"}
_TORCH = ("nn", "optim", "distributions", "autograd", "utils", "functional.py", "fft", "linalg")


def write_pairs(path: str | os.PathLike[str], pairs: Iterable[TextPair]) -> Path:
    """Write ``pairs`` as gzipped JSON lines; equal pairs give equal bytes."""
    lines = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs)
    return write_atomic(path, gzip.compress(lines.encode(), 9, mtime=0))


def collect() -> list[TextPair]:
    """Pairs of the documentation installed here, in a fixed order.

    Each paragraph is the source of at most one pair and the target of at most one.
    """
    sources: set[str] = set()
    targets: set[str] = set()
    pairs = []
    for pair in (*_topics(), *_standard_library(), *_package("numpy"), *_package("torch", _TORCH)):
        source, target = (" ".join(words(text)) for text in (pair.source, pair.target))
        if source not in sources and target not in targets and source != target:
            sources.add(source)
            targets.add(target)
            pairs.append(pair)
    return pairs


def _topics() -> Iterator[TextPair]:
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        paragraphs = text.split("\n\n")
        for first, second in pairwise(paragraphs):
            if not first.startswith(" ") and not second.startswith(" "):
                yield from _usable(first, second, _python())


def _standard_library() -> Iterator[TextPair]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    yield from _docstrings(folder, sorted(folder.rglob("*.py")), _python())


def _package(name: str, parts: tuple[str, ...] = ("",)) -> Iterator[TextPair]:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent
    roots = [folder / part for part in parts]
    files = [f for root in roots for f in (root.rglob("*.py") if root.is_dir() else [root])]
    version = metadata.version(name).partition("+")[0]
    yield from _docstrings(folder, sorted(files), f"{name} {version}")


def _docstrings(folder: Path, files: Iterable[Path], origin: str) -> Iterator[TextPair]:
    for file in files:
        if not _LEFT_OUT.isdisjoint(file.relative_to(folder).parts):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):  # templates, and files in other encodings
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith("_"):
                continue
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                paragraphs = inspect.cleandoc(ast.get_docstring(node) or "").split("\n\n")
                if len(paragraphs) > 1:
                    yield from _usable(paragraphs[0], paragraphs[1], origin)


def is_prose(pair: TextPair) -> bool:
    """Whether both sides have from 3 to 80 words."""
    return all(3 <= len(words(side)) <= 80 for side in (pair.source, pair.target))


def _usable(source: str, target: str, origin: str) -> Iterator[TextPair]:
    """The pair, each side on one line, if both are prose."""
    pair = TextPair(" ".join(source.split()), " ".join(target.split()), origin)
    sides = (pair.source, pair.target)
    if not is_prose(pair):
        return
    if _SECTION.match(pair.target) or any(_MARKUP.search(side) for side in sides):
        return
    if all(side.isprintable() and ord(max(side)) < 0x2100 for side in sides):
        yield pair


def _python() -> str:
    return f"python {platform.python_version()}"


if __name__ == "__main__":
    found = collect()
    written = write_pairs(sys.argv[1], found)
    print(f"{written}: {len(found)} pairs, {written.stat().st_size} bytes")
