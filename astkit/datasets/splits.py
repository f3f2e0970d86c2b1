"""Training, validation and test parts, stratified by class, deterministic for a seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from astkit.datasets.images import Images
from astkit.datasets.sources import load
from astkit.rng import permutation


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint parts: fit on ``train``, select on ``validation``, evaluate ``test`` once."""

    train: Images
    validation: Images
    test: Images


def split(
    name: str = "digits",
    root: str | Path | None = None,
    download: bool = False,
    validation: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    size: int | None = None,
) -> Splits:
    """Load dataset ``name`` (see ``load``) and split it.

    ``validation``: share of the training part; ``test``: share of the whole, used only if the
    source has no test part. Each class contributes the same share of its rows, to the nearest
    row. Raises the errors of ``load``; ``ValueError`` for a share outside (0, 1) or an empty part.
    """
    for argument, fraction in (("validation", validation), ("test", test)):
        _check_fraction(argument, fraction)
    train, held_out = load(name, root, download, size=size)
    if held_out is None:
        held_out, train = carve(train, test, "test", seed)
    chosen, train = carve(train, validation, "validation", seed)
    return Splits(train, chosen, held_out)


def stratified(labels: Tensor, fraction: float, *key: int | str) -> tuple[Tensor, Tensor]:
    """Split rows of ``labels`` (int64 ``[N]``) into ``(chosen, rest)``, int64, each sorted.

    From each class ``round(fraction * count)`` rows are drawn, deterministically for a ``key``.
    Raises ``ValueError`` for a ``fraction`` outside (0, 1).
    """
    _check_fraction("fraction", fraction)
    labels = labels.cpu()
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().squeeze(1)
        order = permutation(len(rows), *key, label)
        mask[rows[order[: round(fraction * len(rows))]]] = True
    return mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1)


def carve(data: Images, fraction: float, part: str, seed: int = 0) -> tuple[Images, Images]:
    """A stratified ``part`` of the rows, and the rest; raises ``ValueError`` for an empty one."""
    chosen, rest = stratified(data.labels, fraction, seed, part)
    if len(chosen) == 0 or len(rest) == 0:
        empty = part if len(chosen) == 0 else "training"
        raise ValueError(
            f"{part}={fraction} leaves the {empty} part of {data.name!r} empty "
            f"({len(data)} rows in {data.num_classes} classes); choose another fraction."
        )
    return data.subset(chosen), data.subset(rest)


def _check_fraction(argument: str, fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(f"{argument} is {fraction}; pass a fraction between 0 and 1.")
