"""How many small faults does the suite catch, and how many of them only in its full form?

    python -m tests.benchmarks.mutants --count 60 --out tests/benchmarks/mutants.json

1. The whole suite runs once under `coverage`, which notes for each line the tests that reach it.
2. Faults are drawn, with a seed, from those that can be made in a function of the four packages on
   a line that a test reaches: another comparison, operator or constant, a condition negated, a
   statement left out.
3. For each fault, in a copy of the tree: the fast tests that reach its line, the quickest first,
   until one fails or 60 s of processor time are over; if none fails, those of ``make test-full``.

A result is saved after each fault, and the same command resumes.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest
from scipy.stats import binomtest

from astkit.files import write_atomic
from astkit.stamp import stamp

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gating", "trainers", "datasets", "comparison")
SECONDS = 60
Tests = dict[str, tuple[float, bool]]
"""Seconds of each test, and whether only ``make test-full`` runs it."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One fault: the statement in ``path`` that begins at ``line`` becomes ``becomes``."""

    path: str
    line: int
    last: int
    statement: str
    becomes: str


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Every fault that can be made in a statement of a function of ``source``."""
    tree = ast.parse(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen: set[int] = set()
    for statement in (s for function in functions for s in ast.walk(function)):
        if not isinstance(statement, ast.stmt) or id(statement) in seen:
            continue
        seen.add(id(statement))
        if isinstance(
            statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.AnnAssign
        ):
            span = statement.lineno, statement.end_lineno or statement.lineno
            changes = _changed(statement)
        elif isinstance(statement, ast.If | ast.While):
            span = statement.lineno, statement.body[0].lineno - 1
            changes = _headers(statement)
        else:
            continue
        if _is_text(statement) or statement.col_offset == 0:
            continue
        before = ast.get_source_segment(source, statement) or ""
        for text in changes:
            yield Mutant(path, *span, before.splitlines()[0], text)


def _is_text(statement: ast.stmt) -> bool:
    """A docstring: no test reaches it."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _headers(statement: ast.If | ast.While) -> Iterator[str]:
    word = "if" if isinstance(statement, ast.If) else "while"
    for test in (f"not ({ast.unparse(statement.test)})", *_changed(statement.test)):
        yield f"{word} {test}:"


def _changed(node: ast.AST) -> Iterator[str]:
    """``node`` as source, with one place changed, for every place where that can be done."""
    places = len([*ast.walk(node)])
    for index in range(places):
        twin = copy.deepcopy(node)
        if _change([*ast.walk(twin)][index]):
            yield ast.unparse(ast.fix_missing_locations(twin))
    if isinstance(node, ast.Expr | ast.AugAssign):
        yield "pass"
    if isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "return None"


