"""pyproject.toml says which versions may be used, environment.yml which were: they stay in step."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
*CONDA, TAIL = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
*PINS, LAST = TAIL["pip"]


def requirements() -> list[Requirement]:
    """Core and extras, without the extra that names astkit itself."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    every = [Requirement(line) for lines in lists for line in lines]
    return [requirement for requirement in every if requirement.name != PROJECT["name"]]


def pins() -> dict[str, str]:
    """Version by canonical name. A line that is not ``name==version`` fails here."""
    pairs = [line.split("==") for line in PINS]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_each_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    pin = pins().get(canonicalize_name(requirement.name))
    assert pin is not None, f"environment.yml does not pin {requirement.name}"
    assert pin in requirement.specifier, f"environment.yml pins {requirement.name} to {pin}"


def test_each_pin_has_a_requirement() -> None:
    assert pins().keys() == {canonicalize_name(requirement.name) for requirement in requirements()}


def test_conda_brings_a_python_that_the_project_accepts() -> None:
    assert CONDA == ["python=3.11", "pip"]
    assert "3.11" in Requirement(f"python{PROJECT['requires-python']}").specifier


def test_the_package_itself_is_installed_last() -> None:
    assert LAST == "-e ."
