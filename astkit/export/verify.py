"""Checks the modules of an exported file. Copied into the file, so it imports no astkit."""

import hashlib
import importlib
import sys
from pathlib import Path


def verify(folder: Path, source: str, modules: dict[str, str]) -> None:
    """Raise ``RuntimeError`` unless the package in ``folder`` is, byte for byte, the exported one.

    ``source``: hexadecimal SHA-256 as by ``astkit.stamp.source_hash``; ``modules``: path to the
    first 8 digits of the file's hash, to name the one that differs.
    """
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    found, digest = {}, hashlib.sha256()
    for name, path in sorted(files.items()):
        if path.is_file() and not any(p[0] == "." or p == "__pycache__" for p in name.split("/")):
            content = path.read_bytes()
            found[name] = hashlib.sha256(content).hexdigest()[:8]
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    if digest.hexdigest() != source:
        odd = sorted(set(found.items()) ^ set(modules.items())) or [("__init__.py", "")]
        raise RuntimeError(
            f"{folder.name}/{odd[0][0]} is not what was exported (source {source[:8]}): nothing"
            " was imported; undo the change, or export again from the changed package"
        )


def use(folder: Path, source: str, modules: dict[str, str]) -> None:
    """Verify the package in ``folder`` and import it from there from now on.

    Raises ``RuntimeError``, also where another one was imported before.
    """
    verify(folder, source, modules)
    home = str(folder.resolve().parent)
    sys.path[:] = [home, *(path for path in sys.path if path != home)]
    importlib.invalidate_caches()  # the files are younger than the interpreter
    package = importlib.import_module(folder.name)
    if Path(package.__file__ or "").resolve().parent != folder.resolve():
        raise RuntimeError(
            f"another {folder.name} was imported before this one: restart and run from the top"
        )
