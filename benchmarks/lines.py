"""Counts lines of the package: ``python -m benchmarks.lines [COMMIT]``, by part and in all.

Logic is what is left of a file without imports, docstrings, comments and blank lines; text in
quotes counts where it is not a docstring. Without a commit, the files of the checkout are read.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator

from benchmarks.bench import ROOT

SPACE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def logic(text: str) -> int:
    """Lines of ``text`` that hold code, without imports and docstrings."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SPACE:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        quoted = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        bare = quoted and isinstance(node.value.value, str)
        if isinstance(node, ast.Import | ast.ImportFrom) or bare:
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def files(commit: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of each Python file in astkit/."""
    if commit is None:
        for path in sorted((ROOT / "astkit").rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        return
    listed = ["git", "ls-tree", "-r", "--name-only", commit, "astkit"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if name.endswith(".py"):
            shown = ["git", "show", f"{commit}:{name}"]
            yield name, subprocess.run(shown, cwd=ROOT, capture_output=True, text=True).stdout


def main(commit: str | None = None) -> None:
    lines: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for name, text in files(commit):
        _, part, *rest = name.split("/")
        part = part if rest else "ground"
        lines[part] += text.count("\n")
        code[part] += logic(text)
    for part in sorted(lines):
        print(f"{part:14} {lines[part]:7,} lines {code[part]:7,} of logic")
    print(f"{'all':14} {lines.total():7,} lines {code.total():7,} of logic")


if __name__ == "__main__":
    main(*sys.argv[1:2])
