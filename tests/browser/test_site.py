"""The site in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import built as built

WIDER = """() => [...document.querySelectorAll("pre")]
  .filter((block) => block.scrollWidth > block.clientWidth + 1)
  .map((block) => block.innerText)"""


@pytest.mark.full
def test_no_block_of_code_scrolls_sideways(browser: Any, built: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    paths = [path for part in ("docs", "notebooks") for path in (built / part).rglob("*.html")]
    wider = {}
    for path in paths:
        page.goto(path.as_uri())
        wider[path.name] = page.evaluate(WIDER)
    page.close()
    assert len(paths) > 100
    assert {name: blocks for name, blocks in wider.items() if blocks} == {}
