"""The Python of README and docs runs as it stands, on small data; every link leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "data" / "README.md"]
PAGES = {path: path.read_text("utf-8") for path in FILES}


def blocks(text: str) -> list[tuple[str, str]]:
    """The Python of a page: what a block needs beyond the default installation, and the block.

    It is stated in the comment before the block, as ``<!-- needs lightning -->``.
    """
    return re.findall(r"(?:<!-- needs (\w+) -->\n)?```python\n(.*?)```", text, re.DOTALL)


def ready(text: str) -> str:
    """The blocks of a page that need nothing but the default installation."""
    return "\n".join(block for needs, block in blocks(text) if not needs)


EXAMPLES = [path for path, text in PAGES.items() if ready(text) and path.name != "README.md"]
EXTRAS = [
    (path, needs, block)
    for path, text in PAGES.items()
    for needs, block in blocks(text)
    if needs in ("datasets", "webdataset")
]
"""Blocks that need torchrun and integrations have tests of their own; files are the reader's."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_page_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(ready(PAGES[path]), path.name, "exec"), names)
    if "HighLoss" in names:
        assert names["trainer"].ledger.samples.trained == 3 * 750  # type: ignore[attr-defined]


@pytest.mark.parametrize(("path", "needs", "block"), EXTRAS)
def test_a_block_with_an_extra_runs(
    path: Path, needs: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, path.name, "exec"), {})


def test_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = ready(PAGES[ROOT / "README.md"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert re.match(r"forecast: \+\d", lines[0])
    assert re.match(r"aim: [+-]\d.*, 3 seeds, same FLOPs", lines[-1])


def test_readme_is_short_and_its_tables_fit_the_column() -> None:
    lines = PAGES[ROOT / "README.md"].splitlines()
    assert len(lines) <= 110
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    shown = [re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", cell).strip() for cell in cells]
    assert max(map(len, shown)) <= 60


def test_every_link_leads_somewhere() -> None:
    for path, text in PAGES.items():
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not link.startswith("http"):
                assert (path.parent / link).exists(), f"{path.name}: {link}"
