"""What the benches share: options, figures with intervals, stamped JSON, tables in Markdown."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from astkit.files import write_json
from astkit.profiling import Timings, bootstrap_interval
from astkit.stamp import describe, stamp
from astkit.trainers import Budget

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
RESULTS = ROOT / "notebooks" / "results"  # what notebooks read; the rest lies beside its script
BATCH = 128
ENDLESS = Budget(epochs=1e9)
Figure = dict[str, Any]


def options(
    doc: str | None, out: Path | None, arguments: list[str] | None = None, **defaults: Any
) -> Namespace:
    """Options of the command line: ``--out``, and one for each of ``defaults``, with its type.

    ``False`` makes a switch, a list an option with several values (of strings: some of these), a
    type an option that is ``None`` unless given.
    """
    parser = ArgumentParser(description=doc)
    parser.add_argument("--out", type=Path, default=out, required=out is None)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, list):
            kind = type(default[0])
            some = default if kind is str else None
            parser.add_argument(flag, type=kind, nargs="+", default=default, choices=some)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args(arguments)


def figure(
    name: str,
    values: Sequence[float],
    meaning: str,
    at_least: float | None = None,
    at_most: float | None = None,
    **context: Any,
) -> Figure:
    """Median of one value a round, its 95 % bootstrap interval, and whether it keeps a bound."""
    median = float(np.median(values))
    low, high = bootstrap_interval(values)
    bound = at_least if at_most is None else at_most
    kept = None
    if bound is not None:
        kept = median <= bound if at_most is not None else median >= bound
    return {
        "name": name,
        "median": median,
        "low": low,
        "high": high,
        "n": len(values),
        "bound": bound,
        "sense": "at least" if at_most is None else "at most",
        "kept": kept,
        "meaning": meaning,
        **context,
    }


def ratio(name: str, times: Timings, a: str, b: str, meaning: str, **more: Any) -> Figure:
    """A `figure` of the seconds of arm ``a`` over those of ``b``, taken within a round."""
    values = [over / under for over, under in zip(times.seconds[a], times.seconds[b], strict=True)]
    seconds = {arm: times.median(arm) for arm in times.seconds}
    return figure(name, values, meaning, **{"seconds": seconds, **more})


def line(result: Figure) -> str:
    """A figure in one line."""
    bound = f"{result['sense']} {result['bound']:g}: " if result["bound"] is not None else ""
    verdict = {True: "kept", False: "MISSED", None: "no bound"}[result["kept"]]
    spread = f"[{result['low']:.4g}, {result['high']:.4g}], n = {result['n']}"
    return f"{result['name']}: {result['median']:.4g} {spread} ({bound}{verdict})"


def record(
    out: Path, results: Iterable[Figure], line: Callable[[Figure], str] = line, **more: Any
) -> None:
    """Write ``results`` to ``out`` in one piece, with the stamp from before the first; prints them.

    The load is that of the last 1, 5, 15 minutes: well below "cpus" on a quiet machine.
    """
    environment, load_before = stamp(), os.getloadavg()
    print(describe(environment))
    figures = []
    for result in results:
        figures.append(result)
        print(line(result), flush=True)
    content = {"stamp": environment, "load_before": list(load_before), **more, "figures": figures}
    write_json(out, content)


def advance(records: Iterator[Any], steps: int) -> None:
    """Take ``steps`` records of a run."""
    assert len(list(islice(records, steps))) == steps


@contextmanager
def one_thread() -> Iterator[None]:
    """Restores torch's number of CPU threads at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def markdown(table: pd.DataFrame) -> str:
    """``table`` with its index as first column, as a Markdown table."""
    flat = table.reset_index()
    rows = [[str(value) for value in row] for row in flat.itertuples(index=False)]
    head = [str(name) for name in flat.columns]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def summary(value: Any) -> str:
    """The first sentence of a docstring, on one line of a table."""
    return one_line(getattr(value, "__doc__", ""))


def one_line(text: str | None) -> str:
    """The first paragraph of ``text`` on one line of a table."""
    return " ".join((text or "").split("\n\n")[0].split()).replace("|", "\\|")
