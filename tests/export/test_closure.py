"""All that a notebook needs comes along, and what Kaggle does not have is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from astkit.export.closure import IMAGE, ROOT, closure, has
from astkit.names import PUBLIC, REGISTRIES

NAMES = """
PUBLIC: dict[str, str] = {"Gate": "astkit.gating.gate", "Board": "astkit.board"}
REGISTRIES: dict[str, dict[str, str]] = {
    "score": {"loss": "astkit.gating.scores:Loss"},
    "model": {"cnn": "astkit.models:CNN"},
}
"""
SOURCES = {
    "__init__.py": "from importlib import import_module\nfrom astkit.names import PUBLIC",
    "names.py": NAMES,
    "alone.py": "",
    "board.py": "import anywidget",
    "later.py": "def f():\n    from astkit import alone",
    "typed.py": "if TYPE_CHECKING:\n    from astkit.board import Board",
    "models.py": "import torch.nn",
    "degrading.py": "try:\n    from astkit import board\nexcept ImportError:\n    board = None",
    "gating/__init__.py": "from .gate import Gate",
    "gating/gate.py": "from astkit.names import resolve\nresolve('score', name)",
    "gating/scores.py": "import numpy",
}
BASE = {"__init__.py", "names.py"}
GATING = BASE | {"gating/__init__.py", "gating/gate.py", "gating/scores.py"}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        path = tmp_path / "astkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def needed(kit: Path) -> Callable[[str], set[str]]:
    def find(cell: str) -> set[str]:
        return {name.removeprefix("astkit/") for name in closure({"cell 1": cell}, kit)}

    return find


def test_the_closure_is_exact(needed) -> None:
    for cell, modules in (
        ("import torch", set()),
        ("import astkit", BASE),
        ("from astkit import alone", BASE | {"alone.py"}),
        ("from astkit import later", BASE | {"alone.py", "later.py"}),
        ("import astkit.typed", BASE | {"typed.py"}),
        ("from astkit import models", BASE | {"models.py"}),
        ("from astkit.gating import scores", GATING),  # the __init__ imports the gate
        ("from astkit import Gate", GATING),
        ("import astkit\nastkit.Gate", GATING),
        ("from astkit.names import REGISTRIES\nREGISTRIES['model']", BASE | {"models.py"}),
        ("from astkit import names", GATING | {"models.py"}),
        ("from astkit import degrading", BASE | {"degrading.py", "board.py"}),
    ):
        assert needed(cell) == modules, cell


def test_what_is_not_there_is_refused(needed) -> None:
    for cell, message in (
        ("import optuna", r"^cell 1 imports optuna \(line 1\), which Kaggle's image does not"),
        ("import os\nfrom papermill.x import y", r"^cell 1 imports papermill.x \(line 2\)"),
        ("from astkit import board", r"^astkit.board imports anywidget \(line 1\), .*: remove"),
        ("import astkit\nastkit.Board", r"^astkit.board imports anywidget"),
        ("from astkit import degrading, board", r"^astkit.board imports anywidget"),
        ("from astkit import board, degrading", r"^astkit.board imports anywidget"),
        ("import astkit.nothing", r"^cell 1 imports astkit.nothing, which .* does not have"),
    ):
        with pytest.raises(ValueError, match=message):
            needed(cell)


def test_the_image_has_the_packages_requirements_and_python_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {Requirement(text).name for text in project["dependencies"]} <= IMAGE
    there = {name: has(name) for name in ("torch.nn", "json", "optuna", "anywidget", "jsonx")}
    assert [name for name in there if there[name]] == ["torch.nn", "json"]


def test_what_may_fail_may_be_absent(needed) -> None:
    assert needed("try:\n    import optuna, astkit.nothing\nexcept ImportError: ...") == BASE


@pytest.mark.full
def test_a_public_name_can_be_had_from_its_closure_alone(tmp_path: Path) -> None:
    for path, text in closure({"cell": "from astkit import Gate"}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    code = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    import astkit
    assert astkit.__file__.startswith({str(tmp_path)!r})
    assert astkit.Gate.__module__ == {PUBLIC["Gate"]!r}
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=tmp_path)


def test_all_registered_names_come_with_what_can_resolve_them() -> None:
    modules = closure({"cell": "from astkit.names import resolve\nresolve(kind, name)"})
    for table in REGISTRIES.values():
        for entry in table.values():
            assert f"{entry.partition(':')[0].replace('.', '/')}.py" in modules


def test_sources_are_those_of_the_package() -> None:
    modules = closure({"cell": "from astkit import Gate"})
    assert list(modules) == sorted(modules)
    assert all((ROOT / name).read_text() == text for name, text in modules.items())