def _change(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
    else:
        return False
    return True


def mutated(source: str, mutant: Mutant) -> str:
    """``source`` with the fault; lines below it keep their numbers."""
    lines = source.splitlines(keepends=True)
    first = lines[mutant.line - 1]
    indent = first[: len(first) - len(first.lstrip())]
    text = first.lstrip()
    word = "el" if text.startswith("elif ") and mutant.becomes.startswith("if ") else ""
    rest = ["\n"] * (mutant.last - mutant.line)
    lines[mutant.line - 1 : mutant.last] = [f"{indent}{word}{mutant.becomes}\n", *rest]
    return "".join(lines)


class Recorder:
    """A pytest plugin that notes the tests that reach each line, and the seconds of each test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tests: Tests = {}
        sources = [str(ROOT / "astkit" / name) for name in FOLDERS]
        self.coverage = coverage.Coverage(
            data_file=str(folder / f"lines.{os.getpid()}"), source=sources, config_file=False
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # beside xdist the controller hears of every worker's tests too: only what ran here counts
        if report.when == "call" and report.passed and not hasattr(report, "node"):
            full = "full" in report.keywords
            self.tests[report.nodeid] = (round(report.duration, 3), full)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        write_atomic(self.folder / f"tests.{os.getpid()}.json", json.dumps(self.tests))


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder where this module is given to pytest with ``-p``."""
    # a tracer would distort the timings of those that run alone
    folder = os.environ.get("ASTKIT_LINES")
    if folder and config.option.markexpr != "alone":
        config.pluginmanager.register(Recorder(Path(folder)))


def record(folder: Path, options: list[str]) -> None:
    """Run the whole suite and keep in ``folder`` which tests reach which line."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", __spec__.name, *options]
    environment = {"ASTKIT_LINES": str(folder), "ASTKIT_FULL": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False)


def reached(folder: Path) -> tuple[dict[tuple[str, int], set[str]], Tests]:
    """The tests that reach each (path, line), and all tests that passed."""
    tests: Tests = {}
    for path in folder.glob("tests.*.json"):
        tests.update({name: tuple(value) for name, value in json.loads(path.read_text()).items()})
    lines: dict[tuple[str, int], set[str]] = {}
    for path in folder.glob("lines.*"):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(ROOT).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                lines.setdefault((name, line), set()).update(tests.keys() & set(contexts))
    return lines, tests


def draw(lines: dict[tuple[str, int], set[str]], count: int, seed: int) -> list[Mutant]:
    """``count`` faults on reached lines, at most one a statement."""
    every: dict[tuple[str, int], list[Mutant]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / "astkit" / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for mutant in mutants_of(name, path.read_text()):
                if lines.get((name, mutant.line)):
                    every.setdefault((name, mutant.line), []).append(mutant)
    generator = random.Random(seed)
    places = generator.sample(sorted(every), min(count, len(every)))
    return [generator.choice(every[place]) for place in places]


def judge(mutant: Mutant, names: set[str], tests: Tests) -> dict[str, Any]:
    """Which of the two suites catches ``mutant``."""
    quickest = sorted(names, key=lambda name: tests[name][0])
    fast = [name for name in quickest if not tests[name][1]]
    slow = [name for name in quickest if tests[name][1]]
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        _copy_tree(tree)
        target = tree / mutant.path
        target.write_text(mutated(target.read_text(), mutant))
        caught_fast, over = _fails(tree, fast, tests)
        caught, slow_over = (caught_fast, False) if caught_fast else _fails(tree, slow, tests)
    found = {"fast": caught_fast, "full": caught, "time_over": over or slow_over}
    return {**asdict(mutant), "tests": len(names), **found}


def _copy_tree(tree: Path) -> None:
    tree.mkdir()
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)


def _fails(tree: Path, names: list[str], tests: Tests) -> tuple[str, bool]:
    """The test that fails, if any ("hangs" where all should end soon), and whether time ran out."""
    if not names:
        return "", False
    (tree / "names").write_text("\n".join(names))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "@names"]
    environment = {**os.environ, "ASTKIT_FULL": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "500"}
    environment["PYTHONPATH"] = str(tree)  # before the installed package
    options = {"cwd": tree, "env": environment, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, **options, preexec_fn=_limit, timeout=5 * SECONDS)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode < 0:
        soon = sum(tests[name][0] for name in names) < SECONDS / 4
        return ("hangs", False) if soon else ("", True)
    if done.returncode == 0:
        return "", False
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split()[1] if lines else f"exit status {done.returncode}", False


def _limit() -> None:
    """Processor time, as other work on the machine does not count."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def share(caught: int, count: int) -> list[float]:
    """Share and its 95 % interval (Wilson)."""
    interval = binomtest(caught, count).proportion_ci(method="wilson")
    return [caught / count, float(interval.low), float(interval.high)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=Path, default=ROOT / "out" / "lines", help="coverage")
    parser.add_argument("--out", type=Path, required=True)
    arguments, options = parser.parse_known_args()
    if not arguments.lines.exists():
        record(arguments.lines, options)
    lines, tests = reached(arguments.lines)
    drawn = draw(lines, arguments.count, arguments.seed)
    saved = json.loads(arguments.out.read_text())["mutants"] if arguments.out.exists() else []
    results = {(entry["path"], entry["line"], entry["becomes"]): entry for entry in saved}
    todo = [m for m in drawn if (m.path, m.line, m.becomes) not in results]
    with ThreadPoolExecutor(2) as pool:
        for entry in pool.map(lambda m: judge(m, lines[m.path, m.line], tests), todo):
            results[entry["path"], entry["line"], entry["becomes"]] = entry
            print(*(entry[name] or "-" for name in ("path", "line", "fast", "full")), flush=True)
            _save(arguments.out, arguments.seed, [*results.values()])


def _save(path: Path, seed: int, results: list[dict[str, Any]]) -> None:
    counts = {name: sum(bool(entry[name]) for entry in results) for name in ("fast", "full")}
    shares = {name: share(count, len(results)) for name, count in counts.items()}
    report = {"stamp": stamp(), "seed": seed, "caught": shares, "mutants": results}
    write_atomic(path, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
