"""The list of what Kaggle has agrees with what the package says of itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from astkit.export.image import IMAGE, LOWEST_TORCH, has, torch_fault

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_the_lowest_torch_is_that_of_pyproject() -> None:
    needed = {Requirement(text).name: Requirement(text) for text in PROJECT["dependencies"]}
    lowest = ".".join(map(str, LOWEST_TORCH))
    assert needed["torch"].specifier.contains(lowest)
    below = f"{LOWEST_TORCH[0]}.{LOWEST_TORCH[1] - 1}"
    assert not needed["torch"].specifier.contains(Version(below))
    assert set(needed) <= IMAGE


@pytest.mark.parametrize(
    ("module", "there"),
    [("torch.nn", True), ("json", True), ("optuna", False), ("anywidget", False), ("jsonx", False)],
)
def test_what_the_image_has(module: str, there: bool) -> None:
    assert has(module) is there


@pytest.mark.parametrize("version", ["2.9.0", "2.9.1+cu128", "2.10.0a0+git1", "3.0"])
def test_a_new_torch_will_do(version: str) -> None:
    assert torch_fault(version) is None


@pytest.mark.parametrize("version", ["2.8.0+cu126", "1.13.1", "2.6"])
def test_an_old_torch_is_named_with_the_remedy(version: str) -> None:
    fault = torch_fault(version)
    assert fault is not None
    assert fault.startswith(f"torch is {version}, and astkit needs 2.9")
