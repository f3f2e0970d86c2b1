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

from astkit.datasets import Images, load
from astkit.datasets.images import resized
from astkit.datasets.sources import carve
from astkit.rng import permutation
from astkit.tasks.images import images
from astkit.tasks.parts import (
    HELD,
    PARTS,
    WIDTH,
    Arguments,
    Labelled,
    divided,
    mlp,
    regression,
    standardised,
)
from astkit.tasks.text import WORDS, hashed

MANY = 100  # largest number of classes in a table


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
        y = torch.tensor(wanted.to_numpy("float32"))
        rows = divided(torch.zeros(len(y)).long())
        y, outputs, others = standardised(y, rows[0]), 1, regression()
    else:
        codes, names = pd.factorize(wanted, sort=True)
        if len(names) > MANY:
            raise ValueError(
                f"target {target!r} has {len(names)} classes, more than {MANY}: write the numbers"
                " with a decimal point for a regression, or give another column"
            )
        y = torch.tensor(codes).long()
        rows, outputs, others = divided(y), len(names), {}
    data, model = Labelled(standardised(inputs, rows[0]), y), partial(mlp, inputs.shape[1], outputs)
    parts: Arguments = {part: data.take(i) for part, i in zip(PARTS, rows, strict=True)}
    return {**parts, **others, "make_model": model}


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
    if "train" not in parts:
        raise ValueError(f"{path} has the parts {', '.join(parts)}: rename one of them to train")
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
        made: Arguments = {"make_model": partial(_bag, classes)}
        for part in PARTS:
            made[part] = Labelled(
                hashed(parts[part]["text"]), torch.tensor(parts[part]["label"][:])
            )
        return made
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


def script(path: str | Path) -> Arguments:
    """The variables of a Python file: ``make_model``, ``train``, ``validation``, ``test``.

    Further arguments of `astkit.compare` are optional. The file is executed as by ``python``, with
    its folder on ``sys.path``, where it remains. Raises ``ValueError`` for a missing variable.
    """
    needed = ("make_model", *PARTS)
    more = ["batch_size", "budget", "config", "criterion", "make_optimizer", "metrics", "policies"]
    sys.path.insert(0, str(Path(path).resolve().parent))
    found = runpy.run_path(str(path))
    for name in needed:
        if name not in found:
            raise ValueError(f"{path} does not define {name}: define it at the top level")
    return {name: found[name] for name in (*needed, *more) if name in found}
