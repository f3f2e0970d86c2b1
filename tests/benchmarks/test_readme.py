"""README and docs say what the committed results say, and nothing that was typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astkit.files import read_json
from tests.benchmarks import bench, example, figures, policies, readme
from tests.benchmarks.figures import NOT_RUN
from tests.benchmarks.policy_tables import STATIC

TEXTS = {name: (bench.ROOT / name).read_text() for name in readme.FILES}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tables_are_what_the_committed_results_make_of_them(name: str) -> None:
    text = TEXTS[name]
    assert readme.fill(name, text) == text, "run: python -m tests.benchmarks.readme"
    assert text.count("<!-- end -->") == len(readme.FILES[name])


def test_the_page_of_policies_is_up_to_date() -> None:
    entries = read_json(policies.ENTRIES)
    page = policies.page(entries)
    assert policies.PAGE.read_text("utf-8") == page, "run: python -m tests.benchmarks.policies"
    for name, text in policies.files(entries).items():
        assert (STATIC / name).read_text("utf-8") == text, (
            "run: python -m tests.benchmarks.policies"
        )


def test_the_badges_say_what_pyproject_says() -> None:
    for name, picture in readme.badges().items():
        assert (STATIC / name).read_text("utf-8") == picture, (
            "run: python -m tests.benchmarks.readme"
        )
        assert f"(docs/static/{name})" in TEXTS["README.md"]


def test_the_output_of_the_example_is_that_of_its_code() -> None:
    for page, path in example.PAGES.items():
        assert read_json(path)["code"] == example.code(page), "python -m tests.benchmarks.example"


def test_only_named_results_have_local_changes() -> None:
    for name in readme.CHANGED:
        (path,) = [*readme.RESULTS.glob(name), *bench.HERE.glob(name)]
        changes = [stamp["dirty"] for stamp in readme._stamps(json.loads(path.read_text()))]
        assert any(changes), f"take {name} out of CHANGED: it was measured without"
        assert readme.read(path)


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
