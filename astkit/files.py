"""Atomic writes, JSON files, and files that come with the package."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

SHARE = Path(__file__).with_name("share")
"""Files of an installation from a wheel."""
LIBRARIES = [Path(sysconfig.get_path(n)).resolve() for n in ("stdlib", "purelib", "platlib")]
LIBRARIES += [Path(sysconfig.get_path("scripts")).resolve(), Path(__file__).resolve().parent]
_PARENT = Path(__file__).resolve().parents[1]
CHECKOUT = None if _PARENT.name == "site-packages" else _PARENT
"""The folder that contains the package, unless it is installed."""


@lru_cache
def is_own(module: str) -> bool:
    """Whether the code of a ``module`` is the user's, not a library's or the kit's."""
    package = module.split(".")[0]
    known = sys.modules.get(package) or PathFinder.find_spec(package)
    file = getattr(known, "__file__", None) or getattr(known, "origin", None)
    library = file and any(Path(file).resolve().is_relative_to(each) for each in LIBRARIES)
    return not (library or package in sys.stdlib_module_names)


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> Path:
    """Write ``content`` to ``path`` atomically: a reader sees the old or the new file.

    Temporary file in the same folder, fsync, rename; missing folders are created. Raises
    ``OSError`` if writing fails, keeping the old file, and ``ValueError`` for a folder or a device.
    """
    path = Path(path).expanduser()
    if path.exists() and not path.is_file():  # the rename would replace a device
        raise ValueError(f"{path} is not a regular file, so it is not overwritten: choose another")
    if isinstance(content, str):
        content = content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):  # errors may name no file or the temporary one
            error.filename, error.filename2 = str(path), None
        with suppress(OSError):
            temporary.unlink()
        raise
    return path


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> Path:
    """Write a JSON file atomically; see `plain_values`."""
    return write_atomic(path, json.dumps(plain_values(content), indent=1) + "\n")


def plain_values(value: Any, name: str = "the value") -> Any:
    """``value`` as JSON can represent it (RFC 8259): tensors and arrays become lists.

    A number that is not finite becomes ``None``, a key a string. Raises ``ValueError`` for other
    types, and for keys that are equal as strings.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, Mapping):
        keys = [str(key) for key in value]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{name!r} has keys that are equal as strings: give others")
        parts = zip(keys, value.values(), strict=True)
        return {key: plain_values(part, key) for key, part in parts}
    if isinstance(value, list | tuple):
        return [plain_values(part, name) for part in value]
    if hasattr(value, "tolist"):  # tensors and numpy values
        return plain_values(value.tolist(), name)
    kind = type(value).__name__
    raise ValueError(f"{name!r} is a {kind}, which JSON cannot hold: give numbers and strings")


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a JSON file; empty if the file does not exist.

    Raises ``ValueError`` for other contents.
    """
    path = Path(path).expanduser()
    if not path.exists():
        return {}
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a mapping")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or restore a copy") from error
    return content


def shipped(name: str) -> Path:
    """A file or folder of the checkout; in an installation from a wheel, its copy.

    An exported notebook holds it unpacked, without the ending ``.gz``. Raises ``FileNotFoundError``
    if it does not carry it.
    """
    places = [SHARE / Path(name).name]
    if CHECKOUT is not None:  # first: an editable install copies files, too
        places = [CHECKOUT / name, CHECKOUT / name.removesuffix(".gz"), *places]
    for path in places:
        if path.exists():
            return path
    remedy = "import what opens it in the notebook's own code, or name it there in quotes"
    raise FileNotFoundError(f"{name} is not part of this export: {remedy}")
