"""README's picture says what the committed results say."""

from __future__ import annotations

import pytest

from astkit.files import read_json
from benchmarks import hero, natural_training, shares


def test_its_rows_are_the_natural_shifts_and_then_the_made_conditions() -> None:
    rows = hero.rows()
    names = [*natural_training.SOURCES.values(), *(words for _, words in hero.MADE)]
    assert [each.name for each in rows] == names
    assert all(each.gain[0] < 101 for each in rows)
    assert all(each.gain[1] <= each.gain[0] <= each.gain[2] for each in rows)


def test_a_title_counts_intervals_that_exclude_0() -> None:
    gains = [(5.0, 1.0, 9.0), (-5.0, -9.0, -1.0), *[(1.0, -1.0, 3.0)] * len(hero.MADE)]
    shown = [hero.Row(f"row {n}", gain, 2.0) for n, gain in enumerate(gains)]
    title = "aim gains in 1 of 2 real tables and 0 of 6 made cases; 1 significant loss"
    assert hero.title(shown).replace("\n", " ") == title
    assert [each.words for each in shown[:3]] == ["+5.0 %", "-5.0 %", "+1.0 %"]
    figure = hero.picture(shown, hero.LIGHT)
    real, made = figure.axes
    assert [len(real.patches), len(made.patches)] == [2, len(hero.MADE)]
    assert real.get_xlim()[0] > -20


def test_what_readme_says_of_both_holds() -> None:
    rows = {each.name: each for each in hero.rows()}
    law = rows["table: older rows follow another law"]
    assert law.gain[1] > law.both
    for name in natural_training.SOURCES.values():
        assert rows[name].gain[1] <= rows[name].both <= rows[name].gain[2]


def test_points_of_accuracy_are_in_percent_of_the_wrong_answers() -> None:
    content = read_json(shares.SHARES)
    rows = [*content["rows"], *content["aim_on_target"]]
    begin, words = hero.MADE[2]
    (row,) = [
        each
        for each in rows
        if each["condition"].startswith(begin) and each["policy"] == shares.AIM_ON_TARGET
    ]
    assert row["unit"] == "points"
    shown = {each.name: each for each in hero.rows()}[words]
    before, after = 1 - row["dense"], 1 - row["dense"] - row["gain"] / 100
    assert shown.gain[0] == pytest.approx(100 * (before - after) / before)
