"""Made conditions of training data that only benches train on, and what an oracle would choose.

`condition` also makes those of `astkit.datasets.conditions`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.checks import check_number
from astkit.datasets import Images, conditions, stratified
from astkit.datasets.conditions import TARGET, Condition, class_shares, mislabelled, tail
from astkit.datasets.texts import documentation, prose
from benchmarks.builders import LENGTH, encoded

CLASSES, COPIES = 5, 4  # of an open set; of a duplicated row
OPEN = ("open_set", "web")  # with images of no class
NONE = -1  # true label of an image that belongs to no class of the task
HUMAN_LABELS = "ASTKIT_CIFAR10N"  # environment variable: the file of CIFAR-10N's labels
KINDS = {"worse": "worse_label", "random1": "random_label1"}
STEPS = 32  # values of a series
POOL = 24_000  # sequences of a pool of text, at most, of `LENGTH` characters
PROSE = "docstrings of scikit-learn 1.9.1 (BSD 3-clause)"
PROSE_SHA256 = "0d3bac9973c87f2b2c3d688754ac23e84fbf3f4bda42477ab496f3fc03b089a5"


@dataclass(frozen=True, eq=False)
class Made(Condition):
    """A condition whose rows may be copies, or images of no class, whose true label is `NONE`."""

    @property
    def distinct(self) -> Tensor:
        """Bool ``[N]``: whether a row is the first of its copies."""
        assert self.rows is not None
        first = torch.ones(len(self.rows), dtype=torch.bool)
        order = self.rows.argsort(stable=True)
        first[order[1:]] = self.rows[order].diff() != 0
        return first

    @property
    def useful(self) -> Tensor:
        """Bool ``[N]``: whether a row is right, relevant, and no further copy."""
        return super().useful & self.distinct


class Change(NamedTuple):
    """What a condition makes of the training data: ``said`` in words.

    ``rows``: int64 ``[N]`` of the original; ``labels``: others than theirs; ``images``: others than
    theirs, of which the ``relevant`` ones are unchanged; ``skewed``: whether the classes have other
    shares than in the test data.
    """

    said: str
    rows: Tensor
    labels: Tensor | None = None
    images: Tensor | None = None
    relevant: Tensor | None = None
    skewed: bool = False


def condition(
    name: str,
    train: Images | None = None,
    test: Images | None = None,
    seed: int = 0,
    *,
    target: int = TARGET,
    **options: Any,
) -> Condition:
    """The condition ``name`` of `MADE` or of the package; as `astkit.datasets.conditions`."""
    if name == "irrelevant_text":
        return irrelevant_text(seed, target, **options)
    if name not in MADE:
        if options.get("data") == "series":
            options["data"] = series
        return conditions.condition(name, train, test, seed, target=target, **options)
    assert train is not None
    classes = CLASSES if name in OPEN else train.num_classes
    rows = (train.labels < classes).nonzero().squeeze(1)
    usable = _part(train, rows, classes)
    validation = None
    if target:
        held, rest = stratified(usable.labels, target / len(rows), seed, "target")
        validation, rows = usable.subset(held), rows[rest]
    if test is not None and name in OPEN:
        test = _part(test, (test.labels < classes).nonzero().squeeze(1), classes)
    change: Change = MADE[name](train, rows, seed, **options)
    true = train.labels[change.rows]
    data = Images(
        train.images[change.rows] if change.images is None else change.images,
        true if change.labels is None else change.labels,
        usable.classes,
        train.name,
    )
    return Made(
        f"{train.name}, {change.said}",
        data,
        validation,
        test,
        classes,
        change.rows,
        true.where(true < classes, NONE),
        true < classes if name in OPEN else change.relevant,
        class_shares(test or usable) if change.skewed else None,
    )


def _part(data: Images, rows: Tensor, classes: int) -> Images:
    return Images(data.images[rows], data.labels[rows], data.classes[:classes], data.name)


# --- images: of the usable rows, int64, those that are trained on -----------------------------


def duplicates(train: Images, rows: Tensor, seed: int) -> Change:
    """Random rows `COPIES` times each, and as many other rows once; the size is kept."""
    each = len(rows) // (COPIES + 1)
    rows = rows[rng.permutation(len(rows), seed, "duplicates")]
    rows = torch.cat([rows[:each].repeat(COPIES), rows[each : 2 * each]])
    return Change(f"{each} images {COPIES} times, {each} once", rows)


def small(train: Images, usable: Tensor, seed: int, rows: int = 8000) -> Change:
    """About ``rows`` random rows, the same share of each class."""
    chosen, _ = stratified(train.labels[usable], rows / len(usable), seed, "small")
    return Change(f"{len(chosen)} images", usable[chosen])


def open_set(train: Images, rows: Tensor, seed: int) -> Change:
    """The first `CLASSES` classes; as many images of the others have random labels of these."""
    outside = (train.labels >= CLASSES).nonzero().squeeze(1)
    count = min(len(rows), len(outside))
    rows = rows[rng.permutation(len(rows), seed, "open set", "inside")[:count]]
    outside = outside[rng.permutation(len(outside), seed, "open set", "outside")[:count]]
    drawn = torch.randint(CLASSES, (count,), generator=rng.generator(seed, "open set"))
    labels = torch.cat([train.labels[rows], drawn])
    said = f"{count} images of {CLASSES} classes and {count} of none of them"
    return Change(said, torch.cat([rows, outside]), labels)


def other_domain(train: Images, rows: Tensor, seed: int) -> Change:
    """A random half of the images inverted and at half the resolution; the test data are not."""
    relevant = torch.ones(len(rows), dtype=torch.bool)
    relevant[rng.permutation(len(rows), seed, "other domain")[: len(rows) // 2]] = False
    height, width = train.shape[1:]
    images = train.images[rows]
    other = F.interpolate(255 - images[~relevant].float(), (height // 2, width // 2), mode="area")
    images[~relevant] = F.interpolate(other, (height, width)).round().to(torch.uint8)
    said = "half of the images inverted and at half the resolution"
    return Change(said, rows, images=images, relevant=relevant)


def web(train: Images, rows: Tensor, seed: int) -> Change:
    """Data as from the web: an open set, wrong labels, copies and a long tail together.

    Images of the first `CLASSES` classes in a long tail of 10, a fifth of them with wrong labels;
    as many images of other classes, with labels in the shares of the tail; and a fifth of all
    images `COPIES` times.
    """
    rows = rows[tail(train.labels[rows], 10, seed)]
    labels = mislabelled(train.labels[rows], 0.2, seed)
    outside = (train.labels >= CLASSES).nonzero().squeeze(1)
    count = min(len(rows), len(outside))
    outside = outside[rng.permutation(len(outside), seed, "web", "outside")[:count]]
    others = labels[rng.permutation(len(labels), seed, "web", "labels")[:count]]
    rows, labels = torch.cat([rows, outside]), torch.cat([labels, others])
    order = rng.permutation(len(rows), seed, "web", "copies")
    order = torch.cat([order, order[: len(order) // 5].repeat(COPIES - 1)])
    said = (
        "five classes in a long tail of 10, 20% of the labels wrong,"
        f" {count} images of none of them, a fifth of all images {COPIES} times"
    )
    return Change(said, rows[order], labels[order], skewed=True)


def human_labels(
    train: Images, rows: Tensor, seed: int, kind: str = "worse", path: str | Path | None = None
) -> Change:
    """CIFAR-10N: labels that people gave to CIFAR-10's training images.

    ``kind``: "worse", a wrong one of three people's labels if there is any (40 % wrong), or
    "random1", the first person's (17 %). ``path``: a .npz file with uint8 ``[50000]`` each of
    clean_label, worse_label and random_label1, in the row order of ``train``; by default the
    environment variable `HUMAN_LABELS`. Source: Wei et al., "Learning with Noisy Labels Revisited",
    ICLR 2022; licence CC BY-NC 4.0, so it is no part of astkit.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: choose of {', '.join(KINDS)}")
    path = path or os.environ.get(HUMAN_LABELS)
    path = None if path is None else Path(path).expanduser()
    if path is None or not path.exists():
        raise FileNotFoundError(
            f"the labels of CIFAR-10N are not at {path}: pass path=, or set {HUMAN_LABELS}"
        )
    with np.load(path, allow_pickle=False) as file:
        right, given = (
            torch.from_numpy(file[name]).long() for name in ("clean_label", KINDS[kind])
        )
    if not torch.equal(right, train.labels):
        raise ValueError(
            f"the clean labels in {path} are not those of the {len(train)} training images: pass"
            " all of CIFAR-10 in the order that the file is for"
        )
    return Change(f"labels by people (CIFAR-10N, {kind})", rows, given[rows])


