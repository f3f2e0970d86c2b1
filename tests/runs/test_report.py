"""A report over run folders, as a page in three formats."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from astkit.runs import report
from tests.runs.test_tables import root  # noqa: F401 (a fixture)


def test_a_page_in_three_formats(root: Path, tmp_path: Path) -> None:  # noqa: F811
    page = report.write(root, tmp_path / "report.ipynb")
    executed = nbformat.read(page, 4)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds
    for form, ending, sign in (("html", "html", "<table"), ("markdown", "md", "![")):
        out = report._converted(executed, tmp_path / f"page.{ending}", form)
        text = out.read_text()
        assert sign in text
        assert "minus dense" in text
        assert "tables.collect" not in text
    pictures = list((tmp_path / "page_files").iterdir())
    assert [picture.suffix for picture in pictures] == [".png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="format is 'pdf'"):
        report.write(root, tmp_path / "report.pdf", "pdf")
    with pytest.raises(RuntimeError, match=r"could not be made: .*metric is 'speed'"):
        report.write(root, tmp_path / "report.ipynb", metric="speed")
