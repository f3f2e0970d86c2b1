"""Conditions of training data, and what an oracle, which knows the truth, would choose under each.

A condition turns clean data into training data with a stated fault. Its validation data are the
target: right rows of the kind that the test data have. All of it depends on the seed alone.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.checks import PART, check_count, check_number
from astkit.datasets.images import Images
from astkit.datasets.sources import stratified
from astkit.datasets.texts import PROSE, documentation, encoded, pinned_prose, read_text
from astkit.names import resolve

TARGET = 1000  # validation rows
CLASSES, COPIES = 5, 4  # of an open set; of a duplicated row
OPEN = ("open_set", "web")  # with images of no class
NONE = -1  # true label of an image that belongs to no class of the task
HUMAN_LABELS = "ASTKIT_CIFAR10N"  # environment variable: the file of CIFAR-10N's labels
KINDS = {"worse": "worse_label", "random1": "random_label1"}
POOL, LENGTH = 24_000, 64  # sequences of a pool of text, at most, and their characters
DRIFTS = ("law", "columns", "inputs")
ROWS, TESTED, OLDER = 10_000, 4000, 0.7  # of a drift: training and test rows, share of older ones
STEPS = 32  # values of a series


@dataclass(frozen=True, eq=False)
class Condition:
    """Training data under a condition, the target, and the truth about each of N training rows.

    Attributes:
        description: one sentence, with sizes and sources.
        train: ``Images``, or a TensorDataset of inputs and targets.
        validation: the target, right rows of the kind of ``test``; with a target of 0 ``None``, or
            without rows where the data are made.
        test: as ``validation``.
        outputs: values that a model predicts for each row, or for each character.
        rows: int64 ``[N]``, the row of the original; copies of one row share it. `None` if made.
        true_labels: int64 ``[N]``, `NONE` for an image of no class; `None` without classes.
        relevant: bool ``[N]``, whether a row is of the kind of ``test``; `None` if all are.
        class_shares: float64 ``[outputs]``, of ``test``, if the training data have other ones.
    """

    description: str
    train: Any
    validation: Any
    test: Any
    outputs: int
    rows: Tensor | None = None
    true_labels: Tensor | None = None
    relevant: Tensor | None = None
    class_shares: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """Int64 ``[N]``: the class labels of ``train``, which must be ``Images``."""
        labels: Tensor = self.train.labels
        return labels

    @property
    def wrong(self) -> Tensor:
        """Bool ``[N]``: whether the label is wrong."""
        if self.true_labels is None:
            return torch.zeros(len(self.train), dtype=torch.bool)
        return self.labels != self.true_labels

    @property
    def distinct(self) -> Tensor:
        """Bool ``[N]``: whether a row is the first of its copies."""
        first = torch.ones(len(self.train), dtype=torch.bool)
        if self.rows is not None:
            order = self.rows.argsort(stable=True)
            first[order[1:]] = self.rows[order].diff() != 0
        return first

    @property
    def oracle(self) -> Tensor | None:
        """Weights with which an oracle draws rows, float64 ``[N]``, mean 1; `None` if all are 1.

        Rows with wrong labels, irrelevant rows and further copies have weight 0; the other rows
        have one weight per class, so that classes are drawn as often as in ``test``.
        """
        kept = ~self.wrong & self.distinct
        if self.relevant is not None:
            kept &= self.relevant
        weights = kept.double()
        if self.class_shares is not None:
            counts = self.labels[kept].bincount(minlength=self.outputs).double()
            weights *= (self.class_shares / counts.clamp_min(1))[self.labels]
        weights /= weights.mean()
        return None if bool((weights == 1).all()) else weights


class Change(NamedTuple):
    """What a condition of images makes of the training data: ``said`` in words.

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
    """The condition ``name`` of this module; deterministic for a ``seed``.

    Args:
        name: "clean", "wrong_labels", "duplicates", "long_tail", "small", "open_set",
            "other_domain", "web" and "human_labels" are made from the images ``train``;
            "irrelevant_text" and "drift" bring their own data.
        test: images; those that the model is judged by are passed on.
        target: number of validation rows, which are taken out of ``train``; none with 0.
        options: arguments of the function ``name`` in this module.

    Raises ``ValueError`` for an unknown name and for values that are impossible with this data;
    ``FileNotFoundError`` for missing files.
    """
    make: Callable[..., Any] = resolve("condition", name)
    names = list(inspect.signature(make).parameters)
    of_images = names[0] == "train"
    own = names[3:] if of_images else names[2:]
    for option in options:
        if option not in own:
            raise ValueError(
                f"condition {name!r} has no option {option!r}: choose of {', '.join(own) or 'none'}"
            )
    if of_images != (train is not None):
        remedy = "pass train= and test=" if of_images else "leave train and test out"
        raise ValueError(
            f"condition {name!r} is {'' if of_images else 'not '}made of images: {remedy}"
        )
    check_count("target", target, least=0)
    if train is None:
        made: Condition = make(seed, target, **options)
        return made
    classes = CLASSES if name in OPEN else train.num_classes
    rows = (train.labels < classes).nonzero().squeeze(1)
    if target >= len(rows):
        raise ValueError(f"target is {target} of {len(rows)} usable rows: give less")
    validation = None
    if target:
        held, rest = stratified(train.labels[rows], target / len(rows), seed, "target")
        validation, rows = _part(train, rows[held], classes), rows[rest]
    if test is not None and name in OPEN:
        test = _part(test, (test.labels < classes).nonzero().squeeze(1), classes)
    change: Change = make(train, rows, seed, **options)
    true = train.labels[change.rows]
    data = Images(
        train.images[change.rows] if change.images is None else change.images,
        true if change.labels is None else change.labels,
        train.classes[:classes],
        train.name,
    )
    return Condition(
        f"{train.name}, {change.said}",
        data,
        validation,
        test,
        classes,
        change.rows,
        true.where(true < classes, NONE),
        true < classes if name in OPEN else change.relevant,
        class_shares(test or train, classes) if change.skewed else None,
    )


