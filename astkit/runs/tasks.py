"""Tasks of a comparison by name and from files: arguments of `astkit.compare`.

Each function returns a mapping with ``make_model``, ``train``, ``validation``, ``test``, and where
they differ from the defaults ``criterion``, ``metrics``, ``config`` and ``policies``.
"""

from __future__ import annotations

import runpy
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit.datasets import Images, Loader, load, split, stratified
from astkit.datasets.decode import resized
from astkit.datasets.splits import carve
from astkit.names import resolve
from astkit.rng import permutation
from astkit.trainers import Metric, TrainConfig

Arguments = dict[str, Any]
PARTS = ("train", "validation", "test")

BUILT_IN: dict[str, tuple[str, tuple[str, ...], float]] = {
    "digits": ("digits_cnn", (), 3e-3),
    "cifar10": ("simple_cnn", ("crop", "flip"), 1e-3),
}
"""Model, augmentation and learning rate."""
HELD = 0.15
"""Share of the validation rows, and of the test rows, if the data have no such part."""
MANY = 100
"""Largest number of classes in a table."""
WIDTH, WORDS, LENGTH = 64, 8192, 64
"""Hidden units for tables and text; hashed words; words of a text."""


def built_in(name: str, root: str | Path | None = None) -> Arguments:
    """The task "digits" or "cifar10"; raises ``ValueError`` for another name."""
    if name not in BUILT_IN:
        raise ValueError(f"dataset is {name!r}: choose one of {', '.join(BUILT_IN)}")
    model, augment, lr = BUILT_IN[name]
    parts = split(name, root)
    found = _images(parts.train, parts.validation, parts.test, model, augment)
    return {**found, "config": TrainConfig(lr=lr)}


def folder(root: str | Path, size: int = 32) -> Arguments:
    """Images in ``root/train|val|test/<class>/``, or ``root/<class>/``; ``size``: pixels a side.

    Parts without a folder are drawn from the training images. Raises the errors of `load`.
    """
    train, test = load("folders", root, size=size)
    held = None
    if (Path(root) / "val").is_dir():
        held = load("folders", Path(root) / "val", size=size)[0]
        if held.classes != train.classes:
            raise ValueError(f"{root}/val holds other classes than {root}/train: use the same")
    if test is None:
        test, train = carve(train, HELD, "test")
    if held is None:
        held, train = carve(train, HELD, "validation")
    return _images(train, held, test, "simple_cnn", ("flip",))


def _images(
    train: Images, validation: Images, test: Images, model: str, augment: tuple[str, ...]
) -> Arguments:
    mean, std = train.channel_stats()
    stats = (mean, std.clamp_min(1 / 255))  # a channel may be constant
    held = partial(Loader, batch_size=500, shuffle=False, normalize=stats)
    return {
        "make_model": partial(resolve("model", model), train.shape, train.num_classes),
        "train": Loader(train, augment=augment, normalize=stats),
        "validation": held(validation),
        "test": held(test),
    }


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
    inputs = _standardised(inputs, train)
    found = _parts(inputs, values if classes else _standardised(values, train), train, held, test)
    found["make_model"] = partial(_mlp, inputs.shape[1], classes or 1)
    if not classes:
        metric = Metric("squared error", squared_error, higher_is_better=False)
        found |= {"criterion": squared_error, "metrics": metric}
    return found


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """``(outputs - targets)**2``, ``[rows]``, for outputs ``[rows, 1]``."""
    return (outputs.squeeze(1) - targets).square()


def _standardised(values: Tensor, train: Tensor) -> Tensor:
    mean, std = values[train].mean(0), values[train].std(0)
    return (values - mean) / torch.where(std > 0, std, 1.0)


def _parts(x: Tensor, y: Tensor, train: Tensor, held: Tensor, test: Tensor) -> Arguments:
    rows = {"train": train, "validation": held, "test": test}
    return {part: TensorDataset(x[index], y[index]) for part, index in rows.items()}


def _mlp(inputs: int, outputs: int) -> nn.Module:
    hidden = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, outputs))


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
    classes = 1 + max(train["label"])
    if kind == "text":
        texts = {part: _hashed(parts[part]["text"]) for part in parts}
        made: Arguments = {
            part: TensorDataset(texts[part], torch.tensor(parts[part]["label"][:]))
            for part in PARTS
        }
        return {**made, "make_model": partial(_bag, classes)}
    names = tuple(map(str, range(classes)))
    train, held, test = (_pictures(parts[part], names) for part in PARTS)
    return _images(train, held, test, "simple_cnn", ("flip",))


def _divided(rows: Any) -> tuple[Any, Any]:
    order = permutation(len(rows), 0, "hugging face").tolist()
    held = max(1, round(HELD * len(rows)))
    return rows.select(order[held:]), rows.select(order[:held])


def _hashed(texts: Any) -> Tensor:
    """Words as int64 ``[texts, LENGTH]``, hashed; 0 is padding."""
    found = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
    for row, text in enumerate(texts):
        words = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.lower().split()]
        found[row, : len(words)] = torch.tensor(words[:LENGTH], dtype=torch.int64)
    return found


def _bag(classes: int) -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, classes))


def _pictures(rows: Any, names: tuple[str, ...]) -> Images:
    from torchvision.transforms.functional import pil_to_tensor

    pixels = [resized(pil_to_tensor(image.convert("RGB")), 32) for image in rows["image"]]
    return Images(torch.stack(pixels), torch.tensor(rows["label"][:]), names, "images")


def script(path: str | Path) -> Arguments:
    """The variables of a Python file: ``make_model``, ``train``, ``validation``, ``test``.

    Optional: ``criterion``, ``metrics``, ``config``, ``policies``. The file is executed. Raises
    ``ValueError`` for a missing variable.
    """
    found = runpy.run_path(str(path))
    for name in ("make_model", *PARTS):
        if name not in found:
            raise ValueError(f"{path} does not define {name}: define it at the top level")
    wanted = ("make_model", *PARTS, "criterion", "metrics", "config", "policies")
    return {name: found[name] for name in wanted if name in found}
