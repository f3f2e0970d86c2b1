"""Writes and verifies the package in an exported file. Copied into it; must not import astkit."""

import base64
import hashlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path


def make_folder(folder: Path, *inner: str) -> None:
    """Create ``folder`` and the folders ``inner`` in it; replaces that of an earlier export.

    Raises ``RuntimeError`` for a folder that is not from an export.
    """
    if folder.exists() and not (folder / ".exported").exists():
        raise RuntimeError(f"{folder}/ exists and would be overwritten: use an empty folder")
    shutil.rmtree(folder, ignore_errors=True)
    for name in (".", *inner):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / ".exported").touch()


def unpack(packed: str) -> None:
    """Write the files of ``packed``, a tar.bz2 archive in base 85, into the current folder."""
    content = io.BytesIO(base64.b85decode(packed))
    with tarfile.open(fileobj=content, mode="r:bz2") as archive:
        archive.extractall(".", filter="data")


def install(wheel: str, digest: str) -> None:
    """Install the file ``wheel``, whose SHA-256 is ``digest``, from an attached dataset.

    Raises ``RuntimeError`` if no dataset has it, or if it is another one.
    """
    root = Path(os.environ.get("ASTKIT_INPUT") or "/kaggle/input")
    found = next(root.rglob(wheel), None)
    if found is None:
        raise RuntimeError(f"no dataset has {wheel}: attach the one that was exported with it")
    if hashlib.sha256(found.read_bytes()).hexdigest() != digest:
        raise RuntimeError(f"{found} is not the wheel that was exported: attach that one")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
    subprocess.run([*pip, str(found)], check=True)
    importlib.invalidate_caches()


def use(folder: Path, source: str) -> None:
    """Import the package from ``folder`` if it is identical to the exported one.

    ``source``: hexadecimal SHA-256 as in ``astkit.stamp.source_hash``. Raises ``RuntimeError``,
    also if another package of that name was already imported.
    """
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        if path.is_file() and not any(p[0] == "." or p == "__pycache__" for p in name.split("/")):
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    if digest.hexdigest() != source:
        raise RuntimeError(
            f"the modules in {folder.name} are not those exported (source {source[:8]}): nothing"
            " was imported; undo the change, or export again from the changed package"
        )
    home = str(folder.resolve().parent)
    sys.path[:] = [home, *(path for path in sys.path if path != home)]
    importlib.invalidate_caches()  # the files are newer than the finder caches
    package = importlib.import_module(folder.name)
    if Path(package.__file__ or "").resolve().parent != folder.resolve():
        raise RuntimeError(
            f"another {folder.name} was imported before this one: restart and run from the top"
        )
