"""The page of public names says what is there."""

from __future__ import annotations

from tests.benchmarks import surface


def test_only_code_counts_as_a_use() -> None:
    code = (
        "import astkit\nfrom astkit.trainers import Trainer as T\n"
        'astkit.compare(T.run, "Gate")  # Run'
    )
    assert surface.imported(code) == {
        f"astkit.{x}" for x in ("trainers.Trainer", "trainers.Trainer.run", "compare")
    }


def test_the_page_is_up_to_date() -> None:
    assert surface.PAGE.read_text(encoding="utf-8") == surface.page(), (
        "run python -m tests.benchmarks.surface"
    )
