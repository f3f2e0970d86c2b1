"""README and docs say what the committed results say, and nothing that was typed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.benchmarks import bench, figures, readme, surface
from tests.benchmarks.figures import NEEDS_GPU, NOT_RUN

TEXTS = {name: (bench.ROOT / name).read_text() for name in readme.FILES}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tables_are_what_the_committed_results_make_of_them(name: str) -> None:
    text = TEXTS[name]
    assert readme.fill(name, text) == text, "run: python -m tests.benchmarks.readme"
    assert text.count("<!-- end -->") == len(readme.FILES[name])


def test_the_page_of_public_names_is_up_to_date() -> None:
    page = surface.PAGE.read_text(encoding="utf-8")
    assert page == surface.page(), "run: python -m tests.benchmarks.surface"


def test_only_code_counts_as_a_use_of_a_public_name() -> None:
    code = (
        "import astkit\nfrom astkit.trainers import Trainer as T\n"
        'astkit.compare(T.run, "Gate")  # Run'
    )
    assert surface.imported(code) == {
        f"astkit.{x}" for x in ("trainers.Trainer", "trainers.Trainer.run", "compare")
    }


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


def test_a_table_in_markdown() -> None:
    table = pd.DataFrame({"a": ["1"], "b": ["2"]}, index=pd.Index(["x"], name="row"))
    assert bench.markdown(table) == "| row | a | b |\n| --- | --- | --- |\n| x | 1 | 2 |"


def test_without_entries_every_published_figure_is_not_run(tmp_path: Path) -> None:
    assert set(figures.table(tmp_path)["measured"]) == {NOT_RUN, NEEDS_GPU}
    for figure in figures.FIGURES:
        path = tmp_path / (figure.run or "none")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"results": [], "settings": {}, "figures": [], "speed": []}')
    assert set(figures.table(tmp_path)["measured"]) == {NOT_RUN, NEEDS_GPU}


def test_what_notebook_03_writes_is_found() -> None:
    seconds = {"plain": [1.0, 2.0, 3.0], "bf16": [0.5, 1.0, 1.5]}
    memory = {"plain": {"memory": 100}, "bf16": {"memory": 60}}
    small = {"accumulation, 2 x 64": {"batch_size": 64, "effective_batch_size": 128}}
    dense = {"bench": {"model": "simple_cnn", "device": "cpu"}, "baseline": "plain"}
    found = {"dense": {**dense, "seconds": seconds, "reports": {**memory, **small}}}
    read = {each.claim: each.read for each in figures.FIGURES}
    assert read["mixed precision, speed"](found) == ("2 x [2, 2], simple_cnn, CPU", 3)
    assert read["mixed precision, memory saved"](found) == ("40%, simple_cnn, CPU", 1)
    assert read["accumulation, effective batch"](found) == ("2 x (64 loaded, 128 a step)", 1)
    memory["bf16"]["memory"] = None
    with pytest.raises(LookupError):
        read["mixed precision, memory saved"](found)


def test_decisions_are_compared_seed_by_seed() -> None:
    def run(arm: str, seed: int, trained: int) -> dict:
        return {"arm": arm, "seed": seed, "samples_trained": trained}

    by_batch = "sample by sample, per batch"
    runs = [run(figures.GATE, 0, 10), run(figures.GATE, 1, 20)]
    runs += [run(by_batch, 0, 20), run(by_batch, 1, 20)]
    runs += [run(figures.BY_SAMPLE, 0, 7), run(figures.BY_SAMPLE, 1, 8)]
    text, _ = figures.same_decisions({"results": runs})
    assert text.startswith("as many trained in 1 of 2 runs with a step a batch, 0 with")
