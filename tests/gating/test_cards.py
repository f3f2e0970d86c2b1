"""Cards: one for whatever is registered, complete."""

from __future__ import annotations

from astkit.gating import cards
from astkit.names import REGISTRIES, resolve


def test_whatever_is_registered_has_a_complete_card_of_its_own() -> None:
    for kind in ("controller", "policy"):
        for name in REGISTRIES[kind]:
            made = resolve(kind, name)
            assert "card" in vars(made)  # not inherited
            for entry in made.card:
                assert len(entry) > 5
                assert "\n" not in entry


def test_the_table_has_a_row_for_each_controller_with_its_card() -> None:
    rows = cards.controllers()
    assert [row["controller"] for row in rows] == list(REGISTRIES["controller"])
    for row in rows:
        assert row == {**row, **resolve("controller", row["controller"]).card._asdict()}
    gains = {row["controller"]: row["gains"] for row in rows}
    assert (gains["log_integral"], gains["origin_pi"], gains["top_k"]) == (
        "gain",
        "kp, ki, alpha",
        "",
    )
