"""Atomic file writes, and files that come with the package."""

from __future__ import annotations

import os
import secrets
import stat
import sysconfig
from contextlib import suppress
from pathlib import Path

SHARE = Path(sysconfig.get_path("data")) / "share" / "astkit"
"""Files of an installation from a wheel."""
_PARENT = Path(__file__).resolve().parents[1]
CHECKOUT = None if _PARENT.name == "site-packages" else _PARENT
"""The folder that contains the package, unless it is installed."""


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> Path:
    """Write ``content`` to ``path`` atomically: a reader sees the old or the new file.

    Temporary file in the same folder, fsync, rename, fsync of the folder; missing folders are
    created. A new file has the mode of the umask, an existing one keeps its mode. A stream such as
    ``/dev/stdout`` is written directly. Raises ``OSError`` if writing fails, keeping the old
    file, and ``ValueError`` for a link, a device, a pipe or a folder.
    """
    path = check_target(path)
    data = content.encode() if isinstance(content, str) else content
    if _is_stream(path):
        with open(path, "ab") as stream:  # append: the stream may be a non-empty file
            stream.write(data)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):  # errors may name no file or the temporary one
            error.filename, error.filename2 = str(path), None
        with suppress(OSError):
            temporary.unlink()
        raise
    # the rename is durable only after an fsync of the folder; Windows cannot open folders
    if os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return path


def check_target(path: str | os.PathLike[str]) -> Path:
    """``path``; raises ``ValueError`` for a link, a device, a pipe or a folder.

    Streams of the process, such as ``/dev/stdout``, are accepted.
    """
    path = Path(path)
    link = path.is_symlink()
    if not _is_stream(path) and (link or (path.exists() and not path.is_file())):
        what = "a link and not a regular file" if link else "not a regular file"
        raise ValueError(f"{path} is {what}, so it is not overwritten: choose another")
    return path


def _is_stream(path: Path) -> bool:
    named = str(path) in ("/dev/stdout", "/dev/stderr", "/dev/null")
    return named or str(path.parent) in ("/dev/fd", "/proc/self/fd")


def shipped(name: str) -> Path:
    """A file or folder of the checkout; in an installation from a wheel, its copy."""
    # the checkout first: an editable install copies files, too
    if CHECKOUT is not None and (CHECKOUT / name).exists():
        return CHECKOUT / name
    return SHARE / Path(name).name
