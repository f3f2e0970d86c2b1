"""pyproject.toml says which versions may be used, environment*.yml which were: kept in step."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import astkit

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
*CONDA, TAIL = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
*USED, LAST = TAIL["pip"]
DEVELOP = yaml.safe_load((ROOT / "environment-dev.yml").read_text())["dependencies"][-1]["pip"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(*extras: str) -> list[Requirement]:
    """Those of the core, or of ``extras``, without astkit itself."""
    lists = [EXTRAS[name] for name in extras] or [PROJECT["dependencies"]]
    every = [Requirement(line) for lines in lists for line in lines]
    return [requirement for requirement in every if requirement.name != PROJECT["name"]]


def pins(lines: list[str]) -> dict[str, str]:
    """Version by canonical name. A line that is not ``name==version`` fails here."""
    pairs = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in pairs}


DEV = ("docs", "test", "dev", "integrations")
USER = sorted(EXTRAS.keys() - set(DEV))
FILES = {
    "environment.yml": (pins(USED), [*requirements(), *requirements(*USER)]),
    "environment-dev.yml": (pins(DEVELOP), requirements(*DEV)),
}


@pytest.mark.parametrize("name", FILES)
def test_requirements_are_pinned_within_their_ranges(name: str) -> None:
    pinned, required = FILES[name]
    assert pinned.keys() == {canonicalize_name(requirement.name) for requirement in required}
    wrong = [
        f"{requirement} is pinned to {pin}"
        for requirement in required
        if (pin := pinned[canonicalize_name(requirement.name)]) not in requirement.specifier
    ]
    assert not wrong


def test_the_citation_and_the_changelog_name_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert cited == newest[1] == astkit.__version__


def test_conda_brings_a_python_that_the_project_accepts_and_the_package_last() -> None:
    assert CONDA == ["python=3.11", "pip"]
    assert "3.11" in Requirement(f"python{PROJECT['requires-python']}").specifier
    assert LAST == "-e ."
