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


def test_tables_wait_for_a_clean_measurement_as_long_as_their_results_need_one():
    for make in readme.TABLES:
        if make.__name__ in readme.PENDING:
            with pytest.raises(ValueError, match="with changes: measure it again"):
                make()  # once it is clean, take it out of PENDING
        else:
            assert make()


def test_a_result_with_local_changes_is_refused(tmp_path):
    path = tmp_path / "speed.json"
    stamps = [{"commit": "0123456789", "dirty": dirty} for dirty in (False, True)]
    path.write_text(json.dumps({"stamp": stamps[0], "part": {"stamp": stamps[0]}}))
    assert readme.read(path)["part"]
    path.write_text(json.dumps({"stamp": stamps[0], "part": {"stamp": stamps[1]}}))
    with pytest.raises(ValueError, match=r"speed.json was measured at commit 01234567 with chang"):
        readme.read(path)


def test_every_table_can_be_made(monkeypatch):
    monkeypatch.setattr(readme, "read", lambda path: json.loads(path.read_text()))
    monkeypatch.setattr(readme, "PENDING", ())
    for name, text in TEXTS.items():
        filled = readme.fill(name, text)
        assert ("| test split ± |" in filled) == (name == "docs/measured.md")
        assert filled.count("<!-- end -->") == len(readme.FILES[name])


def test_a_missing_place_is_named():
    with pytest.raises(ValueError, match=r"docs/measured\.md has 0 places for 'digits'"):
        readme.fill("docs/measured.md", "# astkit")


def test_a_table_in_markdown():
    table = pd.DataFrame({"a": ["1"], "b": ["2"]}, index=pd.Index(["x"], name="row"))
    assert figures.markdown(table) == "| row | a | b |\n| --- | --- | --- |\n| x | 1 | 2 |"
