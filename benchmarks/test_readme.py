"""README and docs say what the committed results say, and nothing that was typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench, figures, readme
from benchmarks.figures import NOT_RUN
from benchmarks.policy_tables import STATIC

TEXTS = {name: (bench.ROOT / name).read_text() for name in readme.FILES}


def test_the_badges_say_what_pyproject_says() -> None:
    for name, picture in readme.badges().items():
        assert (STATIC / name).read_text("utf-8") == picture, "run: python -m benchmarks.readme"
        assert f"(docs/static/{name})" in TEXTS["README.md"]


def test_a_result_with_local_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    stamps = [{"commit": "0123456789", "dirty": dirty} for dirty in (False, True)]
    path.write_text(json.dumps({"stamp": stamps[0], "part": {"stamp": stamps[0]}}))
    assert readme.read(path)["part"]
    path.write_text(json.dumps({"stamp": stamps[0], "part": {"stamp": stamps[1]}}))
    with pytest.raises(ValueError, match=r"fast.json was measured at commit 01234567 with chang"):
        readme.read(path)


def test_a_missing_place_is_named() -> None:
    with pytest.raises(ValueError, match=r"docs/measured\.md has 0 places for 'digits'"):
        readme.fill("docs/measured.md", "# astkit")


def test_without_entries_every_published_figure_is_not_run(tmp_path: Path) -> None:
    assert set(figures.table(tmp_path)["measured"]) == {NOT_RUN}
    for figure in figures.FIGURES:
        path = tmp_path / figure.run
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"results": [], "settings": {}, "figures": [], "speed": []}')
    assert set(figures.table(tmp_path)["measured"]) == {NOT_RUN}
