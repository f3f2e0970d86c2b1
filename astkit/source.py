"""Exact source of a result: a hash over named contents, and the state of a git checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def hash_of(contents: Mapping[str, bytes]) -> str:
    """Hexadecimal SHA-256 over names and contents, sorted by name."""
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        # the length separates a name from the content before it
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def git(root: Path, *arguments: str, seconds: float = 2.0) -> str | None:
    """Output of git in ``root``; ``None`` if it fails, is missing, or takes over ``seconds``."""
    # no lock: another git process may run in the same checkout
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
