"""Fast validation: a fixed, stratified part of the validation rows, with an honest interval."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from astkit.datasets import BatchSource, stratified


def wilson_interval(right: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a share of which ``right`` of ``rows`` were counted: (low, high).

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA
    22 (1927). It is for rows drawn one by one from a large population; for a stratified part of a
    finite set it is, if anything, too wide. Raises ``ValueError`` for impossible counts or levels.
    """
    if not 0 <= right <= rows or rows < 1 or not 0 < level < 1:
        raise ValueError(
            f"{right} right of {rows} rows at level {level}: give 0 <= right <= rows, at least 1"
            " row and a level between 0 and 1"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, weight = right / rows, z * z / rows
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / rows + weight / (4 * rows))
    # exactly 0 and 1 at the ends, where rounding would leave a speck
    return (
        0.0 if right == 0 else max(0.0, middle - half),
        1.0 if right == rows else min(1.0, middle + half),
    )


def sampled_rows(validation: BatchSource, fraction: float, seed: int = 0) -> Tensor | None:
    """A fixed part of ``validation``'s rows, int64 ``[n]``: of each class the same share.

    ``None``, all of them, for a ``fraction`` of 1. Labels are taken from the data set where it
    holds them, else read in one pass. The accuracy on the part comes with its `wilson_interval`.

    Raises ``ValueError`` for a fraction outside (0, 1], one that leaves no row, or a source that
    cannot visit chosen rows.
    """
    if fraction == 1:
        return None
    labels = _labels(validation)
    index, _ = stratified(labels, fraction, seed, "fast validation")
    if len(index) == 0:
        raise ValueError(
            f"fraction {fraction} of {len(labels)} validation rows leaves none: give a larger one"
        )
    return index


def _labels(source: BatchSource) -> Tensor:
    rows = source.num_samples
    source.batches(0, torch.zeros(1, dtype=torch.int64))  # refuses now what cannot choose rows
    held = getattr(getattr(source, "data", None), "labels", None)
    if isinstance(held, Tensor) and len(held) == rows:
        return held.cpu()
    if rows is None:
        raise ValueError(
            "the validation data cannot tell how many rows there are, so no share of them can be"
            " drawn: pass an astkit Loader"
        )
    labels = torch.empty(rows, dtype=torch.int64)
    for batch in source.batches(0, torch.arange(rows)):
        assert batch.index is not None  # a source that visits chosen rows knows them
        labels[batch.index.cpu()] = batch.y.cpu()
    return labels
