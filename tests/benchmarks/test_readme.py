"""README and docs say what the committed results say, and nothing that was typed."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from tests.benchmarks import figures, readme

TEXTS = {name: (readme.ROOT / name).read_text() for name in readme.FILES}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tables_are_what_the_committed_results_make_of_them(name):
    text = TEXTS[name]
    assert readme.fill(name, text) == text, "run: python -m tests.benchmarks.readme"
    assert text.count("<!-- end -->") == len(readme.FILES[name])


def test_only_named_results_have_local_changes():
    for name in readme.CHANGED:
        (path,) = [*readme.RESULTS.glob(name), *readme.BENCHMARKS.glob(name)]
        changes = [stamp["dirty"] for stamp in readme._stamps(json.loads(path.read_text()))]
        assert any(changes), f"take {name} out of CHANGED: it was measured without"
        assert readme.read(path)


def test_a_result_with_local_changes_is_refused(tmp_path):
    path = tmp_path / "fast.json"
    stamps = [{"commit": "0123456789", "dirty": dirty} for dirty in (False, True)]
    path.write_text(json.dumps({"stamp": stamps[0], "part": {"stamp": stamps[0]}}))
    assert readme.read(path)["part"]
    path.write_text(json.dumps({"stamp": stamps[0], "part": {"stamp": stamps[1]}}))
    with pytest.raises(ValueError, match=r"fast.json was measured at commit 01234567 with chang"):
        readme.read(path)


def test_a_missing_place_is_named():
    with pytest.raises(ValueError, match=r"docs/measured\.md has 0 places for 'digits'"):
        readme.fill("docs/measured.md", "# astkit")


def test_a_table_in_markdown():
    table = pd.DataFrame({"a": ["1"], "b": ["2"]}, index=pd.Index(["x"], name="row"))
    assert figures.markdown(table) == "| row | a | b |\n| --- | --- | --- |\n| x | 1 | 2 |"
