"""What this machine has, what is missing, what that is for and how to get it.

Torch is imported in functions alone: that it cannot be is one of the things to tell.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import astkit
from astkit.runs.findings import Finding, works

if TYPE_CHECKING:  # from the notebooks' extra, which may not be installed
    from packaging.requirements import Requirement

PURPOSES = {
    "notebooks": "notebooks, widgets and the digits",
    "data": "data sets in parquet files",
    "tune": "`astkit tune`",
    "dask": "sweeps on several machines",
    "energy": "joules of NVIDIA GPUs",
    "test": "developers: make test",
}
BARE = ("torch", "torchvision", "numpy")  # tried where the requirements of the core are unknown
PYTHON = (3, 11)
LEAST_FREE = 1e9  # bytes on disk, for a run with its checkpoints
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_FOLDERS = re.compile(r"(?:/[^/\s:]+)+/")  # of an absolute path
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def examine() -> list[Finding]:
    """Look at everything that the kit may use, in the current folder and interpreter."""
    needed = requirements()
    names = BARE if needed is None else needed[""]
    core = [_package(each) for each in names]
    findings = [_astkit(needed is not None), _python(), *core]
    if works(core):
        findings += [*_processor(), _gpu(), *_energy()]
    findings += [*_compiler(), *_extras(needed or {}), _browser()]
    return [*findings, *_data(works(core)), *_folder()]


def requirements() -> dict[str, list[Requirement]] | None:
    """What the installed distribution asks for, by extra, "" being the core.

    ``None`` where astkit runs without being installed, or packaging, which reads them, is missing.
    """
    try:
        from packaging.requirements import Requirement

        lines = metadata.requires("astkit") or []
    except ModuleNotFoundError:  # a distribution that is not there is one, too
        return None
    extras = metadata.metadata("astkit").get_all("Provides-Extra") or []
    found: dict[str, list[Requirement]] = {extra: [] for extra in ("", *extras)}
    for each in map(Requirement, lines):
        of = [x for x in found if each.marker is None or each.marker.evaluate({"extra": x})]
        for extra in of[:1] if "" in of else of:
            found[extra].append(each)
    return found


def install_command(extra: str) -> str:
    """The command that installs ``extra`` into this environment, core alone for ""."""
    brackets = f"[{extra}]" if extra else ""
    checkout = _checkout()
    if checkout is None:
        return f"pip install 'astkit{brackets}'"
    own = Path(sys.prefix).resolve() == (checkout / ".venv").resolve()
    return f"{'.venv/bin/pip' if own else 'python -m pip'} install -e '.{brackets}'"


def _checkout() -> Path | None:
    """The checkout that astkit was installed from with ``pip install -e``, or runs from."""
    try:
        origin = metadata.distribution("astkit").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = '{"dir_info": {"editable": true}}'
    editable = json.loads(origin or "{}").get("dir_info", {}).get("editable")
    return Path(__file__).resolve().parents[2] if editable else None


def _astkit(known: bool) -> Finding:
    if known:
        return Finding("astkit", "ok", astkit.__version__)
    fact = f"{astkit.__version__}, its requirements are unknown"
    return Finding("astkit", "--", fact, f"`{install_command('notebooks')}`")


def _python() -> Finding:
    version = platform.python_version()
    if tuple(map(int, version.split(".")[:2])) < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        remedy = f"astkit needs {wanted} or newer: make a new environment"
        return Finding("python", "!!", version, remedy, core=True)
    return Finding("python", "ok", version, core=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package(needed: Requirement | str) -> Finding:
    """Whether a package of the core is here, in a wanted version, and can be imported."""
    name = needed if isinstance(needed, str) else needed.name
    again, version = f"`pip install '{needed}'`", _version(name)
    if version is None:
        return Finding(name, "!!", "not installed", f"the core needs it: {again}", core=True)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # what a broken binary raises is anyone's guess
        remedy = f"install it anew: {again.replace('install', 'install --force-reinstall', 1)}"
        return Finding(name, "!!", f"does not import ({_said(error)})", remedy, core=True)
    shown = getattr(module, "__version__", version)
    if not isinstance(needed, str) and not _fits(needed, version):
        return Finding(name, "!!", f"{shown}, not {needed.specifier}", again, core=True)
    return Finding(name, "ok", f"{shown}{_built(module)}", core=True)


def _built(module: Any) -> str:
    if module.__name__ != "torch":
        return ""
    kind = module.version.hip and "ROCm", module.version.cuda and f"CUDA {module.version.cuda}"
    return f", built for {kind[0] or kind[1] or 'CPUs alone'}"


def _said(error: BaseException) -> str:
    """An error's first line, with files by name: paths may name persons."""
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {_FOLDERS.sub('', line)}"


def _processor() -> Iterator[Finding]:
    from astkit.datasets.settings import free_memory
    from astkit.stamp import stamp

    facts: Any = stamp()
    if facts["commit"]:
        changes = " with changes" if facts["dirty"] else ""
        yield Finding(
            "source", "ok", f"{facts['source'][:8]}, commit {facts['commit'][:8]}{changes}"
        )
    else:
        yield Finding("source", "ok", f"{facts['source'][:8]}, no checkout")
    cores = f"{facts['cores']} cores, " if facts["cores"] else ""
    allowed = f"{facts['cpus']} of {os.cpu_count()} CPUs allowed"
    yield Finding("CPU", "ok", f"{facts['cpu']}, {cores}{allowed}")
    native = {True: "native bf16", False: "no native bf16", None: "bf16 unknown"}
    fact = f"{facts['threads']}, {facts['instruction_set']}, {native[facts['bf16_native']]}"
    if facts["threads"] > facts["cpus"]:
        remedy = f"more than CPUs wait for each other, so `export OMP_NUM_THREADS={facts['cpus']}`"
        yield Finding("threads", "!!", fact, remedy)
    else:
        yield Finding("threads", "ok", fact)
    free = free_memory()
    yield Finding("memory", "ok", "not told" if free is None else f"{free / 1e9:.1f} GB free")


