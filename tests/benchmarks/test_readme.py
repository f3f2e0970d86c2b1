"""The README says what the committed results say, and nothing that was typed."""

import pandas as pd
import pytest

from astkit.runs import readme


def test_the_readme_is_what_the_committed_results_make_of_it():
    text = (readme.ROOT / "README.md").read_text()
    assert readme.fill(text) == text, "run: python -m astkit.runs.readme"


def test_a_missing_place_is_named():
    with pytest.raises(ValueError, match="0 places for 'digits'"):
        readme.fill("# astkit")


def test_a_table_in_markdown():
    table = pd.DataFrame({"a": ["1"], "b": ["2"]}, index=pd.Index(["x"], name="row"))
    assert readme.markdown(table) == "| row | a | b |\n| --- | --- | --- |\n| x | 1 | 2 |"
