"""Cards: one for whatever is registered, complete."""

from __future__ import annotations

from astkit.gating import cards
from astkit.names import REGISTRIES, resolve


def test_the_tables_have_a_row_for_each_registered_name_with_its_own_card() -> None:
    for kind, rows in (("controller", cards.controllers()), ("policy", cards.policies())):
        assert [row[kind] for row in rows] == list(REGISTRIES[kind])
        for row in rows:
            made = resolve(kind, row[kind])
            assert "card" in vars(made)  # not inherited
            assert row == {**row, **made.card._asdict()}
            for entry in made.card:
                assert len(entry) > 5
                assert "\n" not in entry
    gains = {row["controller"]: row["gains"] for row in cards.controllers()}
    assert (gains["log_integral"], gains["origin_pi"], gains["top_k"]) == (
        "gain",
        "kp, ki, alpha",
        "",
    )
