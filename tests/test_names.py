"""The table of names: every entry leads somewhere, and importing astkit loads next to nothing."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import astkit
from astkit.names import PUBLIC, REGISTRIES, resolve

ROOT = Path(astkit.__file__).parents[1]


def test_every_name_leads_to_what_its_module_defines() -> None:
    for name, module in PUBLIC.items():
        found = getattr(astkit, name)
        assert found is getattr(import_module(module), name)
        assert (found.__name__, found.__module__) == (name, module)
        assert name in dir(astkit)
    for kind, registry in REGISTRIES.items():
        for name, place in registry.items():
            found = resolve(kind, name)
            assert f"{found.__module__}:{found.__name__}" == place


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="module 'astkit' has no attribute 'Gaet'"):
        astkit.Gaet  # noqa: B018
    for kind in REGISTRIES:
        for name in ("nonsense", "", "Loss", "loss ", ["loss"]):
            match = f"^unknown {kind} {re.escape(repr(name))}: choose one of "
            with pytest.raises(ValueError, match=match) as caught:
                resolve(kind, name)
            listed = str(caught.value).split("choose one of ")[1].split(", ")
            assert listed == sorted(REGISTRIES[kind])


def test_type_checkers_are_told_the_same_names() -> None:
    tree = ast.parse(Path(str(astkit.__file__)).read_text())
    told = {
        alias.asname: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == PUBLIC


def test_nothing_but_the_exporter_knows_the_systems() -> None:
    for path in (ROOT / "astkit").rglob("*.py"):
        if "systems" not in path.parts and path.name != "export.py":
            assert "astkit.systems" not in path.read_text(), path


def test_a_public_name_is_defined_in_one_module() -> None:
    owners: dict[str, list[str]] = {}
    for path in sorted((ROOT / "astkit").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
                owners.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: each for name, each in owners.items() if len({*each}) > 1} == {}


HEAVY = ["matplotlib", "ipywidgets", "pandas", "sklearn", "pyarrow", "torchvision.datasets"]
HEAVY += ["papermill", "nbformat", "filelock"]


def loaded_after(code: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter has loaded after ``code``."""
    code = f"import sys; {code}; print(*[m for m in {[*HEAVY, 'torch']} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_importing_astkit_loads_nothing_heavy() -> None:
    assert loaded_after("import astkit, astkit.names, astkit.runs.export; dir(astkit)") == []


def test_the_gate_and_the_stamp_need_torch_and_nothing_else_heavy() -> None:
    code = "import astkit; astkit.Gate(); astkit.RandomSubset(0.5); astkit.Selection"
    code += "; from astkit.stamp import stamp; stamp(); import logging"
    code += "; assert logging.root.level == 30 and not logging.root.handlers"
    assert loaded_after(code) == ["torch"]
