"""The page of public names says what is there."""

from __future__ import annotations

from tests.benchmarks import surface


def test_the_page_is_up_to_date() -> None:
    assert surface.PAGE.read_text(encoding="utf-8") == surface.page(), (
        "run python -m tests.benchmarks.surface"
    )
