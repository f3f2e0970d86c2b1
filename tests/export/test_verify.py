"""Nothing is imported from a package that is not, byte for byte, the one exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from astkit.export import verify as guard
from astkit.source import hash_of
from astkit.stamp import source_hash

MODULES = {"kit/__init__.py": "VALUE = 1\n", "kit/part/a.py": "'''ä'''\n"}
SOURCE = hash_of({name.removeprefix("kit/"): text.encode() for name, text in MODULES.items()})


def unpack(modules: dict[str, str], folder: Path) -> Path:
    for name, text in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpack(MODULES, tmp_path) / "kit"


def test_the_hash_is_that_of_the_stamp(folder: Path) -> None:
    assert source_hash(folder) == SOURCE


def test_what_was_exported_is_imported_with_caches_beside_it(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("x")
    (folder / ".exported").touch()
    assert use(folder).stdout.strip() == str(folder / "__init__.py")


@pytest.mark.parametrize(
    ("name", "text"),
    [("part/a.py", "'''a'''\n"), ("part/a.py", None), ("part/b.py", ""), ("__init__.py", "1\n")],
)
def test_a_change_is_refused(name: str, text: str | None, folder: Path) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    with pytest.raises(RuntimeError, match=r"^the modules in kit are not those exported .*: nothi"):
        guard.use(folder, SOURCE)


USE = """
import sys
from pathlib import Path
from astkit.export.verify import use
sys.path.append({path!r})
{before}
use(Path({folder!r}), {source!r})
import kit
print(kit.__file__)
"""


def use(folder: Path, source: str = SOURCE, before: str = "") -> subprocess.CompletedProcess[str]:
    code = USE.format(
        path=str(Path(guard.__file__).parents[2]),
        folder=str(folder),
        source=source,
        before=before,
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_nothing_of_a_changed_package_runs(folder: Path) -> None:
    (folder / "__init__.py").write_text("print('ran')\n")
    result = use(folder)
    assert "RuntimeError: the modules in kit are not those exported" in result.stderr
    assert "ran" not in result.stdout


def test_another_package_of_that_name_is_told_of(folder: Path, tmp_path: Path) -> None:
    other = unpack({"kit/__init__.py": ""}, tmp_path / "other")
    before = f"sys.path.insert(0, {str(other)!r}); import kit"
    assert "another kit was imported before this one: restart" in use(folder, before=before).stderr
