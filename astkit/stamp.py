"""Environment of a measurement: versions, machine, settings and the exact source.

A stamp is part of every run folder and notebook, so it contains no host name, user name or path.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from astkit.system import allowed_cpus, text_of

_PACKAGES = ("torch", "torchvision", "numpy")
_CPU_INFO = Path("/proc/cpuinfo")
_GIT_SECONDS = 2.0


def stamp() -> dict[str, object]:
    """The environment as JSON-compatible values; ``None`` if unknown.

    ``cpus``: logical processors available to this process; ``bf16_native``: whether the processor
    has bfloat16 instructions (``avx512_bf16`` or ``amx_bf16``, on ARM ``bf16``); ``commit`` and
    ``dirty``: state of the checkout that contains the package, if any; ``source``: `source_hash` of
    the package; ``cuda``: the version torch was built for; ``time``: UTC.
    """
    folder = Path(__file__).parent
    commit, dirty = _checkout(folder.parent)
    return {
        "astkit": getattr(sys.modules.get("astkit"), "__version__", None),
        "source": source_hash(folder),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda,
        "platform": platform.platform(),
        "devices": _devices(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        **_cpu(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def describe(values: Mapping[str, object]) -> str:
    """A stamp in one line, for the top of a notebook or a table's caption."""
    source = f"source {str(values['source'])[:8]}"
    if values["commit"]:
        changed = " with changes" if values["dirty"] else ""
        source += f", commit {str(values['commit'])[:8]}{changed}"
    bf16 = {None: "bf16 unknown", True: "native bf16", False: "no native bf16"}
    cpu = f"{values['cpu']}, {values['cpus']} CPUs, {values['threads']} threads"
    devices = values["devices"]
    parts = [
        f"astkit {values['astkit']} ({source})",
        *(f"{name} {values[name]}" for name in ("python", *_PACKAGES) if values[name]),
        f"{cpu}, {values['instruction_set']}, {bf16[values['bf16_native']]}",  # type: ignore[index]
        ", ".join(devices) if isinstance(devices, list) and devices else "no GPU",
        *(["deterministic"] if values["deterministic"] else []),
        str(values["time"]),
    ]
    return " · ".join(parts)


def source_hash(folder: Path) -> str:
    """Hexadecimal SHA-256 over names and contents of the Python files in ``folder``, sorted."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        # the length separates a name from the content before it
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _checkout(root: Path) -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout at ``root``, not of a parent folder's."""
    commit = _git(root, "rev-parse", "--verify", "HEAD") if (root / ".git").exists() else None
    changes = None if commit is None else _git(root, "status", "--porcelain")
    return commit, None if changes is None else bool(changes)


def _git(root: Path, *arguments: str) -> str | None:
    """Output of git in ``root``; ``None`` if it fails, is missing, or takes too long."""
    # no lock: another git process may run in the same checkout
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _version(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _devices() -> list[str]:
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    name = getattr(torch.get_device_module(kind), "get_device_name", lambda _: str(kind))
    return [str(name(index)) for index in range(torch.accelerator.device_count())]


def _cpu() -> dict[str, object]:
    fields = [line.partition(":") for line in text_of(_CPU_INFO).splitlines()]
    facts = {name.strip().lower(): value.strip() for name, _, value in fields}
    flags = set((facts.get("flags") or facts.get("features") or "").split())
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "cpus": allowed_cpus(),
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "bf16_native": bool(flags & {"avx512_bf16", "amx_bf16", "bf16"}) if flags else None,
    }
