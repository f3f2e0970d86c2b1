"""Tasks of a comparison from files: image folders, tables, Hugging Face data sets, scripts."""

from __future__ import annotations

import operator
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from astkit.datasets import Images, load, stratified
from astkit.datasets.decode import resized
from astkit.datasets.splits import carve
from astkit.rng import permutation
from astkit.tasks.images import images
from astkit.tasks.parts import (
    HELD,
    PARTS,
    WIDTH,
    Arguments,
    Labelled,
    mlp,
    pairs,
    regression,
    standardised,
)
from astkit.tasks.text import WORDS, hashed

MANY = 100
"""Largest number of classes in a table."""


def folder(root: str | Path, size: int = 32) -> Arguments:
    """Images in ``root/train|val|test/<class>/``, or ``root/<class>/``; ``size``: pixels a side.

    Parts without a folder are drawn from the training images. Raises the errors of `load`.
    """
    root, held = Path(root).expanduser(), None
    train, test = load("folders", root, size=size)
    if (root / "val").is_dir():
        held = load("folders", root / "val", size=size)[0]
        if held.classes != train.classes:
            raise ValueError(f"{root}/val holds other classes than {root}/train: use the same")
    if test is None:
        test, train = carve(train, HELD, "test")
    if held is None:
        held, train = carve(train, HELD, "validation")
    return images(train, held, test, "simple_cnn", ("flip",))


def table(path: str | Path, target: str) -> Arguments:
    """A CSV file: a column of decimals is a regression's ``target``, another one holds classes.

    Numbers are standardised, other columns one-hot; the model is a small MLP. Raises ``ValueError``
    for a missing column, missing values and more than `MANY` classes.
    """
    import pandas as pd

    frame = pd.read_csv(path)
    if target not in frame:
        raise ValueError(f"target is {target!r}: choose one of {', '.join(map(str, frame))}")
    for name in frame.columns[frame.isna().any()]:
        raise ValueError(
            f"column {name!r} of {path} has missing values: fill them in, or drop the rows"
        )
    wanted = frame.pop(target)
    inputs = torch.tensor(pd.get_dummies(frame).to_numpy("float32"))
    if pd.api.types.is_float_dtype(wanted):
        values = torch.tensor(wanted.to_numpy("float32"))
        classes, labels = 0, torch.zeros(len(values), dtype=torch.int64)
    else:
        codes, names = pd.factorize(wanted, sort=True)
        classes, labels = len(names), torch.tensor(codes).long()
        values = labels
        if classes > MANY:
            raise ValueError(
                f"target {target!r} has {classes} classes, more than {MANY}: write the numbers with"
                " a decimal point for a regression, or give another column"
            )
    test, rest = stratified(labels, HELD, 0, "test")
    held, train = (rest[rows] for rows in stratified(labels[rest], HELD, 0, "validation"))
    inputs = standardised(inputs, train)
    found = pairs(inputs, values if classes else standardised(values, train), train, held, test)
    found["make_model"] = partial(mlp, inputs.shape[1], classes or 1)
    return found if classes else found | regression()


def hugging_face(path: str | Path) -> Arguments:
    """A ``datasets`` folder on disk with the columns label and text, or label and image.

    Words of a text are hashed for an embedding bag; images are resized to 32 pixels. Missing parts
    are drawn from "train". Raises ``ValueError`` for other columns, and without the package.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ValueError(
            "a Hugging Face folder needs the package datasets: pip install datasets"
        ) from error
    found = datasets.load_from_disk(str(path))
    parts = dict(found) if isinstance(found, dict) else {"train": found}
    train = parts["train"]
    kind = next((name for name in ("text", "image") if name in train.column_names), None)
    if kind is None or "label" not in train.column_names:
        raise ValueError(
            f"{path} has the columns {', '.join(train.column_names)}: rename them to label and text"
            " or image"
        )
    if "test" not in parts:
        parts["train"], parts["test"] = _divided(parts["train"])
    if "validation" not in parts:
        parts["train"], parts["validation"] = _divided(parts["train"])
    try:
        classes = 1 + max(map(operator.index, train["label"]))
    except TypeError as error:
        raise ValueError(
            f"{path} has labels such as {train['label'][0]!r}: number the classes from 0"
        ) from error
    if kind == "text":
        texts = {part: hashed(parts[part]["text"]) for part in parts}
        made: Arguments = {
            part: Labelled(texts[part], torch.tensor(parts[part]["label"][:])) for part in PARTS
        }
        return {**made, "make_model": partial(_bag, classes)}
    names = tuple(map(str, range(classes)))
    train, held, test = (_pictures(parts[part], names) for part in PARTS)
    return images(train, held, test, "simple_cnn", ("flip",))


def _divided(rows: Any) -> tuple[Any, Any]:
    order = permutation(len(rows), 0, "hugging face").tolist()
    held = max(1, round(HELD * len(rows)))
    return rows.select(order[held:]), rows.select(order[:held])


def _bag(classes: int) -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, classes))


def _pictures(rows: Any, names: tuple[str, ...]) -> Images:
    from torchvision.transforms.functional import pil_to_tensor

    pixels = [resized(pil_to_tensor(image.convert("RGB")), 32) for image in rows["image"]]
    return Images(torch.stack(pixels), torch.tensor(rows["label"][:]), names, "images")


OPTIONAL = (
    "batch_size",
    "budget",
    "config",
    "criterion",
    "make_optimizer",
    "metrics",
    "policies",
)
"""Further arguments of `astkit.compare` that a script may define."""


def script(path: str | Path) -> Arguments:
    """The variables of a Python file: ``make_model``, ``train``, ``validation``, ``test``.

    Optional: `OPTIONAL`. The file is executed as by ``python``, with its folder on ``sys.path``,
    where it remains. Raises ``ValueError`` for a missing variable.
    """
    sys.path.insert(0, str(Path(path).resolve().parent))
    found = runpy.run_path(str(path))
    for name in ("make_model", *PARTS):
        if name not in found:
            raise ValueError(f"{path} does not define {name}: define it at the top level")
    return {name: found[name] for name in ("make_model", *PARTS, *OPTIONAL) if name in found}
