"""Writes the modules in a script to files. Copied into the script; must not import astkit."""

import os
from pathlib import Path


def unpack(modules: dict[str, str], folder: Path) -> Path:
    """Write ``modules`` (path to source) below ``folder``, atomically, and return it."""
    for name, text in modules.items():
        path, content = folder / name, text.encode()
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(content)
        os.replace(temporary, path)
    return folder
