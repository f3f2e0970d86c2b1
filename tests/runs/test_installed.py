"""What is required and met, held against pip's own library and the project's own list."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from astkit.runs import installed

RELEASES = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(
    lambda parts: ".".join(map(str, parts))
)
CLAUSES = st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), RELEASES).map("".join)


@given(version=RELEASES, clauses=st.lists(CLAUSES, max_size=3))
def test_within_is_what_packaging_says(version, clauses):
    wanted = ",".join(clauses)
    assert installed.within(version, wanted) == SpecifierSet(wanted).contains(version)


@pytest.mark.parametrize(
    ("version", "expected"), [("2.9.0+cpu", True), ("2.8.1+cu128", False), ("unknown", False)]
)
def test_a_local_version_counts_as_its_release(version, expected):
    assert installed.within(version, ">=2.9,<3") is expected


def test_every_line_of_the_projects_own_list_is_understood(monkeypatch):
    content = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lines = {"": content["dependencies"], **content["optional-dependencies"]}
    del lines["dev"]  # which a build writes out in full
    wanted = [(extra, Requirement(line)) for extra in lines for line in lines[extra]]
    # as hatchling and setuptools write them
    built = [f"{each}; extra == '{extra}'" if extra else str(each) for extra, each in wanted]
    monkeypatch.setattr(metadata, "requires", lambda name: built if name == "astkit" else None)
    found = installed.requirements()
    assert [(each.extra, each.name, SpecifierSet(each.wanted)) for each in found] == [
        (extra, each.name, each.specifier) for extra, each in wanted
    ]
    by_name = {each.name: each for each in found}
    assert by_name["torch"].version == metadata.version("torch")
    assert by_name["torch"].met


def test_what_is_missing_or_too_old_says_so():
    assert not installed.Requirement("optuna", ">=5,<6", "tune", None).met
    old = installed.Requirement("optuna", ">=5,<6", "tune", "4.9")
    assert not old.met
    assert str(old) == "optuna 4.9 (wanted: >=5,<6)"


class Distribution:
    def __init__(self, origin: str | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'astkit[tune]'"),
        ('{"url": "file:///x.whl", "archive_info": {}}', "pip install 'astkit[tune]'"),
        (
            '{"url": "file:///x", "dir_info": {"editable": true}}',
            ".venv/bin/pip install -e '.[tune]'",
        ),
    ],
)
def test_the_command_fits_the_way_it_was_installed(monkeypatch, origin, command):
    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution(origin))
    monkeypatch.setattr("sys.prefix", str(Path(installed.__file__).parents[2] / ".venv"))
    assert installed.install_command("tune") == command


def test_a_checkout_in_an_environment_of_another_kind(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    monkeypatch.setattr("sys.prefix", "/opt/conda")
    assert installed.install_command("tune") == "python -m pip install -e '.[tune]'"
    assert installed.install_command("") == "python -m pip install -e '.'"
