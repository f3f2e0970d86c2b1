"""The Python of README and docs runs as it stands, on small data; every link leads somewhere."""

import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests import smaller

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
    if needs in ("datasets", "webdataset", "tensorboard")
]
"""Blocks that need torchrun and integrations have tests of their own; files are the reader's."""


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.full)], ids=["quick", "whole"])
def whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether `aim` fits estimators as large as users do."""
    if not request.param:
        smaller.pages(monkeypatch)
    return request.param


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_page_runs_from_top_to_bottom(path, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    script = ready(PAGES[path])
    if not whole:
        script = re.sub(r"epochs=20?\b", "epochs=1", re.sub(r"seeds=\d", "seeds=1", script))
    # a notebook's cell may await
    waiting = eval(compile(script, path.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if waiting is not None:
        asyncio.run(waiting)
    if "HighLoss" in names:
        rows = len(names["digits"].train)
        assert names["trainer"].ledger.samples.trained == 3 * (rows // 2)
    if "LateTarget" in names:
        late = [sum(int((index >= 1200).sum()) for index, _ in names["loader"]) for _ in range(4)]
        assert late == [0, 300, 600, 900]


@pytest.mark.parametrize(("path", "needs", "block"), EXTRAS)
def test_a_block_with_an_extra_runs(path, needs, block, tmp_path, monkeypatch):
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    setting = next(block for needs, block in blocks(PAGES[path]) if not needs)
    for source in (setting, block):
        exec(compile(source, path.name, "exec"), names)


def test_weights_of_files_follow_the_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name, rows, like in (("pool", 600, 300), ("recent", 150, 150)):
        sign = np.where(np.arange(rows) < rows - like, -1, 1)  # another law in the first rows
        size, noise = draw.normal(size=(2, rows))
        price = pd.Series(sign * size + 0.1 * noise).where(np.arange(rows) != 3)
        pd.DataFrame({"size": size, "price": price}).to_csv(f"{name}.csv", index=False)
    for name, count in (("crawl", 600), ("mine", 150)):
        kinds = ["b" if name == "mine" or row % 2 else "a" for row in range(count)]
        words = [" ".join(f"{kind}{each}" for each in draw.integers(50, size=8)) for kind in kinds]
        pd.DataFrame({"text": words}).to_json(f"{name}.jsonl", orient="records", lines=True)
    for folder, count in (("photos", 240), ("mine", 110)):
        for number in range(count):
            kind = "dark" if folder == "mine" or number % 2 else "light"
            pixels = draw.integers(0, 60, (8, 8, 3)) + 150 * (kind == "light")
            Path(folder, kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(f"{folder}/{kind}/{number}.png")
    guides = PAGES[ROOT / "docs" / "choose.md"] + PAGES[ROOT / "docs" / "recipes.md"]
    of_table, of_texts, of_images = (block for needs, block in blocks(guides) if needs == "files")
    names: dict[str, Any] = {}
    exec(of_table, names)
    weights = names["pool"]["weight"]
    assert weights.isna().tolist() == [row == 3 for row in range(600)]
    assert weights[300:].sum() > 0.75 * 600
    exec(of_texts, names)
    assert names["chosen"]["text"].str.startswith("b").mean() > 0.9
    exec(of_images, names)
    assert np.mean([path.parent.name == "dark" for path in names["chosen"]]) > 0.8


def test_readme_runs_from_top_to_bottom(whole, tmp_path, monkeypatch, capsys):
    script = ready(PAGES[ROOT / "README.md"])
    if not whole:
        script = script.replace("epochs=10", "epochs=1, seeds=1")
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("regression of bikers: ")
    assert any(line.startswith("forecast: train on ") for line in lines)
    verdict = re.compile(rf"auto: .*, {5 if whole else 1} seed")
    assert any(map(verdict.match, lines[-2:]))


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
def test_the_verdict_of_readme_lasts(threads, tmp_path, monkeypatch, capsys):
    """With other seeds and threads; the nearer end of its interval is far from 0."""
    script = next(block for _, block in blocks(PAGES[ROOT / "README.md"]))
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exec(script.replace("epochs=10", "epochs=10, seeds=range(5, 10)"), {})
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().out
    assert "training is short" not in printed
    found = re.search(r"auto: better: RMSE ([\d.]+) % lower \[([\d.]+), [\d.]+\], 5 seeds", printed)
    assert found is not None, printed
    gain, nearer = map(float, found.groups())
    assert nearer >= gain / 3


def test_every_link_leads_somewhere() -> None:
    for path, text in PAGES.items():
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not link.startswith("http"):
                assert (path.parent / link).exists(), f"{path.name}: {link}"