def _part(data: Images, rows: Tensor, classes: int) -> Images:
    return Images(data.images[rows], data.labels[rows], data.classes[:classes], data.name)


# --- images: of the usable rows, int64, those that are trained on -----------------------------


def clean(train: Images, rows: Tensor, seed: int) -> Change:
    """The data as they are, of which ``target`` rows are validation data."""
    return Change("as it is", rows)


def wrong_labels(train: Images, rows: Tensor, seed: int, share: float = 0.4) -> Change:
    """``round(share * N)`` random labels replaced, each by one of the other classes.

    Other classes are equally likely: symmetric noise that excludes the true class, so exactly
    ``share`` of the labels is wrong.
    """
    labels = mislabelled(train.labels[rows], share, seed)
    return Change(f"{share:.0%} wrong labels", rows, labels)


def duplicates(train: Images, rows: Tensor, seed: int) -> Change:
    """Random rows `COPIES` times each, and as many other rows once; the size is kept."""
    each = len(rows) // (COPIES + 1)
    rows = rows[rng.permutation(len(rows), seed, "duplicates")]
    rows = torch.cat([rows[:each].repeat(COPIES), rows[each : 2 * each]])
    return Change(f"{each} images {COPIES} times, {each} once", rows)


def long_tail(train: Images, rows: Tensor, seed: int, factor: float = 100.0) -> Change:
    """Random rows of each class, with geometrically decreasing class sizes, in order of labels.

    The first class is ``factor`` times as large as the last; sizes are the largest that the data
    allow. Source: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR
    2019.
    """
    rows = rows[tail(train.labels[rows], factor, seed)]
    return Change(f"class sizes in a long tail of {factor:g}", rows, skewed=True)


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


def mislabelled(labels: Tensor, share: float, seed: int) -> Tensor:
    """Int64 ``[N]`` ``labels``, of which ``round(share * N)`` random ones are another class."""
    check_number("share", share, PART)
    classes, place = labels.unique(return_inverse=True)
    rows = rng.permutation(len(labels), seed, "wrong labels")[: round(share * len(labels))]
    if len(rows) and len(classes) < 2:
        raise ValueError("labels are of one class, so that none can be wrong: give two classes")
    drawn = rng.generator(seed, "wrong labels", "by")
    shift = torch.randint(1, len(classes), (len(rows),), generator=drawn)
    changed = labels.clone()
    changed[rows] = classes[(place[rows] + shift) % len(classes)]
    return changed


