"""A report as a notebook, HTML or Markdown: one executed notebook, in three formats."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from astkit import files
from astkit.runs.execute import execute

FORMATS = ("notebook", "html", "markdown")
_TITLE = """# What did the runs find?

Made from the run folders in `{root}`. Failed and unfinished runs are listed and count nowhere;
steered ones are left out of means."""
_PARAMETERS = """runs = {root!r}  # folder of run folders
name = {name!r}  # of the runs; None for all
metric = {metric!r}  # column of numbers; None for the test accuracy
by = {by!r}  # columns that make the groups; None for what differs
control = {control!r}  # what the others are compared with; None for dense"""
_IMPORTS = """from IPython.display import display

from astkit.runs import tables
from astkit.stamp import describe, stamp
from astkit.widgets import plots

print(describe(stamp()))"""
_RUNS = """found = tables.collect(runs, name)
found.runs"""
_TABLE = "tables.table(found, metric, by, control).round(4)"
_CURVES = """if {"val_loss", "val_accuracy", "epoch"} <= set(found.curves):
    display(plots.training_curves(tables.labelled(found, by)))
else:
    print("the runs recorded no curves of validation")"""
_MEASURED = """## What did they measure?

Means over n values with 95 % intervals, and differences to the control, paired by seed."""


def write(
    root: Path,
    out: Path,
    form: str = "notebook",
    *,
    name: str | None = None,
    metric: str | None = None,
    by: Sequence[str] | None = None,
    control: str | None = None,
) -> Path:
    """Write the report on the runs below ``root`` to ``out``; see `astkit.runs.tables.table`.

    Pictures of a Markdown report go into a folder beside it. Raises ``ValueError`` for an unknown
    form, ``RuntimeError`` where the notebook fails.
    """
    if form not in FORMATS:
        raise ValueError(f"format is {form!r}: choose one of {', '.join(FORMATS)}")
    head = _PARAMETERS.format(
        root=str(root.resolve()), name=name, metric=metric, by=by, control=control
    )
    cells = [
        new_markdown_cell(_TITLE.format(root=root)),
        new_code_cell(head, metadata={"tags": ["parameters"]}),
        new_code_cell(_IMPORTS),
        new_markdown_cell("## Which runs are there?"),
        new_code_cell(_RUNS),
        new_markdown_cell(_MEASURED),
        new_code_cell(_TABLE),
        new_markdown_cell("## How did they get there?"),
        new_code_cell(_CURVES),
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.ipynb", Path(folder) / "report.ipynb"
        nbformat.write(new_notebook(cells=cells), source)
        end = execute(source, target, {})
        if end.status != "complete":
            raise RuntimeError(
                f"the report could not be made: {end.error.get('message', end.status)}"
            )
        executed = nbformat.read(target, 4)
    return _converted(executed, out, form)


def _converted(executed: nbformat.NotebookNode, out: Path, form: str) -> Path:
    if form == "notebook":
        return files.write_atomic(out, nbformat.writes(executed))
    from nbconvert import HTMLExporter, MarkdownExporter

    if form == "html":
        body, _ = HTMLExporter(exclude_input=True).from_notebook_node(executed)
        return files.write_atomic(out, body)
    body, resources = MarkdownExporter(exclude_input=True).from_notebook_node(
        executed, resources={"output_files_dir": f"{out.stem}_files"}
    )
    for name, content in resources["outputs"].items():
        files.write_atomic(out.parent / name, content)
    return files.write_atomic(out, body)