def _gpu() -> Finding:
    import torch

    from astkit.export import gpu

    if not torch.accelerator.is_available():
        if _NVIDIA.is_dir() and any(_NVIDIA.iterdir()):
            remedy = "see CUDA_VISIBLE_DEVICES, the driver's age and torch's build (pytorch.org)"
            return Finding("GPU", "!!", "the NVIDIA driver has one, torch sees none", remedy)
        return Finding("GPU", "--", "none; training runs on the CPU")
    device: Any = torch.accelerator.current_accelerator()
    try:
        name = getattr(torch.get_device_module(device), "get_device_name", lambda: str(device))()
        fault = gpu.trial() if torch.version.cuda and device.type == "cuda" else _trial(device)
    except RuntimeError as error:  # such as a driver that does not start
        fault = _said(error)
    if fault is not None:
        remedy = "`export CUDA_VISIBLE_DEVICES=` trains on the CPU; pytorch.org has other builds"
        return Finding("GPU", "!!", fault, remedy)
    count = torch.accelerator.device_count()
    return Finding("GPU", "ok", f"{name}, {count} of {device.type}; a matrix product is right")


def _trial(device: Any) -> str | None:
    """What went wrong with a matrix product on ``device``, or ``None``."""
    import torch

    try:
        ones = torch.ones(64, 64, device=device)
        return None if float((ones @ ones).sum()) == 64.0**3 else f"{device} computes wrongly"
    except RuntimeError as error:
        return f"{device} fails at a matrix product ({_said(error)})"


def _energy() -> Iterator[Finding]:
    import torch

    from astkit.profiling.counters import UnavailableError, open_counter

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


def _compiler() -> Iterator[Finding]:
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    wanted = os.environ.get("CXX", default)  # as torch._inductor.config does
    if shutil.which((shlex.split(wanted) or [""])[0]):
        yield Finding("compiler", "ok", f"{wanted}, for torch.compile")
    else:
        other = next(filter(shutil.which, ("g++", "clang++")), None)
        remedy = f"`export CXX={other}`" if other else f"install {default}"
        yield Finding("compiler", "--", f"no {wanted}, for torch.compile", remedy)
    if Path(sysconfig.get_path("include"), "Python.h").is_file():
        yield Finding("headers", "ok", "Python.h, for torch.compile")
    else:
        remedy = "install python3-dev (Debian)"
        yield Finding("headers", "--", "no Python.h, for torch.compile", remedy)


def _extras(needed: dict[str, list[Requirement]]) -> Iterator[Finding]:
    known = sorted(needed.keys() - {"", "dev"}, key=[*PURPOSES, *needed].index)  # dev is all
    for extra in known:
        packages = needed[extra]
        lacking = [shown for each in packages if (shown := _lacking(each))]
        purpose = PURPOSES.get(extra, "this extra")
        if not lacking:
            count = packages[0].name if len(packages) == 1 else f"{len(packages)} packages"
            yield Finding(extra, "ok", f"{count}, for {purpose}")
            continue
        fact = f"no {', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}, for {purpose}"
        yield Finding(extra, "--", fact, f"`{install_command(extra)}`")


def _lacking(needed: Requirement) -> str:
    """The name of a package that is not installed as it is wanted; empty for one that is."""
    version = _version(needed.name)
    if version is None:
        return needed.name
    fits = _fits(needed, version)
    return "" if fits else f"{needed.name} {version} (wanted: {needed.specifier})"


def _fits(needed: Requirement, version: str) -> bool:
    return needed.specifier.contains(version, prereleases=True)  # such as a nightly build


def _browser() -> Finding:
    found = next(filter(shutil.which, _BROWSERS), None)
    if found:
        return Finding("browser", "ok", f"{found}, for developers' browser tests")
    fact = "no Chromium, for developers' browser tests"
    return Finding("browser", "--", fact, "install chromium")


def _data(readable: bool) -> Iterator[Finding]:
    if importlib.util.find_spec("sklearn"):
        yield Finding("digits", "ok", "come with scikit-learn")
    else:
        yield Finding("digits", "--", "not found", "they come with the notebooks' scikit-learn")
    if not readable:  # who searches for data imports torch
        return
    from astkit.datasets import cifar10

    places = cifar10.search_places(None)
    found = cifar10.find_layout(places)
    if found is None:
        yield Finding("cifar10", "--", "not found", "data/README.md says how to get it")
    elif found[1] == "parquet" and not importlib.util.find_spec("pyarrow"):
        remedy = f"to read it `{install_command('data')}`"
        yield Finding("cifar10", "--", f"parquet in {_shown(found[0])}", remedy)
    else:
        yield Finding("cifar10", "ok", f"{found[1]} layout in {_shown(found[0])}")


def _shown(folder: Path) -> str:
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _folder() -> Iterator[Finding]:
    free = shutil.disk_usage(".").free
    fact = f"{free / 1e9:.1f} GB free in this folder"
    if free < LEAST_FREE:
        yield Finding("disk", "!!", fact, "runs and checkpoints need more; free some")
    else:
        yield Finding("disk", "ok", fact)
    folder = Path("runs") if Path("runs").is_dir() else Path()
    try:
        with tempfile.TemporaryFile(dir=folder):
            yield Finding("runs/", "ok", "can be written")
    except OSError as error:
        remedy = "go to a folder of your own, or name one with --runs"
        yield Finding("runs/", "!!", f"cannot be written ({error.strerror})", remedy)
