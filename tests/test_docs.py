"""The site: public names and links resolve, examples run, the rows of the house are true."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import fields
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import Budget, Gate, RunInfo, Trainer
from astkit.names import PUBLIC, REGISTRIES
from astkit.profiling import EnergyMeter
from astkit.systems.lattice.model import LatticeConfig
from astkit.widgets import plots

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DIRECTIVE = re.compile(r"\.\. auto(?:class|function|data):: (\S+)")
LONG = ("await ", "AutomatonTrainer(", "compare(", 'load("bikes")')
"""Examples that only a front end can run, that train for minutes, or that README has: compiled."""


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """The module that writes pages, as docs/conf.py imports it."""
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf, before = importlib.util.module_from_spec(spec), [*sys.path]
    try:
        spec.loader.exec_module(conf)
    finally:
        sys.path[:] = before
    return conf.site_pages


@pytest.fixture(scope="module")
def generated(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text of all generated pages."""
    folder = tmp_path_factory.mktemp("generated")
    site.write(folder)
    return "\n".join(path.read_text("utf-8") for path in folder.rglob("*.md"))


def test_every_public_name_is_documented_once_and_linked(site: ModuleType, generated: str) -> None:
    reference = site.reference_pages
    described = Counter(DIRECTIVE.findall(generated))
    assert [path for path, count in described.items() if count > 1] == []
    linked = set(re.findall(r"\{py:obj\}`\S+ <(\S+)>`", generated))
    assert linked == described.keys()
    public = {f"astkit.{name}" for name in PUBLIC}
    for package in reference.PACKAGES:
        public |= {f"astkit.{package}.{name}" for name in reference.exported(package)}
    for table in REGISTRIES.values():
        public |= {path.replace(":", ".") for path in table.values()}
    objects = {id(pkgutil.resolve_name(path)) for path in described if "huggingface" not in path}
    assert [path for path in public if id(pkgutil.resolve_name(path)) not in objects] == []


def test_examples_in_docstrings_run(generated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = []
    for path in DIRECTIVE.findall(generated):
        doc = inspect.getdoc(pkgutil.resolve_name(path)) or ""
        for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", f"{doc}\n"):
            code = compile(textwrap.dedent(block), path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if not any(mark in block for mark in LONG):
                exec(code, example_names(path))
            ran.append(path)
    assert len(ran) > 5


def example_names(path: str) -> dict[str, Any]:
    """What the reader of the docstring of ``path`` has: README's names, and the object itself."""
    data = TensorDataset(torch.randn(256, 1, 8, 8), torch.randint(0, 10, (256,)))
    loader = DataLoader(data, batch_size=64)
    x, y = next(iter(loader))
    name = path.rpartition(".")[2]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return {
        **dict.fromkeys(("validation", "loader", "train_loader", "val_loader"), loader),
        "train": (lambda: None) if name == "peak_memory" else data,
        "data": DataLoader(data, batch_size=16),
        "x": torch.randn(2, 768) if name == "EnergyFlowLattice" else x,
        "y": y,
        "model": model,
        "make_model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        "trainer": Trainer(model, loader, policy=Gate(0.5), epochs=1),
        "budget": Budget(epochs=1),
        "torch": torch,
        "DataLoader": DataLoader,
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "device": "cpu",
        "meter": EnergyMeter("cpu"),
        "step": lambda: None,
        "Budget": Budget,
        "Gate": Gate,
        "LatticeConfig": LatticeConfig,
        "Trainer": Trainer,
        "plots": plots,
        "pandas": pd,
        "pd": pd,
        name: pkgutil.resolve_name(path),
    }


def test_a_guide_is_short_and_so_are_all() -> None:
    pages = {path.stem: path.read_text("utf-8") for path in DOCS.glob("*.md")}
    counted = {}
    for name in pages.keys() - {"policies", "measured", "tried"}:  # written from results
        code = "".join(re.findall(r"(?ms)^```\w+\n(.*?)^```$", pages[name])).split("\n")
        prose = re.sub(r"(?ms)^```.*?^```$|<!--.*?-->|^\|.*?$", "", pages[name])
        counted[name] = len(prose.split()), sum(map(bool, code))
    guides = counted.keys() - {"index", "promises", "house", "recipes"}
    assert len(guides) == 10
    for name in guides:
        words, lines = counted[name]
        assert words <= 650, name
        assert lines <= (100 if name == "loops" else 60), name
    assert sum(words for words, _ in counted.values()) <= 8500
    linked = re.findall(r"\(docs/(\w+)\.md\)", (ROOT / "README.md").read_text("utf-8"))
    assert {*guides, "recipes"} <= {*linked}


def test_help_names_all_that_a_plan_is_told() -> None:
    told = inspect.getdoc(RunInfo) or ""
    assert [
        each.name for each in fields(RunInfo) if f"{each.name}:" not in told.replace("`", "")
    ] == []


def test_parts_import_only_from_rows_below() -> None:
    table = (DOCS / "house.md").read_text("utf-8").partition("| --- | --- |\n")[2]
    parts = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()]
    rows = {name: row for row, names in enumerate(parts) for name in names.strip().split(", ")}
    folders = {path.parent.name for path in (ROOT / "astkit").glob("*/__init__.py")}
    assert rows.keys() == folders | {"ground"}
    wrong = []
    for part in folders:
        for path in (ROOT / "astkit" / part).glob("*.py"):
            for module in re.findall(r"^\s*from astkit\.(\w+)", path.read_text("utf-8"), re.M):
                target = module if module in folders else "ground"
                if target != part and rows[target] <= rows[part]:
                    wrong.append(f"{part}/{path.name} imports from {target}")
    assert wrong == []


def test_the_path_of_a_batch_is_that_of_the_code() -> None:
    drawing = re.search(r"```text\n(.*?)```", (DOCS / "house.md").read_text("utf-8"), re.DOTALL)
    assert drawing is not None
    named = re.findall(r"^[│├└─ ]*([\w.]+) +(\S+\.py)", drawing[1], re.MULTILINE)
    assert len(named) > 15
    for name, file in named:
        text = (ROOT / "astkit" / file).read_text("utf-8")
        kind, _, function = name.rpartition(".")
        assert re.search(rf"^ *def {function}\(", text, re.MULTILINE), name
        assert not kind or re.search(rf"^class {kind}\b", text, re.MULTILINE), name


@pytest.mark.full
def test_no_link_of_the_site_is_dead_and_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    options = ["-M", "html", ROOT, tmp_path, "-c", DOCS, "-W", "-q"]
    command = [sys.executable, "-m", "sphinx", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")  # nor is there a warning
    built = tmp_path / "html"
    files = [path for path in built.rglob("*.html") if "_static" not in path.parts]
    pages = {path: path.read_text("utf-8") for path in files}
    ids = {path: set(re.findall(r'\sid="([^"]+)"', text)) for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        for tag, link in re.findall(r'<([a-z]+)\s[^>]*?(?:href|src)="([^"]*)"', text):
            parts = urlsplit(unescape(link))
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.netloc:
                dead = tag in ("script", "link", "img")
            elif parts.scheme:  # such as data:
                dead = False
            else:
                known = ids.get(target, {parts.fragment})
                dead = not target.exists() or not {parts.fragment} <= {"", *known}
            wrong += [f"{path.relative_to(built)}: {link}"] if dead else []
    assert len(pages) > 50
    assert wrong == []
