"""Pictures of a lattice: what is drawn is what was recorded."""

import numpy as np
import pandas as pd
import pytest

from astkit.systems.lattice import plots


@pytest.fixture
def flows() -> pd.DataFrame:
    """Two flows of three steps; the second's slot is then taken by another flow."""
    rows = [
        {"step": step, "slot": slot, "x": slot + 0.1 * step, "y": 1.0, "z": 0.9 * step, "energy": e}
        | {"age": step}
        for slot, e in ((0, 0.5), (1, -0.2))
        for step in range(3)
    ]
    rows.append({"step": 3, "slot": 1, "x": 0.0, "y": 0.0, "z": 2.3, "energy": 0.1, "age": 0})
    table = pd.DataFrame(rows)
    return table.assign(born=table["step"] - table["age"])


def test_a_drawing_holds_the_first_surface_the_way_and_what_has_arrived(flows):
    surface, way, answer, _ = plots.drawing(flows, depth=3).axes
    first, last = (np.ma.filled(axis.images[0].get_array(), np.nan) for axis in (surface, answer))
    assert first[1] == pytest.approx([0.5, -0.2])
    assert last[0, 0] == 0.1
    assert np.isnan(last).sum() == 3
    assert surface.images[0].norm.vmax == answer.images[0].norm.vmax == 0.5
    assert len(way.patches) == 3  # planes
    lines, ends = way.collections
    assert lines.get_array().tolist() == [0.5, 0.5, -0.2, -0.2]
    assert ends.get_offsets()[0].tolist() == pytest.approx([1.8 * plots.APART + 0.07, 1.07])
    assert answer.get_title() == "3. arrived: 1 of 3"
    assert answer.patch.get_hatch()  # seen where nothing has arrived
