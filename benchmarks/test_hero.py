"""README's picture says what the committed results say."""

from __future__ import annotations

from benchmarks import hero, natural_training


def test_its_rows_are_the_natural_shifts_and_then_the_made_conditions() -> None:
    rows = hero.rows()
    names = [*natural_training.SOURCES.values(), *(words for _, words in hero.MADE)]
    assert [each.name for each in rows] == names
    assert all(each.gain[1] <= each.gain[0] <= each.gain[2] for each in rows)


def test_a_title_counts_intervals_that_exclude_0() -> None:
    gains = [(5.0, 1.0, 9.0), (-5.0, -9.0, -1.0), *[(1.0, -1.0, 3.0)] * len(hero.MADE)]
    shown = [hero.Row(f"row {n}", gain, 2.0, "%") for n, gain in enumerate(gains)]
    title = "aim gains in 1 of 2 real tables and 0 of 6 made cases; 1 significant loss"
    assert hero.title(shown).replace("\n", " ") == title
    assert [each.words for each in shown[:3]] == ["+5.0 %", "-5.0 %", "+1.0 %"]
    figure = hero.picture(shown, hero.LIGHT)
    assert len(figure.axes[0].patches) == len(shown)


def test_what_readme_says_of_both_holds() -> None:
    rows = {each.name: each for each in hero.rows()}
    law = rows["table: older rows follow another law"]
    assert law.gain[1] > law.both
    for name in natural_training.SOURCES.values():
        assert rows[name].gain[1] <= rows[name].both <= rows[name].gain[2]
