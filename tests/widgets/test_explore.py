"""The explorer's page; tests/browser looks at it in Chromium."""

import html
import json
import re
import sys

from astkit.widgets.explore import Explorer

SAMPLE = {"row": 9, "label": "dog", "picture": "", "text": "</script><b>woof</b>", "fields": []}
CONTENT = {"title": "A <run>", "samples": [SAMPLE], "methods": []}


def page_content(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def test_the_page_holds_everything_and_text_stays_text(tmp_path):
    explorer = Explorer(CONTENT)
    page = explorer.save(tmp_path / "page.html").read_text()
    assert page_content(page) == explorer.content
    assert page.count("</script>") == 2
    assert "<b>woof" not in page
    assert not re.search(r'(src|href)="|url\(|@import|https?://(?!www\.w3\.org/2000/svg)', page)


def test_a_notebook_shows_the_widget_and_without_anywidget_the_page(monkeypatch):
    bundle = Explorer(CONTENT)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in str(bundle)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    explorer = Explorer(CONTENT)
    frame = html.unescape(explorer._repr_mimebundle_()["text/html"])
    assert explorer.page() in frame
