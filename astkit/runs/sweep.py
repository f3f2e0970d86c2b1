"""Sweeps: a notebook run with every combination of a grid of parameters.

Each combination has a run folder of its own. Started again, a sweep skips what is complete and does
what is not. Sweeps at the same time share the work: a folder belongs to one process at a time::

    from astkit.runs import sweep

    outcomes = sweep.run("01.ipynb", {"target_rate": [0.05, 0.1], "seed": range(5)}, jobs=2)
    sweep.table(outcomes)

Beyond one machine joblib's back ends hand out the runs. Their workers need this package, and the
notebook and the run folders under the same paths. With Dask, ``address`` being its scheduler's::

    sweep.run(notebook, grid, backend="dask", address="tcp://10.0.0.1:8786")

With any other, or with settings of its own, in a context of joblib's; for Ray that is::

    ray.init(address="auto")
    ray.util.joblib.register_ray()
    with joblib.parallel_config("ray"):
        sweep.run(notebook, grid, jobs=-1)

For any other scheduler, `commands` gives a command line for each run.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib  # type: ignore[import-untyped]

from astkit.runs import execute, grid, notebook
from astkit.runs.notebook import Outcome
from astkit.runs.parameters import Notebook, read

if TYPE_CHECKING:
    import pandas as pd

Given = dict[str, Any]


def run(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    jobs: int = 1,
    root: str | os.PathLike[str] = "runs",
    *,
    threads: int | None = None,
    backend: str | None = None,
    address: str | None = None,
    announce: Callable[[str], object] = print,
) -> list[Outcome]:
    """Run a notebook with every combination of ``values``; a run that fails costs only itself.

    Args:
        path: the notebook.
        values: by parameter, a list (tuple, range, array) of values, or one for all.
        jobs: how many runs at a time; Dask takes as many as its workers have threads.
        root: folder of the run folders.
        threads: CPU threads of each run. Else this machine's are divided among the jobs, unless
            ``OMP_NUM_THREADS`` is set; workers elsewhere keep what is set there.
        backend: "dask", or another back end of joblib's; ``None`` takes that of a
            ``joblib.parallel_config`` around the call, else processes on this machine.
        address: of Dask's scheduler.
        announce: called with a line on what is to be done, and one on the end of each run.

    Returns:
        One outcome a combination, the last name varying fastest.

    Raises:
        ValueError: before anything runs, for parameters that the notebook does not take, or
            impossible jobs or threads.
        FileNotFoundError: where there is no such notebook.
        KeyboardInterrupt: after SIGINT, SIGTERM or SIGHUP, once the runs of this machine have
            ended; a later call resumes. Workers elsewhere finish what they have begun.
    """
    _check(jobs, threads, backend, address)
    plan = read(path)
    rows = grid.combinations(plan, values)
    root = Path(root).resolve()
    outcomes = _complete(plan, rows, root)
    todo = [index for index in range(len(rows)) if index not in outcomes]
    announce(f"{len(rows)} runs, {len(outcomes)} of them complete before")
    with _backend(backend, address, jobs) as active:
        local = bool(getattr(active, "supports_sharedmem", False))
        if local and threads is None and "OMP_NUM_THREADS" not in os.environ:
            at_a_time = min(joblib.effective_n_jobs(jobs), len(todo) or 1)
            threads = max(1, joblib.cpu_count() // at_a_time)
        tasks = [joblib.delayed(_one)(index, plan, rows[index], root, threads) for index in todo]
        start, names = time.perf_counter(), grid.varying(rows)
        with execute.interruptible(local), closing(_results(active, jobs, tasks)) as results:
            for number, (index, done) in enumerate(results, 1):
                outcomes[index] = done
                left = (time.perf_counter() - start) / number * (len(todo) - number)
                if not execute.interrupted():
                    announce(_line(f"{number}/{len(todo)}", names, done, left))
    return [outcomes[index] for index in range(len(rows))]


def commands(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    root: str | os.PathLike[str] = "runs",
    *,
    threads: int | None = None,
) -> list[str]:
    """A command line for each run that is not complete, quoted for a shell.

    Raises what `run` raises before anything runs.
    """
    _check(1, threads, None, None)
    plan = read(path)
    rows = grid.combinations(plan, values)
    done = _complete(plan, rows, root)
    lines = []
    for row in (row for index, row in enumerate(rows) if index not in done):
        words = ["astkit", "run", str(path)]
        for name, value in row.items():
            words += ["-p", f"{name}={plan.to_text(name, value)}"]
        words += ["--runs", str(root)]
        words += [] if threads is None else ["--threads", str(threads)]
        lines.append(shlex.join(words))
    return lines


def table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row a run: the parameters that vary, status, seconds and error."""
    import pandas as pd

    names = grid.varying([done.parameters for done in outcomes])
    rows = [
        {name: done.parameters[name] for name in names}
        | {"status": done.status, "seconds": done.seconds, "error": done.error}
        for done in outcomes
    ]
    return pd.DataFrame(rows, columns=[*names, "status", "seconds", "error"])


def _check(jobs: int, threads: int | None, backend: str | None, address: str | None) -> None:
    if jobs < 1 and jobs != -1:
        raise ValueError(f"jobs is {jobs}: give 1 or more, or -1 for one a CPU")
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}: give 1 or more")
    if address and backend != "dask":
        raise ValueError(f"address is {address!r}: that is for the back end dask")


def _complete(
    plan: Notebook, rows: Sequence[Given], root: str | os.PathLike[str]
) -> dict[int, Outcome]:
    found = {index: notebook.find(plan, row, root) for index, row in enumerate(rows)}
    return {
        index: notebook.outcome(plan, rows[index], record)
        for index, record in found.items()
        if record and record.status == "complete"
    }


@contextmanager
def _backend(name: str | None, address: str | None, jobs: int) -> Iterator[Any]:
    """The back end that hands out the runs: by default this machine's threads, which wait."""
    with ExitStack() as context:
        if name:
            options = {"scheduler_host": address} if address else {}
            context.enter_context(joblib.parallel_config(name, n_jobs=jobs, **options))
        active, _ = joblib.parallel.get_active_backend(prefer="threads")
        yield active


def _results(
    active: Any, jobs: int, tasks: Sequence[Any]
) -> Generator[tuple[int, Outcome], None, None]:
    """What comes of the tasks, as it comes; Ray's back end, for one, tells all of it at the end."""
    telling = bool(getattr(active, "supports_return_generator", False))
    form = "generator_unordered" if telling else "list"
    results = joblib.Parallel(jobs, prefer="threads", return_as=form, batch_size=1)(tasks)
    try:
        yield from results
    finally:
        if telling:
            results.close()  # cancels the tasks that are left where the caller stops early


def _one(
    index: int, plan: Notebook, given: Given, root: Path, threads: int | None
) -> tuple[int, Outcome]:
    if execute.interrupted():
        return index, Outcome(given, "incomplete")
    try:
        return index, notebook.run(plan, given, root, threads=threads)
    except Exception as error:  # a damaged folder or a full disk costs this run alone
        return index, Outcome(given, "failed", error=f"{type(error).__name__}: {error}")


def _line(count: str, names: Sequence[str], done: Outcome, left: float) -> str:
    parts = [count, done.status, *(f"{name}={done.parameters[name]}" for name in names)]
    if done.seconds is not None:
        parts.append(f"{done.seconds:.1f} s")
    return "  ".join(parts) + (f"  (about {timedelta(seconds=round(left))} left)" if left else "")