def tail(labels: Tensor, factor: float, seed: int) -> Tensor:
    """Rows of a long tail of int64 ``[N]`` ``labels``, sorted; see `long_tail`."""
    if not factor >= 1:
        raise ValueError(f"factor is {factor}: give 1 or more")
    classes, counts = labels.unique(return_counts=True)
    decay = factor ** (-torch.arange(len(classes)).double() / max(1, len(classes) - 1))
    sizes = (decay * (counts / decay).min()).round().long()
    if int(sizes.min()) < 1:
        raise ValueError(
            f"factor is {factor:g}, which leaves class {int(classes[sizes.argmin()])} without a"
            f" row: give at most {int(counts.min())}"
        )
    kept = []
    for label, size in zip(classes.tolist(), sizes.tolist(), strict=True):
        of_class = (labels == label).nonzero().squeeze(1)
        kept.append(of_class[rng.permutation(len(of_class), seed, "long tail", label)[:size]])
    return torch.cat(kept).sort().values


def class_shares(data: Images, classes: int) -> Tensor:
    """The share of each of the first ``classes`` in ``data``: float64 ``[classes]``."""
    counts = data.labels.bincount(minlength=classes)[:classes].double()
    return counts / counts.sum()


# --- text, tables, series --------------------------------------------------------------------


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
    text = documentation() if path is None else read_text(path)
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


def drift(seed: int, target: int = TARGET, kind: str = "law", data: str = "table") -> Condition:
    """A regression whose rows are in order of time, and the older `OLDER` of them are different.

    ``kind``: "law", the older targets depend on the inputs in another way; "columns", two columns
    of the older inputs are swapped; "inputs", the older inputs are others but the law is the same,
    so that all rows are relevant. ``data``: "table", see `friedman_table`; "series", see `series`.
    """
    made = {"table": friedman_table, "series": series}
    if data not in made or kind not in DRIFTS:
        raise ValueError(
            f"data is {data!r} and kind {kind!r}: choose of {', '.join(made)}, and of"
            f" {', '.join(DRIFTS)}"
        )
    older = torch.arange(ROWS + target + TESTED) < OLDER * ROWS
    x, y = made[data](older, kind, rng.generator(seed, "drift", data, kind))
    train, validation, test = (
        TensorDataset(*part)
        for part in zip(*(each.split([ROWS, target, TESTED]) for each in (x, y)), strict=True)
    )
    said = f"{data} of {ROWS} rows in order of time, other {kind} in the older {100 * OLDER:.0f} %"
    relevant = None if kind == "inputs" else ~older[:ROWS]
    return Condition(said, train, validation, test, y.shape[1], relevant=relevant)


def friedman_table(older: Tensor, kind: str, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs float32 ``[N, 10]`` in 0..1 and targets ``[N, 1]`` with noise of deviation 1.

    The law is Friedman's first (Multivariate Adaptive Regression Splines, 1991, 4.3); for the
    "law" of the ``older`` rows, the last five columns count instead of the first.
    """

    def law(x: Tensor) -> Tensor:
        curved = 10 * (math.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5).square()
        return curved + 10 * x[:, 3] + 5 * x[:, 4]

    x = torch.rand(len(older), 10, generator=random)
    if kind == "inputs":
        x[older] = x[older].square()
    y = law(x)
    if kind == "law":
        y[older] = law(x[older].flip(1))
    if kind == "columns":
        x[:, [2, 3]] = torch.where(older[:, None], x[:, [3, 2]], x[:, [2, 3]])
    return x, (y + torch.randn(len(older), generator=random))[:, None]


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


def _sequences(tokens: Tensor, *key: int | str) -> Tensor:
    """Consecutive parts of a text in random order: int64 ``[N, LENGTH + 1]``."""
    count = len(tokens) // (LENGTH + 1)
    rows = tokens[: count * (LENGTH + 1)].view(count, LENGTH + 1)
    return rows[rng.permutation(count, *key)]