MADE = {
    "duplicates": duplicates,
    "small": small,
    "open_set": open_set,
    "other_domain": other_domain,
    "web": web,
    "human_labels": human_labels,
}


# --- texts -----------------------------------------------------------------------------------


def pinned_prose() -> str:
    """`prose` of the version that `PROSE` names; ``ValueError`` if another one is installed."""
    text = prose()
    if hashlib.sha256(text.encode()).hexdigest() != PROSE_SHA256:
        raise ValueError(f"the other text is from {PROSE}: install this version of scikit-learn")
    return text


def irrelevant_text(
    seed: int, target: int = TARGET, share: float = 0.2, path: str | Path | None = None
) -> Condition:
    """The next character of a text, in a pool of which only ``share`` is of this kind.

    The other sequences are of `PROSE`. ``path``: the text, by default `documentation`; of
    its sequences, ``target`` are the target and as many the test data. The pool has `POOL`
    sequences, or as many as the text suffices for. Inputs are int64 ``[N, LENGTH]``, targets alike:
    the characters that follow.
    """
    check_number("share", share)
    text = documentation() if path is None else Path(path).read_text("utf-8")
    (wanted, other), size = encoded(text, pinned_prose())
    rows = _sequences(wanted, seed, "wanted")
    pool = min(POOL, int((len(rows) - 2 * target) / share))
    if pool < 1:
        raise ValueError(
            f"{path} has {len(rows)} sequences of {LENGTH} characters: give a longer text, or a"
            f" target of less than {len(rows) // 2}"
        )
    held, tested, rows = rows[:target], rows[target : 2 * target], rows[2 * target :]
    like = round(share * pool)
    mixed = torch.cat([rows[:like], _sequences(other, seed, "other")[: pool - like]])
    order = rng.permutation(pool, seed, "irrelevant text")
    train, validation, test = (
        TensorDataset(part[:, :-1], part[:, 1:]) for part in (mixed[order], held, tested)
    )
    name = "documentation of Python, torch and numpy" if path is None else Path(path).name
    said = f"{pool} sequences of {LENGTH} characters, {share:.0%} of {name}, others of {PROSE}"
    relevant = order < like if like < pool else None
    return Condition(said, train, validation, test, size, relevant=relevant)


