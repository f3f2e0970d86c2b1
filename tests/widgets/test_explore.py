"""The explorer's data and its page; tests/browser looks at both in Chromium."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from astkit.widgets import style
from astkit.widgets.explore import Choices, Explorer, Sample

SAMPLES = [
    Sample(7, "cat", picture=np.arange(16.0).reshape(4, 4)),
    Sample(9, "dog", text="</script><b>woof</b>" + "!" * 700),
    Sample(11, "cat", fields={"age": 3, "<i>": 0.5}),
]
AUTO = Choices(
    [[1, 0, 2], [1, 0, 3]], [[2.0, np.nan, 1.23456], [1.0, np.nan, np.inf]], {"most": [2]}
)


def page_content(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def test_the_content_is_what_was_given():
    content = Explorer(SAMPLES, {"auto": AUTO}, "A run").content
    assert content["title"] == "A run"
    (method,) = content["methods"]
    assert method["counts"] == [[1, 1], [0, 0], [2, 3]]
    assert method["losses"] == [[2.0, 1.0], [None, None], [1.235, None]]
    assert method["groups"] == {"most": [2]}
    assert method["colour"] == style.LOOKS["auto"][0]
    picture, text, table = content["samples"]
    assert (picture["row"], picture["label"]) == (7, "cat")
    image = Image.open(io.BytesIO(base64.b64decode(picture["picture"].partition(",")[2])))
    assert np.asarray(image).ravel() == pytest.approx(np.linspace(0, 255, 16), abs=1)
    assert text["text"].startswith("</script><b>woof</b>!")
    assert len(text["text"]) == 601
    assert table["fields"] == [["age", "3"], ["<i>", "0.5"]]


def test_the_page_holds_everything_and_text_stays_text(tmp_path):
    explorer = Explorer(SAMPLES, {"auto": AUTO}, "A <run>")
    page = explorer.save(tmp_path / "page.html").read_text()
    assert page_content(page) == explorer.content
    assert page.count("</script>") == 2
    assert "<b>woof" not in page
    assert not re.search(r'(src|href)="|url\(|@import|https?://(?!www\.w3\.org/2000/svg)', page)
