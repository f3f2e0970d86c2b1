"""Tables whose target follows another law, other inputs, or none of these."""

from __future__ import annotations

import numpy as np
import pandas as pd


def made(rows: int, seed: int, law: float = 1.0, shift: float = 0.0) -> pd.DataFrame:
    """Rows of which ``y`` is ``law * size``, plus what the place adds, plus noise."""
    draw = np.random.default_rng(seed)
    size = draw.normal(shift, 1, rows)
    place = draw.choice(["town", "field", "coast"], rows, p=[0.5, 0.3, 0.2])
    y = law * size + 0.5 * (place == "town") + 0.3 * draw.normal(size=rows)
    return pd.DataFrame({"size": size, "place": place, "noise": draw.normal(size=rows), "y": y})
