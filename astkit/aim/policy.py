"""The policy `Aim`: rows in proportion to p_target(x, y) / p_training(x, y), if that gains."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from astkit import rng
from astkit.aim.decisions import OLD, WEIGHTED, Z
from astkit.aim.estimators import least_fit
from astkit.aim.features import IMAGES, TABLE, TEXTS, TOKENS, UNKNOWN, FeaturesOf, Rows
from astkit.aim.forecast import Forecast, forecast
from astkit.aim.gains import ExpectedGain, best_power
from astkit.aim.pair import Pair
from astkit.aim.plans import (
    DataPlan,
    WeightsOf,
    plan_of_both,
    plan_of_rows,
    plan_of_tables,
    ratio_of_tables,
)
from astkit.aim.ratio import (
    LOWEST,
    Difference,
    class_factor,
    class_test,
    input_ratio,
    input_test,
)
from astkit.datasets.dependence import FEWEST as FEWEST_INDEPENDENT
from astkit.datasets.facts import paired_groups, read_alike
from astkit.datasets.joined import divide_joined
from astkit.datasets.loader import old_rows
from astkit.datasets.table import Table
from astkit.gating.policies.draws import draw_systematic
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection, check_samples
from astkit.progress import warn

LEVEL = 0.01  # probability of any false alarm in a run without a shift
TESTS = 3  # of a run: classes, inputs before training, inputs as the model sees them
FEWEST, FEWEST_TRAINED = 100, 12  # rows of a target, and of the training data
ASKED = 2000  # training rows of a test with the features of the model
FITS = 16  # of weights and proxies, each about what the fit of the test would cost on all rows
MOST = 0.25  # share of the FLOPs of a run that may go into them
PASSES, FORWARD = 0.05, 1 / 3
"""Share of the FLOPs of a run that may go into passes on the model; share of a step's FLOPs that
its forward pass takes, about."""
ALIKE = "nothing to gain, the training data are like the target (AUC {auc:.2f})"
VARIES = (
    "cannot tell, random transforms change the rows of either the training data or the target: let"
    " both data sets have an attribute transform, or apply them in the collate_fn of a DataLoader"
)


@dataclass(frozen=True)
class RowWeights:
    """How training rows are to be drawn, and the FLOPs spent on it.

    Attributes:
        weights: float64 ``[N]``, mean 1; ``None``: all rows alike.
        left_out: columns of a table that are not compared, since they tell every row apart.
    """

    weights: Tensor | None
    forecast: ExpectedGain
    flops: float
    left_out: tuple[str, ...] = ()


class Aim(Policy):
    """Draws as many rows as dense training, in the shares that a forecast found best.

    Example::

        trainer = Trainer(model, train, validation, policy=Aim(), epochs=5)

    1. The target are rows that may be trained on, see `astkit.joined`; else the validation data.
    2. Target rows of a table: `astkit.forecast` chooses between old rows, both, target rows counted
       several times, the target alone, and old rows weighted by p_target(x, y) / p_old(x, y). Of
       texts, images and arrays a quick model of features judges the same, up to target rows x4.
    3. Validation data: old rows are weighted, if the interval of the forecast's gain excludes 0.
    4. A test comes before weights: without a difference that it finds, no row is weighted.
    5. Then rows are drawn in proportion to the weights; the loss is their plain mean.
    6. With images and validation data the model is asked again in the first epoch, unless a pass
       over all rows would take more than `PASSES` of the run.
    7. Beside a budget of which this would take more than `MOST`, nothing is weighted.

    Rows that depend on each other, as several of one patient, are judged together: give both data
    sets an attribute ``groups`` with a number or name a row. Random transforms are left out of the
    comparison where both data sets have the attribute ``transform``.

    Args:
        features: computes features ``[n, d]`` of the inputs of n rows, for data other than images,
            texts and tables.

    Raises ``ValueError`` during training without a target, or with validation data of fewer than
    `FEWEST` rows in its place.
    """

    card = PolicyCard(
        source="Xie et al., DSIR, NeurIPS 2023, and Fang et al., dynamic importance weighting,"
        " NeurIPS 2020; the decisions, the test and abstention are from this package",
        cost="none for skipped rows; a forecast before training; for images with validation data a"
        " pass over 2,000 rows and, where the model sees a difference, over all: at most 5 % of the"
        " run",
        bias="towards the target; intended, not corrected",
        avoid="if the validation data are not like the data that count",
    )
    rounds = 4
    draws_target = True
    state: ClassVar[tuple[str, ...]] = ("drawn_by", "power", "stage")
    drawn_by: Tensor | None = None  # float64 [N], of joined data [N + M]; None: all old rows
    power: float = 0.0  # to which the ratio was taken for it
    stage: int = 0  # tests so far: none, the early one, all

    def __init__(self, features: FeaturesOf | None = None, seed: int = 0) -> None:
        self.features, self.seed = features, seed

    def plan(self, run: RunInfo) -> Selection | None:
        if self.stage == 0:
            self._ask_early(run)
        elif self.stage == 1 and run.round == self.rounds - 1:
            self._ask_the_model(run)
        if self.drawn_by is None:
            return None
        check_samples(self, self.drawn_by, run)
        weights = self.drawn_by
        if self.stage == 1:  # the model is to be asked about rows that it has not learnt
            weights = weights.index_fill(0, rows_to_ask(weights, run.seed), 0.0)
        epoch = draw_systematic(weights, run.draws, rng.generator(run.seed, "aim", run.epoch))
        first = run.draws * run.round // self.rounds
        return Selection(epoch[first : first + len(run.rows)])

    def check(self, run: RunInfo) -> None:
        if run.joined:
            return
        both = pair(run.data, run.validation, self.features, run.seed, run.classes)
        if both.train.kind != UNKNOWN or run.features is None:
            for rows in (both.train, both.target):
                rows.features(torch.zeros(1, dtype=torch.int64))

    def _ask_early(self, run: RunInfo) -> None:
        """Compare the data with the target before the first step."""
        if run.joined:
            plan = plan_of(run.data, self.features, run.classes, flops_allowed(run))
            self.drawn_by, self.stage = plan.weights, 2
            self.flops += plan.flops
            return
        if are_tables(run.data, run.validation) and self.features is None:
            self.stage = 2
            self._use(weigh_by_forecast(run.data, run.validation))
            return
        both = pair(run.data, run.validation, self.features, run.seed, run.classes)
        kind, can_ask_model = both.train.kind, run.features is not None
        self.stage = 1 if can_ask_model and kind in (IMAGES, UNKNOWN) else 2
        if kind != UNKNOWN or not can_ask_model:
            self._use(weigh(both, most=flops_allowed(run)))

    def _ask_the_model(self, run: RunInfo) -> None:
        """Compare rows that are to be trained on next with the target, as the model sees them."""
        assert run.features is not None
        self.stage, features = 2, run.features
        data = read_alike(run.data, run.validation)  # as the trainer reads it for its features
        train = Rows(data, by_row=lambda rows: features(rows, "data"), classes=run.classes)
        target = Rows(
            run.validation, by_row=lambda rows: features(rows, "validation"), classes=run.classes
        )
        if share_of_passes(run, self.rounds, len(target)) > PASSES:
            warn(
                f"asking the model which rows are like the target would take more than {PASSES:.0%}"
                " of the run: it is not asked; train for more epochs"
            )
            return
        seen = Pair(train, target, run.seed)
        if self.drawn_by is None:
            self._use(weigh(seen, run.rows[:ASKED], flops_allowed(run)))
            return
        self.drawn_by = sharpen(seen, self.drawn_by, self.power, flops_allowed(run))
        self.flops += seen.total_flops()

    def _use(self, choice: RowWeights) -> None:
        if choice.forecast.unit:  # else no gain was judged, and drawing may well be worse
            self.drawn_by, self.power = choice.weights, choice.forecast.power
        self.flops += choice.flops


def share_of_passes(run: RunInfo, rounds: int, target: int) -> float:
    """Share of a run that passes take over all its rows, those asked about, and the target twice.

    By what the training steps so far took; ``target``: rows of it.
    """
    trained = run.draws * (run.epoch + run.round / rounds)
    rows = run.draws + min(ASKED, len(run.rows)) + 2 * target
    return FORWARD * rows / trained * run.progress


def flops_allowed(run: RunInfo) -> float:
    """FLOPs that estimators may take in a run."""
    return math.inf if run.budget is None else MOST * run.budget


def too_costly(fit: float, most: float) -> bool:
    """Whether weights and proxies would take more FLOPs than ``most``, with a warning.

    ``fit``: FLOPs of an estimator of all rows of the sample.
    """
    rest = FITS * fit
    if rest > most:
        warn(
            f"choosing by the target would take {rest:.1g} FLOPs, more than {MOST:.0%} of the run:"
            " all rows are trained on; give a larger budget, or weigh rows once by aim.weights"
        )
    return rest > most


_plans: WeakKeyDictionary[Any, dict[Any, DataPlan]] = WeakKeyDictionary()
"""Of joined data: all runs of a comparison carry out the same decision, which is told first."""


def plan_of(
    data: Any,
    features: FeaturesOf | None = None,
    classes: bool | None = None,
    most: float = math.inf,
) -> DataPlan:
    """Which of the rows of `joined` ``data`` to train on, and how often; see `Aim`.

    It depends on the data alone, so that it is computed once for all runs that can afford it.
    """
    known = _plans.setdefault(data, {})
    plan = known.get((features, classes))
    if plan is None or plan.flops > most:
        plan = _plan(data, features, classes, most)
        if plan is None:
            count = old_rows(data)
            too_much = "a forecast would cost too much"
            return plan_of_both(count, len(data) - count, too_much)
        known[features, classes] = plan
    return plan


def _plan(
    data: Any, features: FeaturesOf | None, classes: bool | None, most: float
) -> DataPlan | None:
    """The same, computed; ``None`` if that would take more FLOPs than ``most``."""
    old, new = divide_joined(data)
    if isinstance(data, Table):
        return plan_of_tables(old, new)
    if few := too_few(old, new, "fewer than"):
        return plan_of_both(len(old), len(new), few)
    sides = pair(old, new, features, 0, classes)
    whole = Rows(data, features, classes=classes)
    both = Pair(whole, Rows(new, features, classes=classes))  # proxies see what models see
    with _few_threads(sides):
        if too_costly(least_fit(sides), most):
            return None
        if sides.worth < FEWEST_INDEPENDENT:
            few = f"the target's rows are worth about {sides.worth:.0f} independent ones"
            return plan_of_both(len(old), len(new), few)
        plan = plan_of_rows(sides, both, _find_shift(sides)[0])
    return replace(plan, flops=sides.total_flops() + both.total_flops())


def too_few(train: Any, target: Any, than: str) -> str:
    """As "the target has 60 rows, fewer than 100" where one has too few rows; else empty."""
    sizes = (("target has", target, FEWEST), ("training data have", train, FEWEST_TRAINED))
    for name, rows, least in sizes:
        if len(rows) < least:
            return f"the {name} {len(rows)} rows, {than} {least}"
    return ""


def _few_threads(pair: Pair) -> Any:
    """One thread for rows of which several gain nothing: beside other work they would wait."""
    import sklearn.ensemble  # noqa: F401  # only what is loaded is limited
    from threadpoolctl import threadpool_limits

    few = pair.train.kind in (TABLE, TEXTS, TOKENS)
    return threadpool_limits(1) if few else nullcontext()


def weigh(pair: Pair, unseen: Tensor | None = None, most: float = math.inf) -> RowWeights:
    """Weights and forecast for a pair of training data and target.

    ``unseen``: int64, the training rows of the test, in random order; by default any. ``most``:
    FLOPs that may be spent after it.
    """
    start = time.perf_counter()
    with _few_threads(pair):
        weights, expected = _weights_and_forecast(pair, unseen, most)
    took = time.perf_counter() - start
    expected = expected._replace(seconds=took, block=pair.train.block)
    return RowWeights(weights, expected, pair.total_flops())


def _weights_and_forecast(
    pair: Pair, unseen: Tensor | None, most: float
) -> tuple[Tensor | None, ExpectedGain]:
    """Weights, float64 ``[N]`` with mean 1 or ``None`` for all rows, and the forecast."""
    unaffordable = ExpectedGain(reason="none, choosing would cost too much")
    if too_costly(least_fit(pair), most):
        return None, unaffordable
    if pair.worth < FEWEST_INDEPENDENT:
        few = (
            "cannot tell, neighbouring rows of the target depend on each other, so that they are"
            f" worth about {pair.worth:.0f} independent ones, and {FEWEST_INDEPENDENT} are needed"
        )
        return None, ExpectedGain(reason=few)
    weights_of, test = _find_shift(pair, unseen)
    if weights_of is None:
        alike = VARIES if math.isnan(test.auc) else ALIKE.format(auc=test.auc)
        return None, ExpectedGain(reason=alike)
    tested = pair.sampled if unseen is None else len(unseen)
    if too_costly(pair.flops * pair.sampled / tested, most):
        return None, unaffordable
    expected, drawn_by = best_power(pair, weights_of), None
    all_unlike = bool(expected.unit) and not expected.error and test.auc > 1 - LOWEST / 2
    if expected.power:
        everything = torch.arange(len(pair.target))
        drawn_by = weights_of(everything, torch.arange(len(pair.train))) ** expected.power
        drawn_by /= drawn_by.mean()
        all_unlike = bool(drawn_by.min() == drawn_by.max())
    if all_unlike:
        unlike = f"nothing to choose, no training row is like the target (AUC {test.auc:.2f})"
        return None, ExpectedGain(reason=unlike)
    return drawn_by, expected


def _find_shift(pair: Pair, unseen: Tensor | None = None) -> tuple[WeightsOf | None, Difference]:
    """Weights by other class shares or inputs of the target, see `best_power`; test of the inputs.

    ``None`` without a difference.
    """
    whole = torch.ones(len(pair.train), dtype=torch.float64)
    labels = pair.labels
    if labels is not None and class_test(pair) > LEVEL / TESTS:
        labels = None  # the classes are as frequent in both

    def factor_of(of_target: Tensor) -> Tensor:
        return whole if labels is None else class_factor(labels[0], labels[1][of_target])

    test = input_test(pair, factor_of(torch.arange(len(pair.target))), unseen)
    inputs = test.p <= LEVEL / TESTS

    def weights_of(of_target: Tensor, rows: Tensor) -> Tensor:
        factor = factor_of(of_target)
        weights = factor[rows]
        if inputs:
            weights = weights * input_ratio(pair, factor, of_target, rows)
        return weights / weights.mean()

    return weights_of if inputs or labels is not None else None, test


def rows_to_ask(drawn_by: Tensor, seed: int) -> Tensor:
    """At most `ASKED` rows drawn in proportion to ``drawn_by [N]``, in random order: int64 ``[n]``.

    They are so few that none comes twice, since copies of fitted rows would be recognised, and half
    as many as that, so that there are others to train on before the model is asked about them.
    """
    once = float(drawn_by.sum() / drawn_by.max())
    count = min(ASKED, len(drawn_by) // 4, math.floor(once / 2))
    return draw_systematic(drawn_by, count, rng.generator(seed, "aim", "asked"))


def sharpen(pair: Pair, drawn_by: Tensor, power: float, most: float = math.inf) -> Tensor:
    """Weights ``drawn_by [N]`` times the ratio of the target to rows drawn by them, to a ``power``.

    The weights themselves where a test does not tell `rows_to_ask` from the target.
    """
    rows = rows_to_ask(drawn_by, pair.seed)
    if len(rows) < FEWEST_TRAINED or pair.worth < FEWEST_INDEPENDENT:
        return drawn_by
    alike = input_test(pair, torch.ones_like(drawn_by), rows).p > LEVEL / TESTS
    if alike or too_costly(pair.flops * pair.sampled / len(rows), most):
        return drawn_by
    everything = torch.arange(len(pair.target))
    left = input_ratio(pair, drawn_by, everything, torch.arange(len(pair.train)))
    sharper = drawn_by * left**power
    return sharper / sharper.mean()


def are_tables(train: Any, target: Any) -> bool:
    """Whether both are `Table` objects with labels, of which `astkit.forecast` knows more."""
    return isinstance(train, Table) and isinstance(target, Table) and target.labelled


_weighed: WeakKeyDictionary[Table, WeakKeyDictionary[Table, dict[int, RowWeights]]]
_weighed = WeakKeyDictionary()
"""Of tables: all runs of a comparison have the same weights, whose gain is told first."""


def weigh_by_forecast(train: Table, target: Table, seed: int = 0) -> RowWeights:
    """Weights of rows of a table that differs from the target, where `astkit.forecast` is sure.

    Its trees are timed; no FLOPs are booked for them. They are fitted once for two tables.
    """
    known = _weighed.setdefault(train, WeakKeyDictionary()).setdefault(target, {})
    if seed not in known:
        known[seed] = _weigh_by_forecast(train, target, seed)
    return known[seed]


def _weigh_by_forecast(train: Table, target: Table, seed: int) -> RowWeights:
    start = time.perf_counter()
    paired_groups(train, target)  # what is wrong with them is said
    both = Pair(Rows(train), Rows(target), seed)
    with _few_threads(both):
        known = both.worth >= FEWEST_INDEPENDENT
        weights_of, test = _find_shift(both) if known else (None, None)
    if test is not None and weights_of is None:
        seconds = time.perf_counter() - start
        alike = ExpectedGain(reason=ALIKE.format(auc=test.auc), seconds=seconds)
        return RowWeights(None, alike, 0.0)
    found = forecast(train, target, decisions=(OLD, WEIGHTED[0]), seed=seed)
    sure = found.decision.weighted and not found.doubt
    drawn_by = torch.from_numpy(ratio_of_tables(train, target, found)) if sure else None
    expected = _expected(found, sure)._replace(seconds=time.perf_counter() - start)
    return RowWeights(drawn_by, expected, 0.0, found.separating)


def _expected(found: Forecast, weighted: bool) -> ExpectedGain:
    """What a forecast says of weighted old rows."""
    if found.reason:
        return ExpectedGain(reason=f"cannot tell, {found.reason}")
    line: Any = found.table.to_dict("records")[1]
    error = (line["gain"] - line["low"]) / Z
    reason = "cannot tell, a linear model says the opposite of the trees" if found.doubt else ""
    return ExpectedGain(line["gain"], error, line["unit"], float(weighted), reason)


def weigh_data(
    train: Any,
    target: Any,
    features: FeaturesOf | None = None,
    seed: int = 0,
    classes: bool | None = None,
) -> RowWeights:
    """Weights and forecast of any training data and target; see `weights`."""
    if are_tables(train, target) and features is None:
        return weigh_by_forecast(train, target, seed)
    return weigh(pair(train, target, features, seed, classes))


def weights(
    train: Any,
    target: Any = None,
    *,
    features: FeaturesOf | None = None,
    seed: int = 0,
    classes: bool | None = None,
) -> Tensor:
    """How often each training row should be drawn: float64 ``[N]``, mean 1.

    All 1 where the target does not differ, or where choosing by it is not expected to gain; see
    `Aim` for the arguments. Of data of `joined` alone, without ``target``: of old and target rows,
    ``[N + M]``, as the policy draws them. ``classes``: whether whole-number targets name classes,
    not counts or ages; by default it is guessed, see `class_labels`. Nothing is trained but
    estimators of rows or features.
    """
    count = len(train)
    if target is None and (old := old_rows(train)) < count:
        plan = plan_of(train, features, classes)
        if plan.weights is not None:
            return plan.weights
        only_old = (torch.arange(count) < old).double()
        return only_old / only_old.mean()
    drawn_by = weigh_data(train, target, features, seed, classes).weights
    return torch.ones(count, dtype=torch.float64) if drawn_by is None else drawn_by


def expected_gain(
    train: Any,
    target: Any,
    *,
    features: FeaturesOf | None = None,
    seed: int = 0,
    classes: bool | None = None,
) -> ExpectedGain:
    """What choosing by the target is expected to gain; arguments as of `weights`."""
    return weigh_data(train, target, features, seed, classes).forecast


def pair(
    train: Any,
    target: Any,
    features: FeaturesOf | None = None,
    seed: int = 0,
    classes: bool | None = None,
) -> Pair:
    """A pair for `weigh`; ``ValueError`` without a target, or for one with too few rows."""
    if target is None:
        raise ValueError(
            "aim draws what the target needs, but there is no target: pass validation data like"
            " those that the model is meant for, validation=..."
        )
    paired_groups(train, target)
    rows = Rows(read_alike(train, target), features, classes=classes)
    made = Pair(rows, Rows(target, features, classes=classes), seed)
    remedy = "too few to compare the training data with the target: pass at least"
    if few := too_few(made.train, made.target, remedy):
        raise ValueError(few)
    if made.labels is not None and not torch.isin(*made.labels).any():
        raise ValueError(
            "no training row has a class of the target: pass a target of the classes of the"
            " training data"
        )
    return made
