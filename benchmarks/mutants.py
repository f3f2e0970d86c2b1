"""How many small faults does the suite catch?

    rm -rf out/lines out/mutants.json
    python -m benchmarks.mutants --count 60 --seed 27 --out out/mutants.json
    cp out/mutants.json benchmarks

1. The tests of ``make test`` but those of notebooks and browsers run once under `coverage`, which
   notes for each line the tests that reach it (out/lines).
2. Faults are drawn, with a seed, from those that can be made in a function of the five packages on
   a line that a test reaches: another comparison, operator or constant, a condition negated, a
   statement left out.
3. For each fault, in a copy of the tree: the tests that reach its line, the quickest first, until
   one fails or 60 s of processor time are over.

Results are saved after each fault, and the same command resumes. Local changes are in the copies.
"""

from __future__ import annotations

import ast
import copy
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

from astkit.files import read_json, write_json
from astkit.stamp import stamp
from benchmarks import bench
from benchmarks.bench import ROOT

RESULTS = bench.HERE / "mutants.json"
LINES = ROOT / "out" / "lines"
FOLDERS = ("aim", "gating", "trainers", "datasets", "comparison")
SECONDS = 60
Lines = dict[tuple[str, int], set[str]]
"""The tests that reach each (path, line)."""

PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
)
WHOLE = ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.AnnAssign
SWAPPED = {old: new for pair in PAIRS for old, new in (pair, pair[::-1])}
SWAPPED |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult}


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
        if isinstance(statement, WHOLE) and not _is_text(statement):
            span = statement.lineno, statement.end_lineno or statement.lineno
            changes = _changed(statement)
        elif isinstance(statement, ast.If | ast.While):
            span = statement.lineno, statement.body[0].lineno - 1
            changes = _headers(statement)
        else:
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
    """Change ``node`` in place, if that can be done."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        node.ops[0] = SWAPPED[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]()
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
        self.tests: dict[str, float] = {}
        sources = [str(ROOT / "astkit" / name) for name in FOLDERS]
        data = str(folder / f"lines.{os.getpid()}")
        self.coverage = coverage.Coverage(data_file=data, source=sources, config_file=False)
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
            self.tests[report.nodeid] = round(report.duration, 3)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        write_json(self.folder / f"tests.{os.getpid()}.json", self.tests)


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder where this module is given to pytest with ``-p``."""
    if folder := os.environ.get("ASTKIT_LINES"):
        config.pluginmanager.register(Recorder(Path(folder)))


def record(folder: Path, tests: list[str]) -> None:
    """Run ``tests``, or the suite, and keep in ``folder`` which of them reach which line."""
    folder.mkdir(parents=True)
    options = ["-q", "-n", "2", "--dist", "loadfile", "-m", "not alone and not full"]
    # notebooks run in processes of their own
    options += ["--ignore", "tests/notebooks", "--ignore", "tests/browser"]
    command = [sys.executable, "-m", "pytest", "-p", __spec__.name, *options, *tests]
    environment = {**os.environ, "ASTKIT_LINES": str(folder), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def reached(folder: Path) -> tuple[Lines, dict[str, float]]:
    """The tests that reach each line, and the seconds of all tests that passed."""
    tests: dict[str, float] = {}
    for path in folder.glob("tests.*.json"):
        tests |= read_json(path)
    lines: Lines = {}
    for path in folder.glob("lines.*"):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(ROOT).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                lines.setdefault((name, line), set()).update(tests.keys() & set(contexts))
    return lines, tests


def draw(lines: Lines, count: int, seed: int) -> list[Mutant]:
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


def judge(mutant: Mutant, names: set[str], tests: dict[str, float]) -> dict[str, Any]:
    """Whether the tests ``names`` catch ``mutant``."""
    quickest = sorted(names, key=tests.__getitem__)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        target = tree / mutant.path
        target.write_text(mutated(target.read_text(), mutant))
        caught, over = _fails(tree, quickest, sum(tests[name] for name in names))
    return {**asdict(mutant), "tests": len(names), "caught": caught, "time_over": over}


def _fails(tree: Path, names: list[str], seconds: float) -> tuple[str, bool]:
    """The test that fails, if any ("hangs" where all should end soon), and whether time ran out."""
    (tree / "names").write_text("\n".join(names))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "@names"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "500"}
    environment["PYTHONPATH"] = str(tree)  # before the installed package
    options = {"cwd": tree, "env": environment, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, **options, preexec_fn=_limit, timeout=5 * SECONDS)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode < 0:
        return ("hangs", False) if seconds < SECONDS / 4 else ("", True)
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


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["path"], entry["line"], entry["statement"], entry["becomes"]


def main() -> None:
    """Draw faults and see which of them the tests catch; ``--tests``: only those, to try it out."""
    asked = bench.options(main.__doc__, RESULTS, count=120, seed=0, tests="")
    if not LINES.exists():
        record(LINES, asked.tests.split())
    lines, tests = reached(LINES)
    drawn = draw(lines, asked.count, asked.seed)
    before = {_key(entry): entry for entry in read_json(asked.out).get("mutants", [])}
    keys = {_key(asdict(mutant)): mutant for mutant in drawn}
    saved = [before[key] for key in keys if key in before]
    todo = [mutant for key, mutant in keys.items() if key not in before]
    with ThreadPoolExecutor(2) as pool:
        for entry in pool.map(lambda m: judge(m, lines[m.path, m.line], tests), todo):
            saved.append(entry)
            print(*(entry[name] or "-" for name in ("path", "line", "caught")), flush=True)
            caught = share(sum(bool(each["caught"]) for each in saved), len(saved))
            report = {"stamp": stamp(), "seed": asked.seed, "caught": caught, "mutants": saved}
            write_json(asked.out, report)


if __name__ == "__main__":
    main()
