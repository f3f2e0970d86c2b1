"""Tables as arguments of `compare`: their parts, a model to begin with, criterion and metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astkit.datasets.joined import joined, set_aside, shared_with_target
from astkit.datasets.table import Table
from astkit.datasets.table_parts import divide_table
from astkit.progress import announce

EPOCHS, MOST_EPOCHS, STEPS = 5, 20, 1_000
"""Of dense training, by default: of a table up to 20 epochs, until there are 1,000 steps."""


def with_table(data: Mapping[str, Any], *, label: str | None, **reading: Any) -> dict[str, Any]:
    """The arguments ``data`` of `compare` with the table among them divided and described.

    ``reading``: options of `divide_table`. A table may stand in the place of the model. Prints what
    is predicted, and what was left out. Raises ``ValueError`` for options without a label, and for
    what cannot be read.
    """
    given = dict(data)
    if label is None:
        _check_no_table(given, reading)
    else:
        if given["train"] is None:
            given["make_model"], given["train"] = None, given["make_model"]
        if given["train"] is None:
            raise ValueError(f"train is missing: pass a table with the column {label!r}")
        given |= _divided(given, label, reading)
    train = given["train"]
    if not isinstance(train, Table):
        return given
    own = given["make_model"]
    regression = train.task == "regression"
    # a model of one's own that is trained by the table's criterion need not know the label's unit
    if label is not None and own is not None and regression and given["criterion"] is None:
        given["make_model"] = train.in_units(own)
    defaults = {"make_model": train.model, **train.objective}
    return given | {name: each for name, each in defaults.items() if given[name] is None}


def with_target(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments ``data`` of `compare` with the target's rows joined to those of ``train``.

    Without validation data a fifth of the target's units is set aside for them. Also what has to be
    known, as sentences, which are printed.
    """
    given, notes = dict(data), list[str]()
    target = given.pop("target")
    if target is None:
        return given, notes
    if given["train"] is None:
        raise ValueError("target is given without train: pass the old rows too")
    if given["validation"] is None:
        target, held = set_aside(target, ["validation"])
        given |= held
        notes.append(
            f"no validation data: {len(held['validation']):,} of the target's rows, a fifth of"
            f" its units, are set aside for them, and {len(target):,} may be trained on"
        )
    notes += shared_with_target(target, validation=given["validation"], test=given["test"])
    for note in notes:
        announce(note)
    return given | {"train": joined(given["train"], target)}, notes


def epochs_of(data: Any, batch_size: Any) -> int:
    """`EPOCHS`; of a `Table` as many as have `STEPS` steps, at most `MOST_EPOCHS`.

    A small table is overfitted in more.
    """
    if not isinstance(data, Table):
        return EPOCHS
    size = batch_size if isinstance(batch_size, int) and batch_size > 0 else 128
    return min(MOST_EPOCHS, max(EPOCHS, math.ceil(STEPS * size / len(data))))


def _divided(given: Mapping[str, Any], label: str, reading: Mapping[str, Any]) -> dict[str, Table]:
    others: dict[str, Any] = {part: given.get(part) for part in ("validation", "test", "target")}
    parts = divide_table(given["train"], label, **reading, **others)
    for note in [parts.sentence, *parts.train.notes]:
        announce(note)
    known = {name: part for name, part in parts._asdict().items() if part is not None}
    rows = {name: f"{len(part):,}" for name, part in known.items()}
    aside = ", set aside of the target"
    held = {name: aside * ("target" in rows and others[name] is None) for name in others}
    line = f"rows: {rows['train']} to train on, {rows['validation']} to validate"
    line += f"{held['validation']}, {rows['test']} to test{held['test']}"
    if "target" in rows:
        line += f", and {rows['target']} of the target to train on"
    announce(line)
    return parts._asdict()


def _check_no_table(given: Mapping[str, Any], reading: Mapping[str, Any]) -> None:
    for name in ("make_model", "train"):
        table = given[name]
        if isinstance(table, str | Path) or type(table).__name__ == "DataFrame":
            raise ValueError(
                f"{name} is a table, of which it is not known what is predicted: give label=, the"
                " name of a column"
            )
    for name, value in reading.items():
        if value:
            raise ValueError(f"{name} is {value!r}, which is of a table: give its label= too")
