"""The exported notebook: its order, its bytes, its archive, and the files for Kaggle."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import papermill
import pytest
import torch
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from packaging.requirements import Requirement
from packaging.version import Version

from astkit.runs import export, runner
from tests.notebooks.conftest import FOLDER
from tests.runs.sweeping import write as write_notebook

ROOT = Path(export.__file__).parents[2]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = write_notebook(tmp_path / "01_small.ipynb", "import astkit", parameters="x = 0")
    book = nbformat.read(path, 4)
    book.cells.insert(0, new_markdown_cell("# Does it?"))
    book.cells[1].source = "rate: float = 0.1  # passés\nname = 'ä'\nout = ''\nseeds = [\n  0,\n]"
    book.cells[2].outputs = [new_output("stream", text="of an earlier run")]
    book.cells[2].metadata = {"tags": ["nbval-ignore-output"], "papermill": {"x": 1}}
    nbformat.write(book, path)
    return path


def sources(book: NotebookNode) -> list[str]:
    return [cell.source for cell in book.cells if cell.cell_type == "code"]


def build(path: Path, **parameters: object) -> NotebookNode:
    return export.build_notebook(runner.read_notebook(path), parameters)


def test_the_order_is_title_package_parameters_notebook(small: Path) -> None:
    book = build(small)
    texts = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    assert [text.splitlines()[0] for text in texts] == ["# Does it?", "## Settings"]
    package, _, body = sources(book)
    assert package.startswith("# astkit ")
    assert package.splitlines()[0].endswith("compressed archive, which is all that the cells need.")
    folded = [cell for cell in book.cells if "jupyter" in cell.metadata]
    assert [cell.source for cell in folded] == [package]
    assert body == "import astkit"
    assert book.cells[-1].metadata == {"tags": ["nbval-ignore-output"]}
    assert "of an earlier run" not in nbformat.writes(book)
    assert nbformat.writes(build(small)) == nbformat.writes(book)
    assert nbformat.writes(build(small, rate=0.2)) != nbformat.writes(book)


def test_parameters_are_set_below_their_defaults(small: Path, tmp_path: Path) -> None:
    book = build(small, name="it's", seeds=[0, 1], rate=1)
    before, _, after = sources(book)[1].partition("\n\n# set by astkit export\n")
    assert before.startswith("rate: float = 0.1  # passés\n")
    lines = ["out = 'run'", 'name = "it\'s"', "seeds = [0, 1]", "rate = 1"]
    assert after.splitlines() == lines
    nbformat.write(book, tmp_path / "exported.ipynb")
    assert "rate" in papermill.inspect_notebook(tmp_path / "exported.ipynb")
    with pytest.raises(ValueError, match=r"01_small.ipynb has no parameter 'rates': choose from"):
        build(small, rates=1)
    bare = write_notebook(tmp_path / "bare.ipynb", "1", parameters=None)
    assert [s.partition(" ")[0] for s in sources(build(bare))] == ["#", "", "1"]


def test_a_first_cell_above_the_parameters_finds_the_package(small: Path) -> None:
    book = nbformat.read(small, 4)
    first = "from astkit import runs\n\nnb = runs.notebook()"
    book.cells.insert(1, new_code_cell(first))
    nbformat.write(book, small)
    exported = build(small, rate=0.2)
    _, package, places, settings, parameters, last = exported.cells
    assert package.source.startswith("# astkit ")
    assert places.source == first
    assert "change values in the next cell" in settings.source
    assert "The folded cell above holds astkit" in settings.source
    assert parameters.source.endswith("rate = 0.2")
    assert last.source == "import astkit"


TEXTS = ["docs_pairs.jsonl.gz", "docs_pairs.LICENSES.txt"]


def test_every_notebook_can_be_exported_with_what_it_uses_and_names_its_limit() -> None:
    limited = []
    for path in [*sorted(FOLDER.glob("*.ipynb")), export.COMPETITION]:
        plan = runner.read_notebook(path)
        book = export.build_notebook(plan, {"preset": "full"} if "preset" in plan.defaults else {})
        assert len(book.cells) == len(nbformat.read(path, 4).cells) + 2
        data = {"04": TEXTS, "07": TEXTS, "08": ["bikes.csv.gz"]}.get(path.name[:2], [])
        assert export.find_needs(plan, {}).data == data
        said = ", ".join(data) or "no data"
        assert any(f"{said}.\n# The archive is" in cell.source for cell in book.cells)
        assert len(nbformat.writes(book)) <= (700_000 if data == TEXTS else 430_000), path
        if any("ASTKIT_TIME_BUDGET_H=8.5" in cell.source for cell in book.cells):
            limited.append(path.name[:2])
    assert limited == ["01", "co"]


def run_cells(folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in ``folder``, where the working tree is not on the path."""
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, "-"], input="\n".join(cells), **options)


