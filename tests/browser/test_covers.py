"""What one sees first of each notebook, and that nothing moves when answer and picture come.

Screenshots go to out/browser (or ASTKIT_BROWSER_OUT).
"""

from pathlib import Path
from typing import Any

import pytest
from nbconvert import HTMLExporter

from tests.browser.conftest import ARTIFACTS, ROOT

FIRST = {"width": 830, "height": 900}  # pixels
NOTEBOOKS = sorted((ROOT / "notebooks").glob("0*.ipynb"))
BOXES = """() => {
  const bottom = (one) => one.getBoundingClientRect().bottom;
  const place = document.querySelector(".jp-CodeCell, .code_cell, .jp-Cell.jp-CodeCell");
  const [answer] = place.querySelectorAll("strong");
  const [picture] = place.querySelectorAll("img");
  return {
    question: bottom(document.querySelector("h1")),
    answer: bottom(answer),
    picture: bottom(picture),
    wide: picture.getBoundingClientRect().right,
    drawn: picture.complete && picture.naturalWidth > 700,
    said: picture.alt,
  };
}"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_screen_has_question_answer_and_picture(
    path: Path, browser: Any, tmp_path: Path
) -> None:
    page = browser.new_page(viewport=FIRST)
    (tmp_path / "page.html").write_text(HTMLExporter().from_filename(str(path))[0])
    page.goto(f"file://{tmp_path / 'page.html'}")
    page.wait_for_function("() => [...document.images].every((each) => each.complete)")
    seen = page.evaluate(BOXES)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"first-{path.stem}.png"))
    page.close()
    assert 0 < seen["question"] < seen["answer"] < seen["picture"] <= FIRST["height"]
    assert seen["wide"] <= FIRST["width"]
    assert seen["drawn"]
    assert seen["said"]


START = "from astkit import runs\n\nnb = runs.notebook()"
BELOW = "preset = 'quick'"
ANSWER = """\
from astkit.widgets import style

nb.start(preset)
nb.answer("It does, in 3 of 3 runs. " * 5, style.picture(height=3.6))
"""


def test_nothing_moves_when_answer_and_picture_come(open_notebook) -> None:
    lab = open_notebook(START, BELOW, ANSWER)
    places = lab.page.locator(".jp-CodeCell").first

    def height() -> float:
        return float(places.bounding_box()["height"])

    lab.run_cells(2)
    places.locator("em").wait_for(timeout=60_000)
    kept = height()
    lab.photo("before")
    lab.run_cell("nb.answer(")
    places.locator("img").wait_for(timeout=60_000)
    assert places.locator("strong").inner_text().startswith("It does, in 3 of 3 runs.")
    lab.photo("after")
    assert abs(height() - kept) <= 4  # pixels
