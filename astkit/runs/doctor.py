"""Check the environment: what astkit can use, what is missing, and how to install it.

Torch is imported inside functions only, since a broken torch is one of the findings.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any, Literal

import astkit

EXTRAS = {  # one package of each extra, and its purpose
    "notebooks": ("papermill", "notebooks, widgets and the digits"),
    "data": ("pyarrow", "datasets in parquet files"),
    "tune": ("optuna", "`astkit tune`"),
    "energy": ("pynvml", "joules of NVIDIA GPUs"),
    "test": ("pytest", "developers: make test"),
}
CORE = ("torch", "torchvision", "numpy", "safetensors")
LEAST_FREE = 1e9  # bytes of free disk, for a run and its checkpoints
LEGEND = "ok: works   --: missing, may be added   !!: to be fixed"
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_FOLDERS = re.compile(r"(?:/[^/\s:]+)+/")  # folders of an absolute path


@dataclass(frozen=True)
class Finding:
    """One check's result; ``core``: astkit requires it."""

    topic: str
    mark: Literal["ok", "--", "!!"]
    fact: str
    remedy: str = ""
    core: bool = False


def examine() -> list[Finding]:
    """Check everything that astkit may use, in the current folder and interpreter."""
    core = [_package(name) for name in CORE]
    version = f"{astkit.__version__} on Python {platform.python_version()}"
    findings = [Finding("astkit", "ok", version), *core]
    if works(core):
        findings += [*_processor(), _gpu(), *_energy(), _cifar10()]
    return [*findings, _compiler(), *_extras(), _disk()]


def works(findings: list[Finding]) -> bool:
    """Whether the required packages work."""
    return not any(finding.core and finding.mark != "ok" for finding in findings)


def verdict(findings: list[Finding]) -> str:
    """One sentence on whether the required packages work."""
    if works(findings):
        return "The core of astkit works here."
    broken = [each.topic for each in findings if each.core and each.mark != "ok"]
    return f"astkit cannot work here: fix {', '.join(broken)} first."


def text(findings: list[Finding]) -> str:
    """The findings in lines of at most 80 columns; commands are not wrapped."""
    wide = max(len(finding.topic) for finding in findings)
    lines = []
    for each in findings:
        said = f"{each.fact}: {each.remedy}" if each.remedy else each.fact
        # textwrap does not break at a no-break space
        kept = re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", "\xa0"), said)
        head = f"{each.mark}  {each.topic:<{wide}}  "
        wrapper = textwrap.TextWrapper(80, break_long_words=False, break_on_hyphens=False)
        wrapper.initial_indent, wrapper.subsequent_indent = head, " " * len(head)
        lines += wrapper.wrap(kept)
    return "\n".join([*lines, "", LEGEND, verdict(findings)]).replace("\xa0", " ")


def install_command(extra: str) -> str:
    """The command that installs ``extra`` into this environment."""
    checkout = (Path(__file__).parents[2] / "pyproject.toml").exists()
    return f"python -m pip install {'-e .' if checkout else 'astkit'}'[{extra}]'"


def _package(name: str) -> Finding:
    """Whether a required package can be imported."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a broken binary may raise any exception
        remedy = f"reinstall it: `pip install --force-reinstall {name}`"
        return Finding(name, "!!", f"does not import ({_said(error)})", remedy, core=True)
    return Finding(name, "ok", module.__version__, core=True)


def _said(error: BaseException) -> str:
    """An error's first line, without folders: they may contain user names."""
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {_FOLDERS.sub('', line)}"


def _processor() -> Iterator[Finding]:
    from astkit.stamp import stamp

    facts: Any = stamp()
    commit = f", commit {facts['commit'][:8]}" if facts["commit"] else ""
    changes = " with changes" if facts["dirty"] else ""
    yield Finding("source", "ok", f"{facts['source'][:8]}{commit}{changes}")
    cores = f"{facts['cores']} cores, " if facts["cores"] else ""
    yield Finding("CPU", "ok", f"{facts['cpu']}, {cores}{facts['cpus']} CPUs allowed")
    native = {True: "native bf16", False: "no native bf16", None: "bf16 unknown"}
    fact = f"{facts['threads']}, {facts['instruction_set']}, {native[facts['bf16_native']]}"
    many = facts["threads"] > facts["cpus"]
    remedy = f"more threads than CPUs: `export OMP_NUM_THREADS={facts['cpus']}`"
    yield Finding("threads", "!!" if many else "ok", fact, remedy if many else "")


def _gpu() -> Finding:
    import torch

    from astkit.export import gpu

    if not torch.accelerator.is_available():
        if _NVIDIA.is_dir() and any(_NVIDIA.iterdir()):
            remedy = "check CUDA_VISIBLE_DEVICES, driver version and torch's build (pytorch.org)"
            return Finding("GPU", "!!", "found by the NVIDIA driver, but not by torch", remedy)
        return Finding("GPU", "--", "none; training runs on the CPU")
    device: Any = torch.accelerator.current_accelerator()
    try:
        name = getattr(torch.get_device_module(device), "get_device_name", lambda: str(device))()
        fault = gpu.trial() if device.type == "cuda" else None
    except RuntimeError as error:  # for example, a driver that fails to initialise
        fault = _said(error)
    if fault is not None:
        remedy = "`export CUDA_VISIBLE_DEVICES=` trains on the CPU; pytorch.org has other builds"
        return Finding("GPU", "!!", fault, remedy)
    return Finding("GPU", "ok", f"{name}, {torch.accelerator.device_count()} of {device.type}")


def _energy() -> Iterator[Finding]:
    import torch

    from astkit.profiling.energy_counters import UnavailableError, open_counter

    kinds = ["cpu"]
    if torch.accelerator.is_available():
        kinds.append(str(torch.accelerator.current_accelerator()))
    for kind in kinds:
        try:
            counter = open_counter(torch.device(kind))
        except UnavailableError as error:
            yield Finding(f"{kind} joules", "--", f"not measured; {error}")
        else:
            yield Finding(f"{kind} joules", "ok", f"{counter.backend}, {counter.scope}")
            counter.close()


def _compiler() -> Finding:
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    wanted = os.environ.get("CXX", default)  # as torch._inductor.config does
    if shutil.which((shlex.split(wanted) or [""])[0]):
        return Finding("compiler", "ok", f"{wanted}, for torch.compile")
    return Finding("compiler", "--", f"no {wanted}, for torch.compile", f"install {default}")


def _extras() -> Iterator[Finding]:
    for extra, (package, purpose) in EXTRAS.items():
        if util.find_spec(package):
            yield Finding(extra, "ok", f"installed, for {purpose}")
        else:
            fact = f"no {package}, for {purpose}"
            yield Finding(extra, "--", fact, f"`{install_command(extra)}`")


def _cifar10() -> Finding:
    from astkit.datasets import cifar10

    found = cifar10.find_layout(cifar10.search_places(None))
    if found is None:
        return Finding("cifar10", "--", "not found", "see data/README.md to install it")
    if found[1] == "parquet" and not util.find_spec("pyarrow"):
        return Finding("cifar10", "--", "in parquet files", f"`{install_command('data')}`")
    return Finding("cifar10", "ok", f"{found[1]} layout")


def _disk() -> Finding:
    fact = f"{shutil.disk_usage('.').free / 1e9:.1f} GB free in this folder"
    if shutil.disk_usage(".").free < LEAST_FREE:
        return Finding("disk", "!!", fact, "runs and checkpoints need more: free some")
    if not os.access(".", os.W_OK):
        return Finding("disk", "!!", f"{fact}, not writable", "change to another folder")
    return Finding("disk", "ok", fact)
