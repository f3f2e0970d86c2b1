"""The explorer of samples in a real browser: as a page of its own, and in JupyterLab."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ARTIFACTS

DATA = """\
import numpy as np
from sklearn.datasets import load_digits
from astkit.widgets.explore import Explorer, embedded

digits = load_digits()
samples = [
    {"row": row, "label": f"<i>{digits.target[row]}", "picture": embedded(digits.images[row])}
    for row in range(100)
]
dense = {"name": "dense", "colour": "#004488", "counts": [[1] * 4] * 100, "groups": {}}
dense["losses"] = [[2.5, 2.0, 1.5, -1.0]] * 100
kept = np.arange(4) > (np.arange(100) % 4)[:, None]
auto = {"name": "auto", "colour": "#85348A", "counts": kept.astype(int).tolist()}
auto["losses"] = [[1.5 if each else None for each in row] for row in kept]
auto["groups"] = {"never selected": [7, 3, 17]}
content = {"title": "Digits & <b>losses</b>", "samples": samples, "methods": [dense, auto]}
explorer = Explorer(content=content)
"""


def check(page: Any) -> None:
    """Choose a method, a group, a class and a sample."""
    page = page.locator(".astkit-explore")
    cards = page.locator(".card")
    cards.first.wait_for()
    assert page.locator("h2").inner_text() == "Digits & <b>losses</b>"
    assert cards.count() == 60
    page.get_by_role("button", name="more").focus()
    page.page.keyboard.press("Enter")
    assert cards.count() == 100
    expect(cards.nth(60)).to_be_focused()
    page.page.keyboard.press("Enter")  # opens it, and closes it again
    expect(cards.nth(60)).to_be_focused()
    assert page.locator(".detail section").count() == 1
    page.page.keyboard.press("Enter")
    assert page.locator(".detail section").count() == 0
    assert "<i>0, 4×" in cards.first.inner_text()
    page.get_by_label("class").focus()
    page.get_by_label("class").select_option("<i>3")
    expect(page.get_by_label("class")).to_be_focused()
    assert cards.count() > 5
    assert all("<i>3" in words for words in cards.all_inner_texts())
    page.get_by_label("method").select_option("auto")
    assert page.get_by_label("class").input_value() == "<i>3"
    page.get_by_label("class").select_option("")
    page.get_by_label("group").select_option("never selected")
    assert cards.count() == 3
    assert "loss" in cards.first.inner_text()
    cards.nth(1).click()
    detail = page.locator(".detail")
    assert "row 3, class <i>3" in detail.inner_text()
    assert "trained on 4×" in detail.inner_text()
    assert detail.locator("polyline").count() == 2
    assert "losses from -1.00 to 2.50" in detail.inner_text()
    heights = detail.locator("polyline").first.get_attribute("points").split()
    assert all(0 <= float(point.split(",")[1]) <= 150 for point in heights)
    page.get_by_label("method").select_option("dense")  # which has no such group
    assert cards.count() == 60


def test_a_page_of_its_own_works_offline(browser: Any, tmp_path: Path) -> None:
    space: dict[str, Any] = {}
    exec(DATA, space)
    path = space["explorer"].save(tmp_path / "explore.html")
    problems: list[str] = []
    for width in (830, 390):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.goto(path.as_uri())
        check(page)
        assert problems == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.locator(".card").nth(4).click()
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(ARTIFACTS / f"explore-{width}.png"))
        context.close()


@pytest.mark.full
def test_the_widget_in_a_notebook(open_notebook: Any) -> None:
    lab = open_notebook(DATA, "explorer")
    lab.run_cells(2)
    check(lab.page)
    lab.photo("lab")
