"""Verifies the modules of an exported file. Copied into the notebook; must not import astkit."""

import hashlib
import importlib
import sys
from pathlib import Path


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
