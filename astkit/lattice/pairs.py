"""Pairs of texts: the frozen ones from Python's own documentation, or a user's JSONL file.

A pair is a paragraph and the one that follows it. `collect` reads them out of the documentation
that is installed: paragraphs of ``pydoc_data.topics``, and of the docstrings of the standard
library, numpy and torch the summary with the paragraph after it. Nothing is imported for that; the
sources are parsed. Other versions of the packages give other pairs, so the ones that results refer
to are frozen in one file, ``data/docs_pairs.jsonl.gz``::

    python -m astkit.lattice.pairs data/docs_pairs.jsonl.gz
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import inspect
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from astkit.datasets.cifar10 import search_places
from astkit.files import write_atomic

FILE = "docs_pairs.jsonl.gz"
# beside the package, not in it: what an editable install copies there would hide the checkout
SHARE = Path(sysconfig.get_path("data")) / "share" / "astkit"
WORDS = re.compile(r"\w+")
VALIDATION_SHARE = 0.15
MIN_WORDS, MAX_WORDS = 3, 80
_SECTION = re.compile(
    r"(parameters?|returns?|args|arguments|raises?|yields?|notes?|examples?|see also|shape|inputs?"
    r"|outputs?|attributes|references|warnings?|keyword args|usage|methods)\b\s*(:|-{3,}|$)",
    re.IGNORECASE,
)
_MARKUP = re.compile(r">>>|\.\. |::$|-{3,}|={3,}|\*{3,}|[|+]-")
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "testing"}
_LEFT_OUT |= {"f2py", "distutils", "_inductor", "_dynamo", "onnx", "ensurepip", "_pyinstaller"}
_TORCH = ("nn", "optim", "distributions", "autograd", "utils", "functional.py", "fft", "linalg")


@dataclass(frozen=True)
class TextPair:
    """``source``: a paragraph; ``target``: the one after it; ``origin``: where it was taken from,
    such as "numpy 2.4.6", empty if unknown."""

    source: str
    target: str
    origin: str = ""


def words(text: str) -> list[str]:
    """The words of ``text`` in lower case: runs of letters, digits and underscores."""
    return WORDS.findall(text.lower())


def in_validation(source: bytes | str, share: float = VALIDATION_SHARE) -> bool:
    """Whether a pair with this source belongs to the validation part, whatever else there is.

    A function of the source alone (BLAKE2b), so equal sources are never on both sides; a text
    counts as its words, so that spaces and capitals do not tell two of them apart.
    """
    key = " ".join(words(source)).encode() if isinstance(source, str) else source
    number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return number < share * 2**64


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
        " file from the project's data/ folder to one of them, name its folder in ASTKIT_DATA, or"
        " write pairs of the packages installed here with python -m astkit.lattice.pairs"
        f" data/{FILE}"
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


def write_pairs(path: str | os.PathLike[str], pairs: Iterable[TextPair]) -> Path:
    """Write ``pairs`` as gzipped JSON lines; equal pairs give equal bytes."""
    lines = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs)
    return write_atomic(path, gzip.compress(lines.encode(), 9, mtime=0))


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


def _usable(source: str, target: str, origin: str) -> Iterator[TextPair]:
    """The pair, each side on one line, if both are prose."""
    pair = TextPair(" ".join(source.split()), " ".join(target.split()), origin)
    sides = (pair.source, pair.target)
    if any(not MIN_WORDS <= len(words(side)) <= MAX_WORDS for side in sides):
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
