"""Files that are either whole or not there: atomic writes and checksums."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> Path:
    """Write ``content`` to ``path`` so that a reader sees the old file or the new one whole.

    Temporary file in the same folder, fsync, rename, fsync of the folder; missing folders are made.
    Raises ``OSError`` when the disk refuses; the old file is then still whole.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say of which file it was
        raise
    # the rename itself is durable only once its folder is; Windows cannot open folders
    if os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return path


def sha256(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of the file at ``path``, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
