"""The site: every page and public name has its place, examples run, the picture is true."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import io
import json
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections import Counter
from html import unescape
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import astkit
from astkit import Budget, Gate, Trainer
from astkit.names import PUBLIC, REGISTRIES
from astkit.profiling import EnergyMeter
from astkit.systems.lattice.model import LatticeConfig
from astkit.widgets import LiveBoard, plots
from benchmarks import policies

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = [*ROOT.glob("notebooks/*.ipynb")]
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
def reference(site: ModuleType) -> ModuleType:
    """The module that writes the reference."""
    return site.reference_pages


@pytest.fixture(scope="module")
def generated(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Text of each generated page."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "left.md").write_text("of an earlier version")
    site.write(folder)
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.*")}
    assert "left.md" not in found
    assert len([name for name in found if name.startswith("thumbnails/")]) > 10
    return {name: path.read_text("utf-8") for name, path in found.items() if path.suffix != ".png"}


def test_every_page_is_in_a_table_of_contents_and_every_entry_exists(
    generated: dict[str, str],
) -> None:
    entries = set()
    texts = {path.stem: path.read_text("utf-8") for path in DOCS.glob("*.md")}
    texts |= {f"generated/{name.removesuffix('.md')}": text for name, text in generated.items()}
    for page, text in texts.items():
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
            for line in filter(None, block.splitlines()):
                name = line if line.startswith("/") else f"{Path(page).parent}/{line}"
                entries |= {name.removeprefix("./")} if line[0] not in ":S" else set()
    pages = {path.stem for path in DOCS.glob("*.md")}
    alone = {name for name, text in generated.items() if text.startswith("---\norphan")}
    assert all(name.startswith("reference/astkit.") for name in alone)  # tables link these
    pages |= {f"generated/{name[:-3]}" for name in generated.keys() - alone if name[-3:] == ".md"}
    assert pages - entries == {"index"}
    files = {name for name in entries - pages if not name.endswith("*")}
    assert [name for name in files if not (ROOT / f"{name[1:]}.md").is_file()] == []


def test_every_public_name_is_documented_once_and_linked(
    reference: ModuleType, generated: dict[str, str]
) -> None:
    texts = "\n".join(generated.values())
    described = Counter(DIRECTIVE.findall(texts))
    assert [path for path, count in described.items() if count > 1] == []
    linked = set(re.findall(r"\{py:obj\}`\S+ <(\S+)>`", texts))
    assert linked == described.keys()
    public = {f"astkit.{name}" for name in PUBLIC}
    for package in reference.PACKAGES:
        public |= {f"astkit.{package}.{name}" for name in reference.exported(package)}
    for table in REGISTRIES.values():
        public |= {path.replace(":", ".") for path in table.values()}
    objects = {id(pkgutil.resolve_name(path)) for path in described if "huggingface" not in path}
    assert [path for path in public if id(pkgutil.resolve_name(path)) not in objects] == []


def test_the_reference_is_ordered_by_use(generated: dict[str, str]) -> None:
    index = generated["reference/index.md"]
    assert re.findall(r"^## \[(.*?)\]", index, re.MULTILINE)[:3] == [
        "Compare",
        "Train for a target",
        "Train",
    ]
    rows = re.findall(r"^\| \{py:obj\}`(\w+) <astkit\.\w+>`", index, re.MULTILINE)
    assert sorted(rows) == sorted(PUBLIC)
    assert rows.index("compare") == 0
    assert rows.index("Trainer") < rows.index("Metric")  # the guides use it more


def test_every_public_class_has_an_example() -> None:
    without = [
        name for name in PUBLIC if "::\n\n    " not in (inspect.getdoc(getattr(astkit, name)) or "")
    ]
    assert without == []


def test_a_policy_page_has_its_card_and_its_results(generated: dict[str, str]) -> None:
    gains = pd.read_csv(DOCS / "static" / "gains.csv")
    accuracy = pd.read_csv(DOCS / "static" / "accuracy.csv")
    methods = {re.split("[:,]", name)[0] for name in accuracy["policy"]}
    for name, card in policies.cards().T.to_dict().items():
        page = generated[f"policies/{name}.md"].replace("\\|", "|")
        assert [text for text in card.values() if text.replace("\\|", "|") not in page] == []
        own = gains[gains["policy"] == name]
        assert all(f"| {row.condition} | {row.gain:+z.1f} " in page for row in own.itertuples())
        measured = name in methods or len(own) > 0
        assert ("Not measured yet" in page) == (not measured)


def test_examples_in_docstrings_run(
    generated: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = []
    for path in DIRECTIVE.findall("\n".join(generated.values())):
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


def test_parts_import_only_from_rows_below(site: ModuleType) -> None:
    rows = {name: number for number, row in enumerate(site.HOUSE) for name in row}
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


def test_every_figure_has_a_thumbnail(generated: dict[str, str]) -> None:
    shown = Counter(re.findall(r"thumbnails/(\w+)_\d+\.png\)\]", generated["gallery.md"]))
    figures = Counter(
        {
            path.stem: len(re.findall(r'"image/(?:png|gif)": "', path.read_text("utf-8")))
            for path in NOTEBOOKS
        }
    )
    figures += Counter({"compare": 2, "energy": 2, "policies": 2, "steering": 1, "tasks": 1})
    assert shown == +figures


def test_a_film_shows_a_run_from_its_beginning_to_its_end(site: ModuleType) -> None:
    board = LiveBoard()
    for step in range(100):
        board.log(step, phase="train", loss=1 / (step + 1))
    board.log(50, phase="event", name="rate", value=0.3)
    board.log(99, phase="epoch", val_accuracy=0.5)  # in the last frame alone
    with Image.open(io.BytesIO(site.film(board, frames=4, fps=2))) as film:
        assert (film.format, film.n_frames, film.info["duration"]) == ("PNG", 4, 500)
        shown = []
        for number in range(4):
            film.seek(number)
            shown.append(np.asarray(film.convert("L"), float))
    assert all(np.abs(a - b).max() > 100 for a, b in pairwise(shown))
    alone = Image.open(io.BytesIO(board.picture().png(dpi=64))).convert("L")
    assert np.abs(shown[-1] - np.asarray(alone, float)).mean() < 3


def test_the_launch_links_are_those_of_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    launch_links = importlib.import_module("launch_links")
    for address in (
        "git@github.com:ann/kit.git",
        "https://github.com/ann/kit",
        "ssh://git@github.com/ann/kit/",
    ):
        assert launch_links.repository(address) == "ann/kit"
    with pytest.raises(ValueError, match=r"^origin is '/srv/kit', which is not on GitHub, "):
        launch_links.repository("/srv/kit")
    text = launch_links.links("ann/kit", "main", ["00_a.ipynb"])
    place = "github.com/ann/kit/blob/main/notebooks/00_a.ipynb"
    assert f"https://colab.research.google.com/{place.replace('.com', '')})" in text
    assert f"(https://kaggle.com/kernels/welcome?src=https://{place})" in text
    assert "https://mybinder.org/v2/gh/ann/kit/main?urlpath=lab/tree/notebooks)" in text
    assert 'git+https://github.com/ann/kit"' in text


def test_every_measured_table_has_its_command() -> None:
    known = {f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py")}
    wrong = []
    for path in DOCS.glob("*.md"):
        text = path.read_text("utf-8")
        for name in re.findall(r"<!-- (?!end)(\w+) -->", text):
            section = re.split(r"\n#+ ", text.split(f"<!-- {name} -->")[0])[-1]
            own = section.split("<!-- end -->")[-1]
            modules = set(re.findall(r"`python -m (\S+?)[ `]", own))
            commands = modules or re.findall(r"`astkit \w+|^    astkit \w+", own, re.MULTILINE)
            wrong += [] if commands and modules <= known else [name]
    assert wrong == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built as by `make docs`; its pages are read by the tests below."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-M", "html", ROOT, folder, "-c", DOCS, "-W", "-q"]
    command = [sys.executable, "-m", "sphinx", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0
    return folder / "html"


@pytest.mark.full
def test_the_site_is_built_without_a_warning(site: ModuleType, built: Path) -> None:
    assert 'url=docs/index.html"' in (built / "index.html").read_text("utf-8")
    names = {path.stem for path in (built / "notebooks").glob("*.html")}
    assert names == {path.stem for path in NOTEBOOKS}
    dates = {path: path.stat().st_mtime_ns for path in DOCS.glob("generated/**/*.*")}
    site.write(DOCS / "generated")  # what has not changed is not built again
    assert dates == {path: path.stat().st_mtime_ns for path in DOCS.glob("generated/**/*.*")}


@pytest.mark.full
def test_pictures_of_notebooks_have_their_alternative_texts(built: Path) -> None:
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        texts = {output.get("metadata", {}).get("image/png", {}).get("alt") for output in outputs}
        page = unescape((built / "notebooks" / f"{path.stem}.html").read_text("utf-8"))
        assert {text for text in texts - {None} if f'alt="{text}"' not in page} == set(), path


@pytest.mark.full
def test_no_link_of_the_site_is_dead_and_nothing_is_loaded_from_elsewhere(built: Path) -> None:
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
