"""`forecast`: which data to train on, judged before any training by cross-validation.

The proxies are fitted in seconds; what trees cost is stated in seconds, other models in FLOPs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from astkit.aim.decisions import (
    BOTH,
    DECISIONS,
    FLAT,
    FORWARD_PARTS,
    OLD,
    PLAIN,
    WEIGHTED,
    WEIGHTED_BOTH,
    Decision,
    Judge,
    Judgement,
    Z,
    answer,
    both_or_old,
    choose,
    in_words,
)
from astkit.aim.differ import WeightsOf, find_shift
from astkit.aim.moments import NoMomentsError, Past, past_of
from astkit.aim.proxies import Linear, Proxy, Trees, proxy_of
from astkit.aim.rows import TABLE, TEXTS, TOKENS, FeaturesOf
from astkit.aim.sides import Sides, sides_of
from astkit.checks import ABOVE_0, check_number, check_types
from astkit.datasets.facts import within
from astkit.datasets.joined import divide_joined
from astkit.datasets.loader import old_rows
from astkit.datasets.table import Table
from astkit.datasets.table_parts import check_unread, read_pair

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from sklearn.pipeline import Pipeline

FEWEST, FEWEST_OLD = 30, 12
"""Independent target rows, and old rows, below which nothing is foretold."""
FITS = 24
"""Estimators that are fitted for a forecast, each about as costly as that of the test."""
ITERATIONS = 20  # of a logistic regression, at least
READ = 64  # rows that are read to see how many words they have


@dataclass(frozen=True)
class Forecast:
    """Which data to train on, and what that is expected to gain over training on the old rows.

    Attributes:
        decision: the one to take, see `Decision`; where a linear model says the opposite of the
            trees another one than they chose.
        sentence: the answer in one line.
        weights: how often each of N old rows, or of N old and M target rows, is drawn: float64
            with mean 1. ``None``: each old row once.
        lines: a mapping for each decision that was judged: its name, ``gain`` over "old", the 95 %
            interval from ``low`` to ``high``, ``unit``, ``proxy``, and whether this has it
            ``chosen``. The gain in the sentence was chosen on other folds than it is quoted from.
            ``gain`` and its interval are ``None`` where the target has too few dates to judge by.
        notes: what reading left out, as sentences.
        flops: of features and estimators; trees are timed. ``seconds``: how long it took.
        in_order: whether folds go forward in time.
        past: a mapping for each earlier moment and decision, see `moments`; ``today``: where the
            target begins, on their scale.
        tables: old rows and target that `forecast` read; ``None`` of other data, and once loaded.
    """

    decision: Decision
    sentence: str
    weights: Tensor | None = field(default=None, repr=False, compare=False)
    lines: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    flops: float = 0.0
    seconds: float = 0.0
    in_order: bool = False
    past: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    today: str | float | None = None
    tables: tuple[Table, Table] | None = field(default=None, repr=False, compare=False)

    @property
    def table(self) -> pd.DataFrame:
        """The ``lines``.

        With earlier moments ``won``, at how many of them a decision was better than the old rows,
        ``past``, its mean gain at these, and the 95 % interval of one more moment from ``past_low``
        to ``past_high``.
        """
        import pandas as pd

        columns = ["decision", "gain", "low", "high", "unit", "proxy", "chosen"]
        if self.past:  # what matters most in the first 80 letters
            columns[4:] = ["won", "past", "past_low", "past_high", "chosen", "unit", "proxy"]
        # short, so that a terminal shows all columns
        lines = [{**each, "unit": each["unit"].replace("of the ", "")} for each in self.lines]
        words = ("decision", "won", "unit", "proxy", "chosen")
        numbers = {name: float for name in columns if name not in words}
        return pd.DataFrame(lines, columns=columns).astype(numbers)

    @property
    def moments(self) -> pd.DataFrame | None:
        """What decisions gained at earlier moments, a row for each moment and decision.

        Its ``start``, a date, a number or the place of a row; ``rows`` that were judged,
        ``old_over_recent`` rows, and the ``gain`` over old and ``over_both``. ``None`` without
        moments.
        """
        import pandas as pd

        if not self.past:
            return None
        found = pd.DataFrame(self.past)
        dates = isinstance(self.today, str)
        return found.assign(start=pd.to_datetime(found["start"])) if dates else found

    def plot(self) -> Figure:
        """The gain of each decision along time, if there are earlier moments, or the expected one.

        It says whether training anew is worth it, and whether it has been.
        """
        plots = import_module("astkit.widgets.target_plots")  # matplotlib is loaded for it only
        if self.past:
            return plots.moments(self.table, self.moments, self.today)
        return plots.decisions(self.table)

    def fit(self) -> Pipeline:
        """Boosted trees of scikit-learn, fitted to the rows of both tables as decided.

        A pipeline of two steps, which reads files and DataFrames as the old rows were read, and
        predicts numbers or the label's words. joblib stores it, without rows that it was fitted to.
        Raises ``ValueError`` where there are no tables.
        """
        if self.tables is None:
            told = "the forecast knows no tables, as one of other data or one that was loaded"
            raise ValueError(f"{told}: call astkit.forecast(old, new, label=...) for it again")
        fit = import_module("astkit.aim.fit")  # scikit-learn is loaded for it only
        return fit.fitted(self.tables, self.decision, self.weights)

    def to_json(self) -> dict[str, Any]:
        """Everything but the weights and the tables."""
        kept = replace(self, weights=None, tables=None)
        return {**asdict(kept), "decision": self.decision.name}

    @classmethod
    def from_json(cls, contents: Mapping[str, Any]) -> Self:
        """What `to_json` returned."""
        return cls(**{**contents, "decision": DECISIONS[contents["decision"]]})

    def __repr__(self) -> str:
        table = [self.table.to_string(index=False, line_width=80, na_rep="")] if self.lines else []
        return "\n".join([self.sentence, *(f"- {note}" for note in self.notes), *table])


def forecast(
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
    train_on_target: bool = True,
    in_order: bool | None = None,
    date: str | None = None,
    features: FeaturesOf | None = None,
    classes: bool | None = None,
    horizon: float | None = None,
    seed: int = 0,
) -> Forecast:
    """Foretell what training on old rows, target rows, or both in which share would gain.

    Example::

        train, recent, _ = load("bikes")
        print(forecast(train, recent, label="bikers").sentence)

    Models are fitted to old rows and a part of the target's, and judged on the rest of these. Where
    rows have an order, they are judged on later rows than they were fitted to.

    Args:
        train, target: old rows, and rows like those that count: files, DataFrames, `Table` objects
            of which the second is like the first, data sets, or lists of strings.
        label: the column to be predicted, of files and DataFrames.
        task, drop, groups, keep, encoding, dtypes: how they are read, see `astkit.compare`.
        train_on_target: whether target rows may be trained on; else they only weigh old rows.
        in_order: whether rows of the target are in order of time; ``None``: as a target that is a
            `Table` says, else if neighbouring rows are found to depend on each other.
        date: the column of dates or numbers that orders them; rows of one value stay together.
            ``None``: that of a target that is a `Table`, unless ``in_order`` is False.
        features: computes features ``[n, d]`` of the inputs of n rows, for data other than images,
            texts and tables.
        classes: whether whole-number targets name classes, not counts or ages; by default it is
            guessed, see `class_labels`.
        horizon: how long a model is to be used, for earlier moments (``astkit.aim.moments``): days
            of a date, units of a date that is a number, or rows; by default as long as the target
            lasts.

    Where old rows and target have a date, or ``in_order`` says that the target's rows follow the
    old ones in time, the answer also says at how many earlier moments it would have been right.
    Raises ``ValueError`` for data that cannot be read, a target without labels, and a date of rows
    that are in no order.
    """
    check_types(in_order=(in_order, bool | None))
    date = None if date is None else str(date)
    if horizon is not None:
        check_number("horizon", horizon, ABOVE_0)
    if date is not None and in_order is False:
        raise ValueError(f"date is {date!r} and in_order is False: leave the date out, or in_order")
    start = time.perf_counter()
    notes: list[str] = []
    reading: dict[str, Any] = {"task": task, "drop": drop, "groups": groups, "keep": keep}
    reading |= {"encoding": encoding, "dtypes": dtypes}
    if label is not None or isinstance(train, Table | str | os.PathLike) or is_frame(train):
        if label is None and not isinstance(train, Table):
            raise ValueError("label is missing: name the column to be predicted")
        train, target, notes = read_pair(train, target, label, date, **reading)
        if not target.labelled:
            raise ValueError(
                f"the target has no {target.label.name!r}, so no gain can be foretold: give rows"
                " with labels, or see astkit.explain for what differs"
                + "".join(f"; {note}" for note in target.notes)
            )
    elif date is not None:
        raise ValueError(f"date is {date!r}, and the data have no columns: give in_order=True")
    else:
        check_unread(**reading)
    if date is not None and features is not None:
        raise ValueError(f"date is {date!r}, and features has no columns: give in_order=True")
    sides = sides_of(train, target, features, classes, seed)
    found = foretell(sides, train_on_target, in_order=in_order, date=date, horizon=horizon)
    sentence, seconds = found.sentence, time.perf_counter() - start
    if any("left out" in note for note in notes):
        sentence += "; reading left out rows or columns, see notes"
    tables = (train, target) if isinstance(train, Table) else None
    notes = [*notes, *found.notes]
    return replace(found, sentence=sentence, notes=notes, seconds=seconds, tables=tables)


def is_frame(data: Any) -> bool:
    """Whether ``data`` are a DataFrame."""
    return hasattr(data, "columns") and hasattr(data, "iloc")


def foretell(
    sides: Sides,
    train_on_target: bool,
    most: float = math.inf,
    *,
    unseen: Tensor | None = None,
    in_order: bool | None = None,
    date: str | None = None,
    horizon: float | None = None,
) -> Forecast:
    """The forecast for two sides; for ``unseen`` see `input_test`, for others `forecast`.

    Raises `TooCostlyError` where it would take more FLOPs than ``most``.
    """
    start = time.perf_counter()
    with _few_threads(sides):
        try:
            found = _foretell(sides, train_on_target, most, unseen, in_order, date, horizon)
        except _CannotTellError as reason:
            found = cannot_tell(sides, train_on_target, str(reason))
    seconds = time.perf_counter() - start
    sentence = "; ".join([found.sentence, *sides.notes, f"{seconds:.0f} s"])
    flops, forward = sides.total_flops(), sides.forward
    return replace(found, sentence=sentence, flops=flops, seconds=seconds, in_order=forward)


class TooCostlyError(Exception):
    """A forecast would take more than it may."""

    def __init__(self, flops: float) -> None:
        super().__init__(
            f"it would take {flops:.1g} FLOPs, too large a share of the run (give a larger budget,"
            " or weigh rows once by aim.weights)"
        )


class _CannotTellError(Exception):
    """Why nothing can be judged."""


def cannot_tell(sides: Sides, train_on_target: bool, reason: str) -> Forecast:
    """The answer where nothing can be judged: both, or the old rows."""
    decision = BOTH if train_on_target else OLD
    sentence = f"forecast: cannot tell, {reason}: {in_words(decision)}"
    found = carried_out(sides, decision, sentence, train_on_target)
    return replace(found, flops=sides.total_flops())


def _foretell(
    sides: Sides,
    train_on_target: bool,
    most: float,
    unseen: Tensor | None,
    in_order: bool | None,
    date: str | None,
    horizon: float | None,
) -> Forecast:
    if len(sides.old) < FEWEST_OLD:
        raise _CannotTellError(f"there are {len(sides.old)} old rows, fewer than {FEWEST_OLD}")
    if (cost := FITS * least_fit(sides)) > most:
        raise TooCostlyError(cost)
    if date is None and (table := sides.target.table) is not None:  # which may say its order
        in_order = table.in_order if in_order is None else in_order
        date = None if in_order is False else table.date
    sides.find_units(in_order, date)
    dates = 1 + int(sides.judged.max())
    if date is not None and dates < FORWARD_PARTS:
        return _by_moments(sides, train_on_target, date, horizon, dates)
    if sides.worth < FEWEST:
        raise _CannotTellError(
            f"the target's rows are worth about {sides.worth:.0f} independent ones, fewer than"
            f" {FEWEST}"
        )
    weights_of, test = find_shift(sides, unseen)
    tested = sides.sampled if unseen is None else len(unseen)
    if (cost := FITS * sides.flops * sides.sampled / tested) > most:
        raise TooCostlyError(cost)
    if weights_of is None and not train_on_target:
        alike = f"they are like the target (AUC {test.auc:.2f})"
        if math.isnan(test.auc):
            alike = (
                "random transforms change the rows of either side: let both data sets have an"
                " attribute transform, or apply them in the collate_fn of a DataLoader"
            )
        return Forecast(OLD, f"forecast: train on the old rows: {alike}")
    proxy = proxy_of(sides)
    if proxy is None and not train_on_target and not sides.has_targets:
        return carried_out(
            sides,
            WEIGHTED,
            "forecast: no gain can be foretold, since rows have no targets: weights assume that"
            " these follow inputs as before",
            train_on_target,
            weights_of,
        )
    if proxy is None:
        raise _CannotTellError(
            "no proxy knows such targets (give one class a row, as labels of the data, or few"
            " numbers)"
        )
    judge = Judge(sides, proxy, weights_of)
    if not judge.folds:
        raise _CannotTellError("too few rows of the target do not depend on each other")
    weighted = [] if weights_of is None else [WEIGHTED, WEIGHTED_BOTH]
    found = judge.judge([*PLAIN, *weighted] if train_on_target else [OLD, WEIGHTED, FLAT])
    if not train_on_target:
        less, error = judge.gain(found[1].losses, found[2].losses)
        found = [found[0], found[2] if less > error else found[1]]
    chosen, quoted = choose(found, judge)
    told = train_on_target and sides.old.kind == TABLE and (date is not None or in_order)
    past = _past(sides, proxy, date, horizon) if told else None
    said = ""
    if past is not None:
        said = past.sentence(chosen.decision, proxy.unit)
        if chosen.decision == BOTH and chosen.low <= 0 <= chosen.high:
            possible = [each.decision for each in found if _may_be_better(each, chosen, judge)]
            better = past.better_than_both(possible)
            if better is not None:
                chosen = quoted = next(each for each in found if each.decision == better)
                said = past.sentence(better, proxy.unit, "over_both")
    decision, sentence = chosen.decision, answer(quoted, found, proxy.unit, judge.said, said)
    if isinstance(proxy, Trees) and _doubted(chosen, judge, proxy):
        decision = both_or_old(found).decision
        trees_say = f"trees say {in_words(chosen.decision)}, {judge.said}"
        rows = in_words(decision)
        sentence = f"forecast: cannot tell, it depends on the model: {trees_say}: {rows}"
    more = {"unit": proxy.unit, "proxy": proxy.name}
    lines = [
        {
            **each.line(**more, chosen=each.decision == chosen.decision),
            **({} if past is None else past.line(each.decision)),
        }
        for each in found
    ]
    made = carried_out(sides, decision, sentence, train_on_target, weights_of)
    if past is None:
        return replace(made, lines=lines)
    return replace(made, lines=lines, past=past.lines, today=past.today, notes=past.notes())


def _past(
    sides: Sides, proxy: Proxy | None, date: str | None, horizon: float | None
) -> Past | None:
    """Earlier moments; a note says why there are none of rows that have an order."""
    if not isinstance(proxy, Trees | Linear):
        return None
    try:
        return past_of(sides, proxy, date, horizon)
    except NoMomentsError as reason:
        sides.notes.append(f"no earlier moments, since {reason}")
        return None


def _by_moments(
    sides: Sides, train_on_target: bool, date: str, horizon: float | None, dates: int
) -> Forecast:
    """The forecast where the target has so few ``dates`` that it cannot judge later rows itself."""
    reason = (
        f"the target has {dates} date{'s' * (dates > 1)} in {date!r}, and {FORWARD_PARTS} are"
        " needed to judge later rows by"
    )
    proxy = proxy_of(sides)
    past = _past(sides, proxy, date, horizon) if train_on_target else None
    if proxy is None or past is None:
        raise _CannotTellError(reason)
    better = past.better_than_both(PLAIN)
    decision = BOTH if better is None else better
    said = past.sentence(decision, proxy.unit, "gain" if better is None else "over_both")
    sentence = f"forecast: {in_words(decision)}, {said}; {reason}"
    unknown = {"gain": None, "low": None, "high": None, "unit": proxy.unit, "proxy": proxy.name}
    lines = [
        {"decision": each.name, **unknown, "chosen": each == decision, **past.line(each)}
        for each in PLAIN
    ]
    made = carried_out(sides, decision, sentence, train_on_target)
    return replace(made, lines=lines, past=past.lines, today=past.today, notes=past.notes())


def _may_be_better(each: Judgement, both: Judgement, judge: Judge) -> bool:
    """Whether the folds do not show that a decision is worse than both."""
    value, error = judge.gain(both.losses, each.losses)
    return value + Z * error >= 0


def _doubted(chosen: Judgement, judge: Judge, trees: Trees) -> bool:
    """Whether a linear model says the opposite of what trees say of the chosen decision."""
    if chosen.decision == OLD or not (chosen.low > 0 or chosen.high < 0):
        return False
    linear = replace(judge, proxy=Linear(judge.sides, trees.x, trees.y))
    other = linear.judge([OLD, chosen.decision])[1]
    return (chosen.low > 0 and other.high < 0) or (chosen.high < 0 and other.low > 0)


def carried_out(
    sides: Sides,
    decision: Decision,
    sentence: str,
    train_on_target: bool,
    weights_of: WeightsOf | None = None,
) -> Forecast:
    """A decision with how often rows are drawn by it."""
    old, new = len(sides.old), len(sides.target)
    if decision == OLD:
        return Forecast(decision, sentence)
    weights = torch.full((old,), float(decision.old), dtype=torch.float64)
    if decision.weighted and weights_of is not None:
        weights = weights_of(sides.everything, torch.arange(old)) ** decision.power
        weights /= weights.mean()
        if not decision.times and bool(weights.min() == weights.max()):
            return Forecast(OLD, "forecast: train on the old rows: none of them is like the target")
    if train_on_target:
        of_target = torch.full((new,), float(decision.times), dtype=torch.float64)
        weights = torch.cat([weights, of_target])
    return Forecast(decision, sentence, weights / weights.mean())


def _few_threads(sides: Sides) -> Any:
    """One thread for rows of which several gain nothing: beside other work they would wait."""
    import sklearn.ensemble  # noqa: F401  # only what is loaded is limited
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1 if sides.old.kind in (TABLE, TEXTS, TOKENS) else None)


def least_fit(sides: Sides) -> float:
    """FLOPs that fitting an estimator to the sample takes at least, before it is fitted.

    0 for tables, whose trees are timed, and for the features of a model, of which it is not known.
    """
    old = sides.old
    if old.of_model or old.kind == TABLE:
        return 0.0
    x = old.features(torch.arange(min(READ, len(old))))
    if old.kind in (TEXTS, TOKENS):
        return float(4 * ITERATIONS * x.nnz * sides.sampled / x.shape[0])
    return 2.0 * sides.sampled * x.shape[1] ** 2


_known: WeakKeyDictionary[Any, WeakKeyDictionary[Any, dict[Any, Forecast]]] = WeakKeyDictionary()
"""Of two data sets: all runs of a comparison carry out the same forecast, which is told first."""


def forecast_of(
    data: Any,
    target: Any = None,
    features: FeaturesOf | None = None,
    classes: bool | None = None,
    most: float = math.inf,
    horizon: float | None = None,
    given: Forecast | None = None,
) -> Forecast:
    """The forecast for data sets, made once; see `forecast`.

    ``target``: rows that weigh those of ``data``; ``None`` for `joined` data, whose target may be
    trained on. ``most``: FLOPs that it may take, else it is told that these are not spent.
    ``given``: one of the same old rows, which is carried out. Raises ``ValueError`` for one of
    other rows.
    """
    data = held_data(data)  # a run of a comparison knows the data of its loaders
    whole = data if target is None else held_data(target)
    try:
        known = _known.setdefault(data, WeakKeyDictionary()).setdefault(whole, {})
    except TypeError:  # of lists there are no weak references
        known = {}
    found = known.get((features, classes))
    if given is not None:
        old = old_rows(data) if target is None else len(data)
        resized = _resized(given, old, len(data) - old)
        found = known[features, classes] = replace(resized, tables=None)  # known by weak references
    if found is None or found.flops > most:
        old, new = divide_joined(data) if target is None else (data, whole)
        sides = sides_of(old, new, features, classes)
        try:
            found = foretell(sides, target is None, most, horizon=horizon)
        except TooCostlyError as reason:  # another run may afford it
            return cannot_tell(sides, target is None, str(reason))
        known[features, classes] = found
    return found


def _resized(found: Forecast, old: int, new: int) -> Forecast:
    """A forecast for ``old`` rows and ``new`` ones of a target, which may be fewer than it knew."""
    if found.weights is None:
        return found
    weights, rest = found.weights[:old], found.weights[old:]
    of_target = rest[:1].expand(new)
    if len(weights) < old or bool(rest.ne(of_target[:1]).any()) or (new and not len(rest)):
        raise ValueError(
            f"forecast is of {len(found.weights):,} rows, and train has {old:,} before those of the"
            " target: give one of the same old rows and a target that may be trained on"
        )
    weights = torch.cat([weights, of_target])
    return replace(found, weights=weights / weights.mean())


def held_data(data: Any) -> Any:
    """The data set that loaders hold as a whole, or ``data`` themselves."""
    while (held := within(data)) is not None and held.known and held.rows is None:
        data = held.data
    return data


def weights(
    train: Any,
    target: Any = None,
    *,
    features: FeaturesOf | None = None,
    classes: bool | None = None,
) -> Tensor:
    """How often each training row should be drawn: float64 ``[N]``, mean 1.

    All 1 where the target does not differ, or where choosing by it is not expected to gain; see
    `forecast` for the arguments. Of data of `joined` alone, without ``target``: of old and target
    rows, ``[N + M]``, as the policy draws them. Nothing is trained but estimators of rows or
    features.
    """
    found = forecast_of(train, target, features, classes)
    if found.weights is not None:
        return found.weights
    only_old = (torch.arange(len(train)) < old_rows(train)).double()
    return only_old / only_old.mean()