def _sequences(tokens: Tensor, *key: int | str) -> Tensor:
    """Consecutive parts of a text in random order: int64 ``[N, LENGTH + 1]``."""
    count = len(tokens) // (LENGTH + 1)
    rows = tokens[: count * (LENGTH + 1)].view(count, LENGTH + 1)
    return rows[rng.permutation(count, *key)]


def series(older: Tensor, kind: str, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two inputs over time, float32 ``[N, 2, STEPS]``, and a target that follows, ``[N, 1]``.

    The inputs are first-order autoregressions of coefficient 0.9 and variance 1. The target is the
    first input less half the second, with weights 0.7**k for k steps ago, and noise of deviation 1;
    in the ``older`` rows with another "law", it follows 8 steps later. With other "inputs", theirs
    have coefficient 0.5.
    """
    memory = torch.where(older, 0.5, 0.9)[:, None] if kind == "inputs" else torch.tensor(0.9)
    x = [torch.randn(len(older), 2, generator=random)]
    for _ in range(STEPS - 1):
        shock = (1 - memory.square()).sqrt() * torch.randn(len(older), 2, generator=random)
        x.append(memory * x[-1] + shock)
    values = torch.stack(x, 2)
    weights = 0.7 ** torch.arange(STEPS).flip(0)
    now = values[:, 0] - 0.5 * values[:, 1]
    y = (now * weights).sum(1)
    if kind == "law":
        y[older] = (now[older, :-8] * weights[8:]).sum(1)
    if kind == "columns":
        values[older] = values[older].flip(1)
    return values, (y + torch.randn(len(older), generator=random))[:, None]
