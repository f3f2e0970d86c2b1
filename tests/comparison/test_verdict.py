"""Verdicts: outcomes and sentences, corrected for several policies, and against chance."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats
from torch import Tensor

from astkit.comparison.report import Comparison, legend
from astkit.comparison.statistics import Interval
from astkit.comparison.units import by_group
from astkit.comparison.verdict import amount, judge
from tests.build import refused
from tests.comparison.test_statistics import entry

CLEAR = (0.02, 0.024, 0.018, 0.022, 0.021)
NOISY = (0.02, -0.01, 0.03, -0.005, 0.01)
SMALL = (0.001, -0.002, 0.0015, 0.0, -0.001)


def entries(
    gaps: Mapping[str, Sequence[float]], base: float = 0.85, **others: Any
) -> list[dict[str, Any]]:
    """Dense, and policies with these differences to it, by seed."""
    seeds = range(max(map(len, gaps.values())))
    rows = [entry("dense", seed, base) for seed in seeds]
    for name, values in gaps.items():
        rows += [entry(name, s, base + gap, **others) for s, gap in enumerate(values)]
    return rows


def said(
    gaps: Sequence[float], metric: str = "accuracy", higher: bool = True, **others: Any
) -> str:
    (found,) = judge(entries({"x": gaps}, **others), metric, higher)
    return found.sentence


def negative(values: Sequence[float]) -> list[float]:
    return [-value for value in values]


def worth(kind: str) -> Tensor:
    """What is common to all seeds on test rows that are worth about 15, 12 and 20 rows."""
    random = np.random.default_rng(0)
    if kind == "recording":
        values = signal.lfilter([1], [1, -0.95], random.normal(size=1000))[400:]
    elif kind == "groups":
        groups = np.arange(300) % 12
        own = random.normal(size=12)[groups] + random.normal(size=300)
        values = by_group(torch.from_numpy(own), torch.from_numpy(groups)).numpy()
    else:
        values = random.normal(size=20)
    values = np.asarray(values) - values.mean()
    return torch.from_numpy(0.005 * values / values.std())


@pytest.mark.parametrize("kind", ["recording", "groups", "few rows"])
def test_test_rows_that_are_worth_few_independent_ones_tell_nothing(kind: str) -> None:
    groups = 12 if kind == "groups" else None
    of_rows = worth(kind)
    runs = [{**run, "test_groups": groups} for run in entries({"x": CLEAR, "y": SMALL})]

    def results(run: Mapping[str, Any], rows: Tensor = of_rows) -> Tensor:
        return run["value"] + rows * (run["policy"] != "dense")

    for found in judge(runs, rows=results):
        assert found.outcome == "cannot tell yet"
        assert 8 < found.worth < 25
        assert found.worth == groups or groups is None
        assert f"worth about {found.worth:.0f} independent ones, and a verdict needs 30" in (
            found.sentence
        )
    more = of_rows[torch.from_numpy(np.random.default_rng(1).permutation(len(of_rows)))]
    more = torch.cat([more, more, more])
    better, _ = judge(runs, rows=lambda run: results(run, more))
    assert better.outcome == "better"
    assert better.worth >= 30
    assert "worth" not in better.sentence


def test_blocks_of_neighbouring_test_rows_are_said() -> None:
    values = signal.lfilter([1], [1, -0.8], np.random.default_rng(0).normal(size=3000))
    of_rows = torch.from_numpy(0.005 * (values - values.mean()))
    (found,) = judge(
        entries({"x": CLEAR}), rows=lambda run: run["value"] + of_rows * (run["policy"] != "dense")
    )
    assert found.outcome == "better"
    assert found.worth == pytest.approx(3000 / 9, rel=0.4)
    assert f"test rows in {found.blocks} blocks" in found.sentence
    assert f"they are worth about {found.worth:.0f} independent rows" in legend([found])
    (plain,) = judge(entries({"x": CLEAR}))
    assert plain.blocks is None
    assert "block" not in plain.sentence + legend([plain])


def test_each_outcome_has_its_sentence() -> None:
    plain = "5 seeds, same FLOPs, 1.00 x the time"
    gained, lost = (f"accuracy 2.1 points {word} [1.8, 2.4]" for word in ("higher", "lower"))
    sentences = {
        said(CLEAR): f"x: better: {gained}, {plain}",
        said(negative(CLEAR)): f"x: worse: {lost}, {plain}",
        said(negative(CLEAR), "loss", False): f"x: better: loss 2.5 % lower [2.1, 2.8], {plain}",
        said(CLEAR, "loss", False): f"x: worse: loss 2.5 % higher [2.1, 2.8], {plain}",
        said(CLEAR, "recall"): f"x: better: recall 0.021 higher [0.018, 0.024], {plain}",
        said(CLEAR, seconds=61.0, flops=None): f"x: better: {gained}, 5 seeds, same budget,"
        " 3.05 x the time",
        said(SMALL, seconds=None): "x: no gain above 0.5 points: accuracy 0.0 points lower"
        " [-0.2, 0.2], 5 seeds, same FLOPs",
        said(NOISY, flops=85.0): "x: cannot tell yet: accuracy 0.9 points higher [-1.2, 3.0],"
        " 5 seeds, 0.85 x the FLOPs, 1.00 x the time; about 20 more seeds would show a gain of"
        " this size",
        said(NOISY[:1]): "x: cannot tell yet: accuracy 2.0 points higher, 1 seed, same FLOPs,"
        " 1.00 x the time; one seed has no interval, so add seeds",
        said([0.0] * 5): f"x: cannot tell yet: accuracy 0.0 points higher, {plain}; all seeds give"
        " the same difference, so its spread is unknown",
        said(CLEAR, flops=150.0): f"x: cannot tell yet: {gained}, 5 seeds, 1.50 x the FLOPs,"
        " 1.00 x the time; above 1.1 x the FLOPs a gain is not one at equal cost: try a larger"
        " budget",
        said(negative(CLEAR), flops=150.0): f"x: worse: {lost}, 5 seeds, 1.50 x the FLOPs,"
        " 1.00 x the time",
        said([math.nan]): "x: cannot tell yet: 0 seeds, same budget;"
        " 1 seed without a finite accuracy",
        said([*CLEAR, math.nan]): f"x: cannot tell yet: {gained}, {plain}; a gain with failed seeds"
        " does not count; 1 seed without a finite accuracy",
        said((-0.01, 0.0, -0.012)): "x: cannot tell yet: accuracy 0.7 points lower [-0.9, 2.3],"
        " 3 seeds, same FLOPs, 1.00 x the time; about 5 more seeds would show a difference of this"
        " size",
    }
    assert list(sentences) == list(sentences.values())
    assert not any("+" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("gaps", "others", "rule"),
    [
        ({"x": [*CLEAR, math.nan]}, {}, "failed seeds"),
        ({"x": CLEAR}, {"flops": 150.0}, "1.50 x the FLOPs"),
        ({"x": CLEAR}, {"scores_counted": False}, "scores not counted"),
        (
            {"x": (0.01, 0.03, 0.011, 0.004, 0.014), "y": NOISY, "z": NOISY},
            {},
            "3 policies compared",
        ),
        ({"x": CLEAR}, {}, ""),
        ({"x": NOISY}, {"flops": 150.0}, ""),  # the interval contains 0
    ],
)
def test_an_open_outcome_beside_an_interval_without_0_names_its_rule(gaps, others, rule) -> None:
    rows = entries(gaps, **others)
    found = judge(rows)[0]
    assert found.rule == rule
    shown = {"entries": rows, "metric": "accuracy", "higher": True}
    report = Comparison({**shown, "settings": {"test_order": False}}, Path("nowhere"))
    texts = [text.get_text() for text in report.plot().axes[0].texts]
    words = found.words + f", {rule or (others and found.cost)}" * bool(rule or others)
    assert words in [text.replace("\n", " ") for text in texts]


@pytest.mark.parametrize("gaps", [CLEAR, negative(CLEAR), SMALL])
def test_without_the_cost_of_its_scores_a_policy_has_no_verdict(gaps: Sequence[float]) -> None:
    words = judge(entries({"x": gaps}, scores_counted=True))[0].words
    (found,) = judge(entries({"x": gaps}, scores_counted=False))
    assert (found.outcome, found.better) == ("cannot tell yet", None)
    assert words != "cannot tell yet"
    assert "same FLOPs without the scores, " in found.sentence
    assert "; scores not counted, so nothing can be told at equal cost: give the policy cost=" in (
        found.sentence
    )


def test_seeds_at_which_dense_training_failed_are_told() -> None:
    rows = entries({"x": CLEAR})
    rows[1]["value"] = math.nan
    (found,) = judge(rows)
    assert (found.n, found.dense_failed) == (4, 1)
    assert found.sentence.endswith("; 1 seed left out, where dense training failed")


def test_gains_below_the_smallest_one_are_none_where_it_is_given() -> None:
    for higher in (True, False):
        gaps = SMALL if higher else negative(SMALL)
        (loss,) = judge(entries({"x": gaps}), "RMSE", higher)
        assert (loss.outcome, loss.smallest_gain) == ("cannot tell yet", None)
        (given_,) = judge(entries({"x": gaps}), "RMSE", higher, smallest_gain=0.003)
        assert given_.outcome == "no gain"
        assert given_.words == "no gain above 0.003 in RMSE"
    tiny = [0.001 + 0.0001 * gap for gap in NOISY]
    assert judge(entries({"x": tiny}))[0].outcome == "better"  # the sign comes first


def test_outcomes_are_corrected_for_all_policies_and_say_so() -> None:
    weak, under = (0.02, 0.004, 0.01, 0.02, 0.002), (0.0035, -0.004, 0.002, 0.003, -0.0045)
    assert 0.025 < stats.ttest_1samp(weak, 0).pvalue < 0.05
    assert 0.0125 < stats.ttest_1samp(under, 0.005, alternative="less").pvalue < 0.025
    alone = [judge(entries({"x": gaps}))[0] for gaps in (weak, under)]
    assert [each.outcome for each in alone] == ["better", "no gain"]
    two = judge(entries({"weak": weak, "under": under}))
    assert [each.outcome for each in two] == ["cannot tell yet"] * 2
    assert [each.difference for each in two] == [each.difference for each in alone]
    assert two[0].sentence.endswith(
        "; it excludes 0, but not after correction for 2 policies (Holm)"
    )
    assert "; it excludes a gain of 0.5 points, but not after correction" in two[1].sentence
    # Holm's second test is at the full level
    assert [each.outcome for each in judge(entries({"a": CLEAR, "weak": weak}))] == ["better"] * 2


def test_a_policy_that_does_not_beat_random_samples_says_so() -> None:
    rows = entries({"x": CLEAR, "random at 1.00": CLEAR[::-1]})
    (found,) = judge(rows)
    expected = stats.ttest_1samp(np.subtract(CLEAR, CLEAR[::-1]), 0).confidence_interval()
    assert found.to_random[1:3] == pytest.approx(tuple(expected))
    words = amount(found.to_random, "accuracy")
    assert found.beats_random is False
    assert found.sentence.endswith(f"; against random samples {words}: not shown to beat them")
    lost = entries({"x": negative(CLEAR), "random at 1.00": negative(CLEAR[::-1])})
    assert "not shown to beat them" in judge(lost, "loss", False)[0].sentence
    better = judge(entries({"x": CLEAR, "random at 1.00": NOISY[:1] * 5}))[0]
    worse = judge(entries({"x": CLEAR, "random at 1.00": negative(CLEAR)}))[0]
    assert (better.beats_random, worse.beats_random) == (False, True)
    assert "random" not in worse.sentence
    assert judge(entries({"x": CLEAR}))[0].beats_random is None
    for row in rows:
        row["rate"] = 0.3 if row["seed"] < 2 or row["policy"] != "x" else 0.4
    assert judge(rows)[0].sentence.endswith(", 2 seeds: not shown to beat them")


def test_entries_without_a_control_or_with_duplicates_are_refused() -> None:
    rows = entries({"x": CLEAR})
    refused(
        (lambda: judge(rows[5:]), "entries hold no 'dense' runs: train it for the same"),
        (lambda: judge([*rows, rows[-1]]), "entries hold 'x' twice for seed 4: keep one of them"),
    )
    assert judge([]) == judge(rows[:5]) == []
    unpaired = judge([rows[0], entry("x", 7)])[0]
    assert (unpaired.n, unpaired.outcome, unpaired.failed) == (0, "cannot tell yet", 0)


def simulated(
    random: np.random.Generator, seeds: int, rows: int, effect: float
) -> tuple[list[dict[str, Any]], Callable[[Any], Tensor]]:
    """Two methods whose accuracies on all possible rows differ by about 0.35 times ``effect``."""
    results, found = {}, list[dict[str, Any]]()
    difficulty = random.normal(size=rows)
    for name, shift in (("dense", 0.0), ("x", effect)):
        of_rows = difficulty + 0.5 * random.normal(size=rows) + 0.7 + shift
        for seed in range(seeds):
            right = of_rows + 0.3 * random.normal(size=rows) > 0
            results[name, seed] = torch.from_numpy(right).float()
            found.append(entry(name, seed, float(right.mean())))
    return found, lambda run: results[run["policy"], run["seed"]]


def test_rows_widen_every_interval_and_a_policy_that_equals_dense_gains_nothing() -> None:
    rows, results = simulated(np.random.default_rng(1), seeds=4, rows=500, effect=0.4)
    rows += [{**row, "policy": "same"} for row in rows[:4]]

    def tested(run: Any) -> Tensor:
        return results({**run, "policy": "x" if run["policy"] == "x" else "dense"})

    found = {each.policy: each for each in judge(rows, rows=tested)}
    alone = {each.policy: each for each in judge(rows)}
    width = [each["x"].difference.high - each["x"].difference.low for each in (found, alone)]
    assert width[0] > width[1]
    same = found["same"]
    assert same.outcome == "no gain"
    assert "no gain above 0.5 points: accuracy 0.0 points higher [0.0, 0.0]," in same.sentence
    loss = judge(rows, "loss", rows=tested)
    assert loss[1].sentence.endswith("; the same results on every test row")
    missing = judge(rows, rows=lambda run: tested(run) if run["seed"] else None)
    assert [each.test_rows for each in missing] == [False] * 2


def test_too_few_test_rows_are_told_instead_of_seeds() -> None:
    rows, results = simulated(np.random.default_rng(2), seeds=10, rows=100, effect=0.15)
    (verdict,) = judge(rows, rows=results)
    assert verdict.needed == math.inf
    few = "; however many seeds, more test rows are needed to show a gain of this size"
    assert verdict.sentence.endswith(few)


def test_amounts_have_the_decimals_that_their_intervals_support() -> None:
    nan = math.nan
    shown = {
        amount(Interval(0.0021, -0.0049, 0.0091, 5), "accuracy"): "0.2 points higher [-0.5, 0.9]",
        amount(Interval(-0.0062, -0.0094, 0.001, 5), "accuracy"): "0.6 points lower [-0.1, 0.9]",
        amount(Interval(-0.00001, -0.3, 0.3, 5), "accuracy"): "0.0 points lower [-30.0, 30.0]",
        amount(Interval(-0.062, -0.084, -0.04, 5), "loss", 2.0): "3.1 % lower [2.0, 4.2]",
        amount(Interval(0.00123, nan, nan, 1), "loss"): "0.0012 higher",
        amount(Interval(0.00123, nan, nan, 1), "loss", 12.3): "0.01 % higher",
        amount(Interval(0.00123, nan, nan, 1), "balanced accuracy", 0.5): "0.12 points higher",
        amount(Interval(0.02, 0.01, 0.03, 5), "likelihood", -3.0): "0.02 higher [0.01, 0.03]",
        amount(Interval(-3e-7, -5e-7, -1e-7, 5), "MSE"): "3e-07 lower [1e-07, 5e-07]",
        amount(Interval(nan, nan, nan, 0), "MSE"): "–",
        amount(Interval(0.0, nan, nan, 1), "loss"): "0.0 higher",
    }
    assert list(shown) == list(shown.values())


ROWS = st.lists(
    st.lists(st.floats(-0.3, 0.3).map(lambda x: round(x, 3)), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@given(ROWS, st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=40, deadline=None)
def test_outcomes_do_not_depend_on_order_and_mirror_with_the_metric(rows, random, higher):
    gaps = {f"policy {place}": row for place, row in enumerate(rows)}
    found = {each.policy: each for each in judge(entries(gaps, base=0.0), higher=higher)}
    mirrored = entries({name: negative(row) for name, row in gaps.items()}, base=0.0)
    random.shuffle(mirrored)
    for each in judge(mirrored, higher=not higher):
        twin = found[each.policy]
        assert each.outcome == twin.outcome
        assert (each.better, each.n, each.needed) == (twin.better, twin.n, twin.needed)
        assert each.difference.mean == pytest.approx(-twin.difference.mean, abs=1e-12)
        assert "nan" not in each.sentence
        if each.n < 2 or not any(gaps[each.policy]):
            assert each.outcome == "cannot tell yet"
