"""`explain`: what differs between training rows and those that count, by column or by word.

Adversarial validation: a classifier that cannot tell both kinds of rows apart says that there is no
shift; one that can names the columns that give it away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from astkit import rng
from astkit.aim.differ import auc, bin_edges, binned, classifier_for, column_aucs
from astkit.aim.forecast import is_frame
from astkit.aim.rows import TABLE, TEXTS, TOKENS, Rows
from astkit.datasets.dependence import Array
from astkit.datasets.table import Table
from astkit.datasets.table_parts import check_unread, read_pair
from astkit.datasets.table_sources import listed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ROWS = 5_000
"""Rows of each kind that are compared, at most."""
ALIKE = 0.55
"""AUC up to which rows are called alike."""
MOVED, LEAST = 0.02, 0.005
"""Shares of the rows that are told where they change, and where they were none."""
SHOWN = 3
"""Words that a line names."""
WORDS, LISTED = 20_000, 100
"""Most frequent words of texts that are compared, and those that the table lists."""
RUN, CUT = 3, 160
"""Tokens in a row that count as a word, at most; characters of a text that is shown."""


@dataclass(frozen=True)
class Explanation:
    """What tells training rows from rows of the target.

    Attributes:
        auc: of boosted trees that see all columns, or of a linear model of all words, on rows that
            they were not fitted to: 0.5 for rows that are alike, 1 for rows that can always be told
            apart.
        table: a row for each column, the most telling first: ``column``, ``auc`` of that column
            alone, and what is ``new`` in the target; of texts a row for each of the most telling
            words, of tokens for runs of up to `RUN` of their numbers.
        separating: columns that alone tell nearly all rows apart, such as dates and counters.
        rows: training rows, those most like the target first: ``row``, ``likeness``, the share of
            the compared rows that are less like it, and of texts ``text``.
        notes: what reading left out, as sentences.
    """

    auc: float
    table: pd.DataFrame
    separating: tuple[str, ...]
    rows: pd.DataFrame
    notes: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """One line."""
        if self.auc <= ALIKE:  # below 0.5 by chance, or where both have the same rows
            known = f"AUC {self.auc:.2f}{', no better than chance' * (self.auc < 0.5)}"
            return f"training rows and target are alike ({known})"
        first = self.table.iloc[0]
        named = f", most by {first['column']!r} ({first['new']})" if first["new"] else ""
        return f"training rows and target can be told apart (AUC {self.auc:.2f}){named}"

    def __repr__(self) -> str:
        notes = (f"- {note}" for note in self.notes)
        return "\n".join([self.sentence, *notes, self.table.to_string(index=False)])

    def plot(self, columns: int = 12) -> Figure:
        """The AUC of each of the most telling ``columns``."""
        plots = import_module("astkit.widgets.target_plots")  # matplotlib is loaded for it only
        return plots.separating_columns(self.table.head(columns), self.sentence)


def explain(
    train: Any,
    target: Any,
    label: str | None = None,
    *,
    task: str | None = None,
    drop: Sequence[str] = (),
    groups: str | None = None,
    keep: Sequence[str] = (),
    encoding: str | None = None,
    dtypes: Mapping[Any, Any] | None = None,
    seed: int = 0,
) -> Explanation:
    """Say what differs between training rows and those that count.

    Example::

        train, recent, _ = load("bikes")
        print(explain(train, recent, label="bikers"))

    Args:
        train, target: tables, see `Table`: files, DataFrames or `Table` objects. The target may
            have no labels, as a competition's test data. Or texts: lists of strings, or data sets
            of strings or of tokens.
        label: the column to be predicted, which is not compared, if there is one; of DataFrames and
            files only.
        task, drop, groups, keep, encoding, dtypes: how they are read, see `astkit.compare`.

    Raises ``ValueError`` for tables that cannot be read, and for data of other kinds.
    """
    import pandas as pd

    reading: dict[str, Any] = {"task": task, "drop": drop, "groups": groups, "keep": keep}
    reading |= {"encoding": encoding, "dtypes": dtypes}
    if not isinstance(train, Table | str | os.PathLike) and not is_frame(train):
        check_unread(label=label, **reading)
        return _explain_texts(Rows(train), Rows(target), seed)
    old, new, notes = read_pair(train, target, label, **reading)
    rows, kinds = _some(len(old), len(new), seed)
    x = np.concatenate([old.matrix(False)[rows[0]], new.matrix(False)[rows[1]]])

    def score(fitted: Array) -> Array:
        edges = bin_edges(x[fitted])
        model = classifier_for(TABLE, 0.0).fit(binned(x[fitted], edges), kinds[fitted])
        return model.predict_proba(binned(x[~fitted], edges))[:, 1]

    whole, place = _judge_halves(kinds, seed, score)
    alone, separating = column_aucs(old, new, seed)
    lines = [(name, round(alone[name], 3), _new(old, new, name)) for name in alone]
    lines.sort(key=lambda line: -line[1])
    table = pd.DataFrame(lines, columns=["column", "auc", "new"])
    return Explanation(whole, table, separating, _by_likeness(rows[0], place), notes)


def _judge_halves(kinds: Array, seed: int, score: Callable[[Array], Array]) -> tuple[float, Array]:
    """AUC of telling two ``kinds`` of rows apart, out of two folds, and places of rows in these.

    ``score``: fits a model to rows, bool ``[n]``, and returns the scores of the others. Places are
    from 0 to 1, ``[n]``: scores of two models do not compare.
    """
    half = rng.permutation(len(kinds), seed, "explain").numpy() % 2
    places, values = np.zeros(len(kinds)), []
    for own in (0, 1):
        part = half == own
        place = np.unique(score(~part), return_inverse=True)[1]
        values.append(auc(place, kinds[part], np.ones(int(part.sum()))))
        places[part] = place / max(1, int(place.max()))
    return float(np.mean(values)), places


def _by_likeness(rows: Array, place: Array, texts: list[str] | None = None) -> pd.DataFrame:
    """Training ``rows [n]``, the most like the target first, by the ``place`` of all rows."""
    import pandas as pd

    order = np.argsort(-place[: len(rows)], kind="stable")
    found = pd.DataFrame({"row": rows[order], "likeness": place[order].round(3)})
    if texts is not None:
        shown = (texts[n] for n in order)
        found["text"] = [each if len(each) <= CUT else f"{each[:CUT]}…" for each in shown]
    return found


def _explain_texts(train: Rows, target: Rows, seed: int) -> Explanation:
    """The same by words, whose AUC is that of whether a text holds them."""
    import pandas as pd
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    for part in (train, target):
        if part.kind not in (TEXTS, TOKENS) or part.kind != train.kind:
            raise ValueError(
                f"the training data hold {train.kind} and the target {target.kind}: explain"
                " compares two tables, or two data sets of texts or tokens"
            )
    rows, kinds = _some(len(train), len(target), seed)
    texts = [_texts(part, own) for part, own in zip((train, target), rows, strict=True)]
    runs: dict[str, Any] = {"ngram_range": (1, RUN)} if train.kind == TOKENS else {}
    counter = CountVectorizer(
        binary=True, max_features=WORDS, token_pattern=r"(?u)\b\w+\b", dtype=np.float32, **runs
    )
    x = counter.fit_transform(texts[0] + texts[1])
    was, now = (np.asarray(x[kinds == kind].mean(0)).ravel() for kind in (False, True))
    words, apart = counter.get_feature_names_out(), np.abs(now - was)
    lines = [
        (words[n], round(0.5 + float(apart[n]) / 2, 3), _word_shares(was[n], now[n]))
        for n in np.argsort(-apart, kind="stable")[:LISTED]
    ]

    def score(fitted: Array) -> Array:
        model = LogisticRegression(C=1.0, max_iter=200).fit(x[fitted], kinds[fitted])
        return model.decision_function(x[~fitted])

    whole, place = _judge_halves(kinds, seed, score)
    table = pd.DataFrame(lines, columns=["column", "auc", "new"])
    return Explanation(whole, table, (), _by_likeness(rows[0], place, texts[0]))


def _texts(part: Rows, which: Array) -> list[str]:
    """Texts of rows; tokens as their numbers, without those that do not count."""
    inputs = part.inputs(torch.from_numpy(which))
    if part.kind == TEXTS:
        return list(inputs)
    return [" ".join(str(token) for token in row if token >= 0) for row in inputs.tolist()]


def _word_shares(was: float, now: float) -> str:
    before = "never in training" if was == 0 else f"in {was:.1%} of training"
    return f"in {now:.1%} of the target, {before}"


def _some(old: int, new: int, seed: int) -> tuple[list[Array], Array]:
    """Rows of each part that are compared, and whether each is of the target."""
    rows = [rng.permutation(n, seed, "explain rows").numpy()[:ROWS] for n in (old, new)]
    return rows, np.repeat([False, True], [len(each) for each in rows])


def _new(old: Table, new: Table, name: str) -> str:
    """What the target has in a column that training rows have not, or more rarely."""
    first, then = old.frame[name], new.frame[name]
    was, now = (float(each.isna().mean()) for each in (first, then))
    begins = min(was, now) == 0 and max(was, now) >= LEAST
    said = [f"missing in {now:.0%}, was {was:.0%}"] if begins or abs(now - was) >= MOVED else []
    other = _range(first, then) if first.dtype.kind in "fM" else _words(first, then)
    return "; ".join([*said, *[other] * bool(other)])


def _words(first: pd.Series[Any], then: pd.Series[Any]) -> str:
    shares = [part.value_counts(normalize=True) for part in (first, then)]
    known = shares[0][shares[0] > 0].index
    unseen = shares[1][~shares[1].index.isin(known) & (shares[1] > 0)]
    if unseen.sum() >= LEAST:
        return f"never in training: {listed([*map(str, unseen.index)], SHOWN)} ({unseen.sum():.0%})"
    differences = shares[1].sub(shares[0], fill_value=0.0)
    word = str(differences.idxmax())
    if not differences.max() >= MOVED:
        return ""
    return f"{word}: {shares[1].get(word, 0.0):.0%}, was {shares[0].get(word, 0.0):.0%}"


def _range(first: pd.Series[Any], then: pd.Series[Any]) -> str:
    low, high = first.min(), first.max()
    outside = float(((then < low) | (then > high)).mean())
    if outside >= MOVED:
        ends = f"{_shown(then.min())} to {_shown(then.max())}, was {_shown(low)} to {_shown(high)}"
        return f"{ends} ({outside:.0%} outside)"
    if first.dtype.kind == "M" or first.std() == 0:
        return ""
    moved = float((then.mean() - first.mean()) / first.std())
    return f"mean {then.mean():.3g}, was {first.mean():.3g}" if abs(moved) >= 0.1 else ""


def _shown(value: Any) -> str:
    return f"{value:%Y-%m-%d}" if hasattr(value, "strftime") else f"{value:.4g}"