@pytest.fixture
def named(small: Path) -> Path:
    """A notebook with a parameter that names a file."""
    (small.parent / "found").mkdir()
    (small.parent / "found" / "table.bin").write_bytes(b'\xff\x00{}"')
    book = nbformat.read(small, 4)
    book.cells[1].source = "results = 'found/table.bin'\nword = 'found/none.bin'\nempty = ''"
    nbformat.write(book, small)
    return small


def test_the_archive_and_named_files_are_unpacked_and_a_changed_one_is_refused(named, tmp_path):
    package, parameters, _ = sources(build(named))
    shown = "import astkit\nprint(astkit.__file__)\nprint(astkit.Gate.__module__)\nprint(results)"
    shown += "\nprint(open(results, 'rb').read(), repr(word), repr(empty))"
    again = run_cells(tmp_path / "run", parameters, package, package, shown)  # a cell may run twice
    first, second, path, module, place, values = again.stdout.splitlines()
    assert re.fullmatch(r"astkit-[0-9a-f]{8}/files/results/table.bin", place)
    assert values == r"""b'\xff\x00{}"' 'found/none.bin' ''"""
    assert first == second == f"torch {torch.__version__}; no CUDA device"
    (folder,) = (tmp_path / "run").iterdir()
    assert path == str(folder / "astkit" / "__init__.py")
    assert module == "astkit.gating.gate"
    for name in ("names.py", "runs/export.py", "py.typed"):
        assert (folder / "astkit" / name).read_bytes() == (ROOT / "astkit" / name).read_bytes()
    assert not list(folder.rglob("tests"))
    at = package.index('    "', len(package) // 2) + 100
    changed = package[:at] + ("a" if package[at] != "a" else "b") + package[at + 1 :]
    refused = run_cells(tmp_path / "changed", parameters, changed, shown)
    sentence = "RuntimeError: the archive in this cell is not the one exported: export it again"
    assert refused.stderr.splitlines()[-1] == sentence
    assert not list((tmp_path / "changed").iterdir())
    other = run_cells(
        tmp_path / "other",
        "import types, sys, os; m = types.ModuleType('astkit')",
        "m.__file__ = '/elsewhere/astkit.py'; sys.modules['astkit'] = m",
        package,
    )
    assert "another astkit was imported before: restart" in other.stderr


# what the code of a notebook needs: its last cell, the files beside it, and what it prints
NEEDS: dict[str, tuple[str, dict[str, str], str]] = {
    "a text": ("from astkit.datasets import texts\nprint(texts.documentation()[:0])", {}, ""),
    "a table": ("from astkit import datasets\nprint(len(datasets.load('bikes')))", {}, "3"),
    "a system": ("from astkit.systems import LogicCA\nprint(LogicCA.__name__)", {}, "LogicCA"),
    "an integration": (
        "from astkit import integrations as part\nprint(part.__name__)",
        {},
        "astkit.integrations",
    ),
    "a text of a module": (
        "import one\nprint(one.number)",
        {"one.py": "from astkit.datasets.pairs import docs_pairs\nnumber = docs_pairs() and 1"},
        "1",
    ),
    "a file": ("%time text = open('in/a.csv').read()\nprint(text)", {"in/a.csv": "x,y"}, "x,y"),
    "modules": (
        "import one, sys\nfrom two.inner import word\nprint(one.number, word)",
        {"one.py": "number = 1", "two/__init__.py": "", "two/inner.py": "word = 'w'"},
        "1 w",
    ),
}


@pytest.mark.parametrize("need", NEEDS)
def test_an_export_has_the_files_that_its_code_needs(need: str, tmp_path: Path) -> None:
    code, files, printed = NEEDS[need]
    path = write_notebook(tmp_path / "books" / "a.ipynb", code, parameters="x = 0")
    for name, content in files.items():
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_text(content)
    package, first, last = sources(build(path))
    package = package.partition("from astkit.runs import export")[0]  # imports torch
    here = "import sys; sys.path.insert(0, '')"  # as in a kernel
    done = run_cells(tmp_path / "empty", here, first, package, last.removeprefix("%time "))
    (folder,) = (tmp_path / "empty").glob("astkit-*")
    assert (folder / "astkit" / "systems").exists() == (need == "a system")
    assert (folder / "astkit" / "integrations").exists() == (need == "an integration")
    assert (folder / "data").exists() == need.startswith(("a text", "a table"))
    assert done.stdout.splitlines() == [printed], done.stderr
    kept = tmp_path / "empty" / next(iter(files), "x")
    kept.write_text("print('changed')")
    run_cells(tmp_path / "empty", package)
    assert kept.read_text() == "print('changed')"  # a file that is there is not overwritten


def test_large_files_are_not_taken_along(named: Path, tmp_path: Path) -> None:
    (named.parent / "found" / "table.bin").write_bytes(bytes(1_000_001))
    with pytest.raises(ValueError, match=r"results names .*table.bin, which has more than 1 MB"):
        build(named)


# code, and the files beside it with their texts
MEANT: dict[str, tuple[str, str]] = {
    "what modules import": ("import a", "a.py:from b import c|b.py:import d|d.py:"),
    "run": ("%run -i a --x 3", "a.py:import b|b.py:"),
    "another notebook": ("%run b.ipynb", "b.ipynb:import a|a.py:"),
    "a command": ("!python a.py --c=c.yaml", "a.py:import b|b.py:|c.yaml:"),
    "its output": ("x = !{python} -m a\nimport b", "a.py:|b.py:"),
    "two lines": ("!python a.py \\\n  c.yaml\nimport b", "a.py:|b.py:|c.yaml:"),
    "a shell": ("%%bash\nset -e\nsh a.sh", "a.sh:python a.py|a.py:"),
    "help": ("import a\na?", "a.py:"),
    "a subprocess": ("os.system('python a.py')", "a.py:import b|b.py:"),
    "files of a package": ("import p", "p/__init__.py:open(p / 'd.csv')|p/d.csv:"),
    "without __init__": ("from p import a", "p/a.py:"),
    "another place": ("sys.path.append('src')\nimport a", "src/a.py:import b|src/b.py:"),
    "joined": ("Path('in') / 'a.csv'", "in/a.csv:"),
    "in a loop": ("open(f'in/{i}.csv')", "in/1.csv:|in/2.csv:"),
    "a pattern": ("glob('in/*.csv')", "in/1.csv:|in/2.csv:"),
    "not taken: folder": ("ImageFolder('folder')", "folder/a/1.png:"),
    "not taken: b": ("import a", f"a.py:open('b')|b:{'x' * 1_000_001}"),
    "not taken: b.csv": ("open('../b.csv')", "../b.csv:"),
    "a command in words": ("'python -m p.a --c c.yaml'.split()", "p/a.py:import b|b.py:|c.yaml:"),
    "a script": ("!./a.sh", "a.sh:#!/bin/sh"),
    "above in a package": (
        "from p.q import a",
        "p/q/a.py:from ..b import c\nfrom .. import d|p/b.py:|p/d.py:",
    ),
    "modules of made names": ("import_module(f'p.{name}')", "p/a.py:|p/b.py:"),
    "a binary module": ("import a", "a.cpython-311.so:"),
    "made by format": ("open('in/{}.csv'.format(1))", "in/1.csv:"),
    "made by %": ("open('in/%02d.csv' % 1)", "in/01.csv:"),
    "made of a name": ("open(f'{part}.csv')", "a.csv:|b.csv:"),
    "a made folder": ("open(f'{folder}/a.csv')", "in/a.csv:"),
    "keys that are files": ("for name in {'a.csv': 1}: open(name)", "a.csv:"),
    "a list of parameters": ("open(x[0])", "a.csv:|b.csv:"),
    "not taken: images": ("ImageFolder(x)", "images/a/1.png:"),
    "not taken: out.py": ("sys.path.append('..')\nimport out", "../out.py:"),
    "not taken: pictures": ("ImageFolder('../pictures')", "../pictures/1.png:"),
    "keys": (
        "x = {'in': 1, '.': '*'}\nx['in'], '/', 'no.csv', f'{x}', f'{x} %s'",
        "in/a.csv:|a.py:",
    ),
}
PARAMETERS = {"a list of parameters": "x = ['a.csv', 'b.csv']", "not taken: images": "x = 'images'"}


@pytest.mark.parametrize("case", MEANT)
def test_what_code_names_is_taken_along_or_listed(case: str, tmp_path: Path) -> None:
    code, files = MEANT[case]
    parameters, named = PARAMETERS.get(case, "x = 0"), set()
    path = write_notebook(tmp_path / "books" / "n.ipynb", code, parameters=parameters)
    for name, text in (each.split(":") for each in files.split("|")):
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        write = write_notebook if name.endswith(".ipynb") else Path.write_text
        write(path.parent / name, text)
        named.add(name)
    needs = export.find_needs(runner.read_notebook(path), {})
    missing = {case.removeprefix("not taken: ")} - MEANT.keys()
    assert {each.name for each in needs.lacking} == missing
    kept = {each for each in named if case != "keys" and not missing & {*Path(each).parts}}
    assert needs.files.keys() == kept


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_an_old_torch_is_refused_and_a_new_one_is_not(no_gpu: None, monkeypatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (needed,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "torch")
    for version in ("2.6.0+cu124", "1.13.1", "2.8.0"):
        assert not needed.specifier.contains(Version(version))
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(RuntimeError, match=rf"^torch is {re.escape(version)}, and .* 2\.9"):
            export.begin()
    for version in ("2.9.0", "2.9.1+cu128", "2.10.0a0+git1", "3.0"):
        monkeypatch.setattr(torch, "__version__", version)
        export.begin()
