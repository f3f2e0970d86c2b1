"""Tasks of a comparison from files: image folders and tables."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import torch

from astkit.datasets import load
from astkit.datasets.pools import MANY, check_classes
from astkit.datasets.sources import carve
from astkit.tasks.images import images
from astkit.tasks.parts import (
    HELD,
    PARTS,
    Arguments,
    Labelled,
    consecutive,
    mlp,
    regression,
    split_rows,
    standardised,
)

FEWEST = 20  # rows of a table


def folder(root: str | Path, size: int = 32) -> Arguments:
    """Images in ``root/train|val|test/<class>/``, or ``root/<class>/``; ``size``: pixels a side.

    Parts without a folder are drawn from the training images. Raises the errors of `load`, and
    ``ValueError`` for parts of other classes and a ``size`` below 4.
    """
    if size < 4:
        raise ValueError(f"size is {size}: give 4 or more pixels, for the network's poolings")
    root = Path(root).expanduser()
    train, test = load("folders", root, size=size)
    validation = None
    if (root / "val").is_dir():
        validation, _ = load("folders", root / "val", size=size)
        if validation.classes != train.classes:
            raise ValueError(
                f"{root}/val holds other classes than the training images: use the same"
            )
    if test is None:
        test, train = carve(train, HELD, "test")
    if validation is None:
        validation, train = carve(train, HELD, "validation")
    return images(train, validation, test, "simple_cnn", ("flip",))


def table(path: str | Path, target: str, in_order: bool = False) -> Arguments:
    """A CSV file: a column of decimals is a regression's ``target``, another one holds classes.

    The parts are random, or if the rows are ``in_order`` of time, the last are the test rows and
    those before them the validation rows, like the data that a model meets next. Numbers are
    standardised, other columns one-hot; the model is a small MLP. Raises ``ValueError`` for a file
    that is no table in UTF-8, a missing column, missing values, more than `MANY` classes or words
    in a column, and too few rows of a class.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a table in UTF-8: {error}") from error
    if target not in frame:
        raise ValueError(f"target is {target!r}: choose one of {', '.join(map(str, frame))}")
    for name in frame.columns[frame.isna().any()]:
        raise ValueError(
            f"column {name!r} of {path} has missing values: fill them in, or drop the rows"
        )
    for name in frame.columns[frame.isin([math.inf, -math.inf]).any()]:
        raise ValueError(f"column {name!r} of {path} has infinite values: drop these rows")
    if frame.shape[1] < 2 or len(frame) < FEWEST:
        raise ValueError(
            f"{path} has {len(frame)} rows and {frame.shape[1]} columns: give a table of at least"
            f" {FEWEST} rows with the target and other columns"
        )
    parts_of = consecutive if in_order else split_rows
    wanted = frame.pop(target)
    words = frame.select_dtypes(exclude=["number", "bool"]).nunique()
    for column, count in words[words > MANY].items():  # each would be an input of the network
        raise ValueError(
            f"column {column!r} of {path} has {count} different words, more than {MANY}: leave it"
            " out, or write it as numbers, such as a date as days"
        )
    inputs = torch.tensor(pd.get_dummies(frame).to_numpy("float64"))
    if pd.api.types.is_float_dtype(wanted):
        y = torch.tensor(wanted.to_numpy("float64"))
        rows = parts_of(torch.zeros(len(y)).long())
        y, outputs, others = standardised(y, rows[0]), 1, regression()
    else:
        codes, names = pd.factorize(wanted, sort=True)
        check_classes(target, len(names))
        y = torch.tensor(codes).long()
        rows, outputs, others = parts_of(y), len(names), {}
    if not all(map(len, rows)):
        raise ValueError(
            f"target {target!r} has {outputs} classes in {len(y)} rows, too few for three"
            " parts: give more rows of each class"
        )
    data, model = Labelled(standardised(inputs, rows[0]), y), partial(mlp, inputs.shape[1], outputs)
    parts: Arguments = {part: data.take(i) for part, i in zip(PARTS, rows, strict=True)}
    return {**parts, **others, "make_model": model}
