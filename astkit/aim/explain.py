"""`explain`: what differs between training rows and those that count, column by column.

Adversarial validation: a classifier that cannot tell both kinds of rows apart says that there is no
shift; one that can names the columns that give it away.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from astkit import rng
from astkit.aim.ratio import auc
from astkit.datasets.table import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]

TELLING = 0.98
"""AUC from which on a column alone tells training rows from the target."""
ROWS = 5_000
"""Rows of each kind that are compared, at most."""
ALIKE = 0.55
"""AUC up to which rows are called alike."""
SHOWN = 3
"""Words that a line names."""
TREE: dict[str, Any] = {"max_leaf_nodes": 32, "min_samples_leaf": 20, "random_state": 0}


@dataclass(frozen=True)
class Explanation:
    """What tells training rows from rows of the target.

    Attributes:
        auc: of boosted trees that see all columns, on rows that they were not fitted to: 0.5 for
            rows that are alike, 1 for rows that can always be told apart.
        table: a row for each column, the most telling first: ``column``, ``auc`` of that column
            alone, and what is ``new`` in the target.
        telling: columns that alone tell nearly all rows apart, such as dates and counters.
    """

    auc: float
    table: pd.DataFrame
    telling: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """One line."""
        if self.auc <= ALIKE:
            return f"training rows and target are alike (AUC {self.auc:.2f})"
        first = self.table.iloc[0]
        named = f"most by {first['column']!r} ({first['new']})" if first["new"] else ""
        return (
            f"training rows and target can be told apart (AUC {self.auc:.2f})"
            f"{', ' if named else ''}{named}"
        )

    def __repr__(self) -> str:
        return f"{self.sentence}\n{self.table.to_string(index=False)}"

    def plot(self, columns: int = 12) -> Figure:
        """The AUC of each of the most telling ``columns``."""
        plots = import_module("astkit.widgets.target_plots")  # matplotlib is loaded for it only
        made: Figure = plots.telling_columns(self.table.head(columns), self.sentence)
        return made


def explain(train: Any, target: Any, label: str | None = None, *, seed: int = 0) -> Explanation:
    """Say what differs between training rows and those that count.

    Example::

        train, recent, _ = load("bikes")
        print(explain(train, recent, label="bikers"))

    Args:
        train, target: tables, see `Table`: files, DataFrames or `Table` objects. The target may
            have no labels, as a competition's test data.
        label: the column to be predicted, which is not compared; not for `Table` objects.

    Raises ``ValueError`` for tables that cannot be read.
    """
    import pandas as pd

    old, new = as_tables(train, target, label)
    rows = [_some(part, seed) for part in (old, new)]
    kinds = np.repeat([False, True], [len(each) for each in rows])
    found = []
    views = []
    for name in old.frame:
        view = np.concatenate(
            [column_view(part, str(name))[own] for part, own in zip((old, new), rows, strict=True)]
        )
        views.append(view)
        found.append((str(name), auc_apart(view, kinds, seed, boosted=False)))
    whole = auc_apart(np.concatenate(views, 1), kinds, seed, boosted=True)
    telling = tuple(
        name
        for name, value in found
        if value > TELLING or old.columns[name].kind == "date" or _counts(old, new, name)
    )
    lines = [(name, round(value, 3), _new(old, new, name)) for name, value in found]
    lines.sort(key=lambda line: -line[1])
    return Explanation(whole, pd.DataFrame(lines, columns=["column", "auc", "new"]), telling)


def as_tables(train: Any, target: Any, label: str | None) -> tuple[Table, Table]:
    """Both as `Table` objects, the target read as the training rows."""
    old = train if isinstance(train, Table) else Table(train, label)
    new = target if isinstance(target, Table) else Table(target, like=old)
    return old, new


def column_view(table: Table, name: str) -> Array:
    """Numbers for trees of a column of the frame, float ``[rows, parts]``."""
    column = table.frame[name]
    if column.dtype.kind == "f":
        return column.to_numpy("float64")[:, None]
    if column.dtype.kind == "M":
        moments = column.to_numpy("datetime64[s]")
        days = moments.astype("int64") / 86_400
        return np.where(np.isnat(moments), np.nan, days)[:, None]
    return table.words(name)


def auc_apart(view: Array, kinds: Array, seed: int, boosted: bool) -> float:
    """AUC of telling two ``kinds`` of rows apart by ``view [n, d]``, out of two folds."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.tree import DecisionTreeClassifier

    half = rng.permutation(len(kinds), seed, "explain").numpy() % 2
    scores = np.zeros(len(kinds))
    known = view if boosted else np.nan_to_num(view, nan=-1e30)
    for own in (0, 1):
        fitted = half != own
        if boosted:
            model = HistGradientBoostingClassifier(
                max_iter=40, max_bins=64, early_stopping=False, random_state=0
            )
        else:
            model = DecisionTreeClassifier(**TREE, class_weight="balanced")
        model.fit(known[fitted], kinds[fitted])
        scores[~fitted] = model.predict_proba(known[~fitted])[:, 1]
    values = []
    for own in (0, 1):  # scores of two models do not compare
        part = half == own
        place = np.unique(scores[part], return_inverse=True)[1]
        values.append(auc(place, kinds[part], np.ones(int(part.sum()))))
    return float(np.mean(values))


