"""README's picture says what the committed results say."""

from __future__ import annotations

from tests.benchmarks import hero, natural_training


def test_its_rows_are_the_natural_shifts_and_then_the_made_conditions() -> None:
    rows = hero.rows()
    names = [*natural_training.SOURCES.values(), *(words for _, words in hero.MADE)]
    assert [each.name for each in rows] == names
    assert all(each.gain[1] <= each.gain[0] <= each.gain[2] for each in rows)


def test_a_title_counts_intervals_that_exclude_0() -> None:
    gains = [(5.0, 1.0, 9.0), (-5.0, -9.0, -1.0), (1.0, -1.0, 3.0)]
    shown = [hero.Row(f"row {n}", gain, None, "%") for n, gain in enumerate(gains)]
    assert hero.title(shown).replace("\n", " ").endswith("a gain in 1 of 3 cases, a loss in 1")
    assert [each.words for each in shown] == ["+5.0 %", "-5.0 %", "+1.0 %"]
    figure = hero.picture(shown, hero.LIGHT)
    assert len(figure.axes[0].patches) == 3
