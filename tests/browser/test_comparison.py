"""A comparison in a real browser: its picture grows while it runs, in one output.

Screenshots go to out/browser (or ASTKIT_BROWSER_OUT).
"""

import json
from typing import Any

COMPARE = """\
import astkit
from astkit.datasets.conditions import condition
from torch import nn

data = condition("drift")


def model():
    return nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 1))


report = astkit.compare(
    model,
    data.train,
    data.validation,
    data.test,
    policies=["infobatch"],
    criterion=lambda outputs, y: (outputs - y).square().squeeze(1),
    epochs=5,
    lr=3e-3,
    seeds=4,
    check_baseline=False,
)
"""


def test_a_dot_is_seen_as_each_run_ends_and_one_picture_stays(open_notebook: Any) -> None:
    lab = open_notebook(COMPARE, "report")
    lab.run_cells(1)
    shown = lab.page.locator(".jp-CodeCell", has_text="condition").locator(".jp-OutputArea img")
    shown.first.wait_for(timeout=120_000)
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
    lab.run_cell("report")
    page = lab.page.locator(".astkit-comparison")
    page.wait_for(timeout=60_000)
    assert shown.count() == 0  # the report has it
    assert page.locator("h1").inner_text().startswith("infobatch: ")
    lab.photo("report")
    lab.press("Control+s")
    lab.page.wait_for_timeout(2000)
    outputs = json.loads(lab.path.read_text())["cells"][0]["outputs"]
    assert not [each for each in outputs if "image/png" in each.get("data", {})]
