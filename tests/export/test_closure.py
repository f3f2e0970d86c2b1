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

from astkit.export import closure as module
from astkit.export.closure import IMAGE, ROOT, closure, imports
from astkit.names import PUBLIC, REGISTRIES

TABLES = {
    "PUBLIC": {"Gate": "astkit.gating.gate", "Board": "astkit.board"},
    "REGISTRIES": {
        "score": {"loss": "astkit.gating.scores:Loss"},
        "model": {"cnn": "astkit.models:CNN"},
    },
}
SOURCES = {
    "__init__.py": "from importlib import import_module\nfrom astkit.names import PUBLIC",
    "names.py": "",
    "alone.py": "",
    "board.py": "import anywidget",
    "later.py": "def f():\n    from astkit import alone",
    "typed.py": "if TYPE_CHECKING:\n    from astkit.board import Board",
    "models.py": "import torch.nn",
    "degrading.py": "try:\n    from astkit import board\nexcept ImportError:\n    board = None",
    "gating/__init__.py": "from astkit.gating.gate import Gate",
    "gating/gate.py": "from astkit.names import resolve\nresolve('score', name)",
    "gating/scores.py": "import numpy",
}
BASE = {"__init__.py", "names.py"}
NAMED = BASE | {"gating/__init__.py", "gating/gate.py", "gating/scores.py", "models.py"}


@pytest.fixture
def needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    for name, value in {**TABLES, "ROOT": tmp_path}.items():
        monkeypatch.setattr(module, name, value)
    for name, text in SOURCES.items():
        path = tmp_path / "astkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def find(cell: str) -> set[str]:
        return {name.removeprefix("astkit/") for name in closure({"cell 1": cell})}

    return find


def test_the_closure_is_exact(needed) -> None:
    for cell, modules in (
        ("import torch", set()),
        ("import astkit", BASE),
        ("from astkit import alone", BASE | {"alone.py"}),
        ("from astkit import later", BASE | {"alone.py", "later.py"}),
        ("import astkit.typed", BASE | {"typed.py"}),
        ("from astkit import models", BASE | {"models.py"}),
        ("from astkit.names import PUBLIC", BASE),
        # whoever looks a name up may find any of them
        ("from astkit.gating import scores", NAMED),  # the __init__ imports the gate
        ("from astkit import Gate", NAMED),
        ("import astkit\nastkit.Gate", NAMED),
        ("from astkit.names import REGISTRIES", NAMED),
        ("from astkit import names", NAMED),
        ("import astkit.names", NAMED),
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
        ("import os\nfrom . import a", r"^cell 1 has a relative import \(line 2\): write the full"),
    ):
        with pytest.raises(ValueError, match=message):
            needed(cell)


def test_the_image_has_the_packages_requirements_and_python_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {Requirement(text).name for text in project["dependencies"]} <= IMAGE
    assert closure({"cell 1": "import torch.nn, json"}) == {}
    for name in ("optuna", "anywidget", "jsonx"):
        with pytest.raises(ValueError, match=f"imports {name} .* which Kaggle's image does not"):
            closure({"cell 1": f"import {name}"})


def test_what_may_fail_may_be_absent(needed) -> None:
    assert needed("try:\n    import optuna, astkit.nothing\nexcept ImportError: ...") == BASE


def test_imports_are_found_where_they_are() -> None:
    for source, expected in (
        ("import os.path as p", [("os.path", (), 1, False)]),
        ("import a, b", [("a", (), 1, False), ("b", (), 1, False)]),
        ("from a.b import c, d as e", [("a.b", ("c", "d"), 1, False)]),
        # within a block it may be absent
        ("def f():\n    import a", [("a", (), 2, True)]),
        ("class C:\n    async def f(self):\n        import a", [("a", (), 3, True)]),
        ("try: import a\nexcept ImportError: import b", [("a", (), 1, True), ("b", (), 2, True)]),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", [("b", (), 4, True)]),
        ("if typing.TYPE_CHECKING:\n    import a", []),
        ("text = 'import a'", []),
    ):
        assert imports(source, "cell 1") == expected, source


def test_attributes_of_the_package_are_imports() -> None:
    for source, names in (
        ("import astkit\nastkit.Gate(0.1)", ("Gate",)),
        ("import astkit as kit\nkit.Gate, kit.Loader", ("Gate", "Loader")),
        ("import astkit.files\nastkit.Gate", ("Gate",)),
        ("import astkit\ngetattr(astkit, name)", tuple(PUBLIC)),
        ("import astkit.files as f\nf.Gate", ()),
        ("import other\nother.Gate", ()),
    ):
        found = {each.module: each.names for each in imports(source, "cell 1")}
        assert found.get("astkit", ()) == names, source


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