def _some(table: Table, seed: int) -> Array:
    return rng.permutation(len(table), seed, "explain rows").numpy()[:ROWS]


def _counts(old: Table, new: Table, name: str) -> bool:
    """Whether a column is a counter: distinct whole numbers in order, that go on in the target."""
    values = [part.frame[name] for part in (old, new)]
    if any(each.dtype.kind != "f" or each.isna().any() for each in values):
        return False
    first, then = (each.to_numpy() for each in values)
    rising = bool((np.diff(first) >= 0).all() and (np.diff(then) >= 0).all())
    return rising and len(then) > 0 and first[-1] <= then[0] and first[0] < first[-1]


def _new(old: Table, new: Table, name: str) -> str:
    """What the target has in a column that training rows have not, or more rarely."""
    first, then = old.frame[name], new.frame[name]
    if first.dtype.kind in "fM":
        return _range(first, then)
    shares = [part.value_counts(normalize=True) for part in (first, then)]
    known = shares[0][shares[0] > 0].index
    unseen = shares[1][~shares[1].index.isin(known) & (shares[1] > 0)]
    if unseen.sum() >= 0.005:
        words = ", ".join(map(str, unseen.index[:SHOWN]))
        more = f" and {len(unseen) - SHOWN} more" if len(unseen) > SHOWN else ""
        return f"never in training: {words}{more} ({unseen.sum():.0%})"
    differences = shares[1].sub(shares[0], fill_value=0.0)
    word = str(differences.idxmax())
    if differences.max() < 0.02:
        return ""
    return f"{word}: {shares[1].get(word, 0.0):.0%}, was {shares[0].get(word, 0.0):.0%}"


def _range(first: pd.Series[Any], then: pd.Series[Any]) -> str:
    low, high = first.min(), first.max()
    outside = float(((then < low) | (then > high)).mean())
    if outside >= 0.02:
        ends = f"{_shown(then.min())} to {_shown(then.max())}, was {_shown(low)} to {_shown(high)}"
        return f"{ends} ({outside:.0%} outside)"
    missing = [float(each.isna().mean()) for each in (first, then)]
    if abs(missing[1] - missing[0]) >= 0.02:
        return f"missing in {missing[1]:.0%}, was {missing[0]:.0%}"
    if first.dtype.kind == "M" or first.std() == 0:
        return ""
    moved = float((then.mean() - first.mean()) / first.std())
    return f"mean {then.mean():.3g}, was {first.mean():.3g}" if abs(moved) >= 0.1 else ""


def _shown(value: Any) -> str:
    return f"{value:%Y-%m-%d}" if hasattr(value, "strftime") else f"{value:.4g}"
