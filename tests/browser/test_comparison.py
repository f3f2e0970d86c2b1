"""A comparison in a real browser: its picture grows while it runs, in one output.

Screenshots go to out/browser (or ASTKIT_BROWSER_OUT).
"""

import json
from typing import Any

COMPARE = """\
import astkit
import torch
from torch import nn
from torch.utils.data import TensorDataset

x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
rows = TensorDataset(x, (x[:, 0] > 0).long())
report = astkit.compare(
    lambda: nn.Linear(4, 2),
    rows,
    rows,
    rows,
    policies=["cached_loss"],
    epochs=200,
    lr=3e-3,
    seeds=4,
    check_baseline=False,
)
"""


def test_a_dot_is_seen_as_each_run_ends_and_one_picture_stays(open_notebook: Any) -> None:
    lab = open_notebook(COMPARE, "report  # whole")
    lab.run_cells(1)
    shown = lab.page.locator(".jp-CodeCell", has_text="TensorDataset").locator(".jp-OutputArea img")
    lab.until(lambda: bool(shown.count()), "a dot", 90.0)
    seen = {shown.first.get_attribute("src")}

    def ended() -> bool:
        assert shown.count() == 1
        seen.add(shown.first.get_attribute("src"))
        if len(seen) == 2:
            lab.photo("running")
        return bool(lab.page.get_by_text("Next: ").count())

    lab.until(ended, "the verdict", 120.0)
    lab.page.wait_for_timeout(500)
    ended()
    assert len(seen) >= 3  # some while it ran, and the last
    lab.photo("ended")
    lab.run_cell("# whole")
    page = lab.page.locator(".astkit-comparison")
    page.wait_for(timeout=60_000)
    assert page.locator("h1").inner_text().startswith("cached_loss: ")
    lab.photo("report")
    lab.press("Control+s")
    lab.page.wait_for_timeout(2000)
    outputs = json.loads(lab.path.read_text())["cells"][0]["outputs"]
    assert len([each for each in outputs if "image/png" in each.get("data", {})]) == 1
