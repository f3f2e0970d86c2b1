"""The first command a newcomer types: run notebook 01 and show what came out."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pandas as pd
import papermill

from astkit.runs import compare, tables

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_baseline_vs_gated.ipynb"


def run(out: Path) -> None:
    """Execute notebook 01 into ``out`` and print its tables; the cells' prints show how far it is.

    Raises ``FileNotFoundError`` when the package was installed without its notebooks.
    """
    if not NOTEBOOK.exists():
        raise FileNotFoundError(
            f"{NOTEBOOK.name} is not beside the package: run the demo from a clone of the"
            " repository"
        )
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    executed = out / NOTEBOOK.name
    kept = out / "01_results.json"
    kept.unlink(missing_ok=True)  # a demo runs from its beginning
    shutil.rmtree(kept.with_suffix(""), ignore_errors=True)
    start = time.perf_counter()
    papermill.execute_notebook(
        NOTEBOOK,
        executed,
        {"out": str(out)},
        cwd=NOTEBOOK.parent,
        kernel_name="python3",
        stdout_file=sys.stdout,
        progress_bar=sys.stderr.isatty(),
    )
    seconds = time.perf_counter() - start
    results = compare.load(kept)["results"]
    with pd.option_context("display.width", 200, "display.max_columns", None):
        print("\nWhat was done\n" + tables.shown(tables.what_was_done(results)).to_string())
        print("\nHow long it took\n" + tables.shown(tables.how_long_it_took(results)).to_string())
    print(f"\nexecuted notebook  {executed}")
    print(f"picture            {out / 'fig' / 'accuracy.png'}")
    print(f"the run took {seconds:.0f} s, set-up apart")
