"""Report on the runs of a folder as one self-contained HTML page. Needs pandas."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from astkit.runs import tables
from astkit.stamp import describe, stamp

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse }}
th, td {{ border: 1px solid #ccc; padding: .3em .6em; text-align: left }}
</style></head><body>
<h1>{title}</h1>
<p>{stamp}</p>
<p>Failed, unfinished, stale and damaged runs are listed but not counted; runs with settings
changed by hand are excluded from means.</p>
<h2>Runs</h2>
{runs}
<h2>Measurements</h2>
<p>Means over n values with 95 % intervals, and differences to the control, paired by seed.</p>
{table}
<h2>Training curves</h2>
{curves}
</body></html>
"""


def page(
    root: Path,
    *,
    name: str | None = None,
    metric: str | None = None,
    by: Sequence[str] | None = None,
    control: str | None = None,
) -> str:
    """HTML page on the runs below ``root``; see `astkit.runs.tables.table` for the arguments.

    Raises the errors of `tables.collect` and `tables.table`.
    """
    found = tables.collect(root, name)
    table = tables.table(found, metric, by, control)
    curves = "<p>The runs recorded no validation curves.</p>"
    if {"val_loss", "val_accuracy", "epoch"} <= set(found.curves):
        from astkit.widgets import plots

        # matplotlib parses text between dollar signs as math
        labels = tables.labelled(found, by)
        labels["arm"] = labels["arm"].str.replace("$", r"\$", regex=False)
        png = base64.b64encode(plots.training_curves(labels).png()).decode()
        curves = f'<img alt="training curves" src="data:image/png;base64,{png}">'
    return _PAGE.format(
        title=escape(f"Runs in {root}"),
        stamp=escape(describe(stamp())),
        runs=found.runs.to_html(index=False, na_rep="–"),
        table=table.to_html(na_rep="–", float_format="{:.4g}".format),
        curves=curves,
    )
