"""What this machine has, what is missing, what that is for and how to get it.

Torch is imported in functions alone: that it cannot be is one of the things to tell.
"""

from __future__ import annotations

import importlib
import importlib.util
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
from typing import Any

import astkit
from astkit.runs import installed
from astkit.runs.findings import Finding, works

Needed = list[installed.Requirement]
PURPOSES = {
    "notebooks": "notebooks, widgets and the digits",
    "data": "data sets in parquet files",
    "tune": "`astkit tune`",
    "dask": "sweeps on several machines",
    "energy": "joules of NVIDIA GPUs",
    "test": "developers: make test",
}
BARE = ("torch", "torchvision", "numpy")  # tried where no metadata say what the core is
LEAST_FREE = 1e9  # bytes on disk, for a run with its checkpoints
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_FOLDERS = re.compile(r"(?:/[^/\s:]+)+/")  # of an absolute path
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def examine() -> list[Finding]:
    """Look at everything that the kit may use, in the current folder and interpreter."""
    try:
        needed = installed.requirements()
    except metadata.PackageNotFoundError:
        needed = None
    core = list(_core(needed))
    findings = [_astkit(needed), _python(), *core]
    if works(core):
        findings += [*_processor(), _gpu(), *_energy()]
    findings += [*_compiler(), *_extras(needed or []), _browser()]
    return [*findings, *_data(works(core)), *_folder()]


def _astkit(needed: Needed | None) -> Finding:
    if needed is None:
        remedy = f"its requirements are unknown until `{installed.install_command('')}`"
        return Finding("astkit", "--", f"{astkit.__version__}, not installed", remedy)
    return Finding("astkit", "ok", astkit.__version__)


def _python() -> Finding:
    version = platform.python_version()
    try:
        wanted = metadata.metadata("astkit")["Requires-Python"]
    except metadata.PackageNotFoundError:
        wanted = ""
    if not installed.within(version, wanted):
        remedy = f"astkit wants {wanted}: make a new environment"
        return Finding("python", "!!", version, remedy, core=True)
    return Finding("python", "ok", version, core=True)


def _core(needed: Needed | None) -> Iterator[Finding]:
    if needed is None:
        needed = [installed.Requirement(name, "", "", "unknown") for name in BARE]
    for each in needed:
        if not each.extra:
            yield _package(each)


def _package(needed: installed.Requirement) -> Finding:
    """Whether a package of the core is here, in a wanted version, and can be imported."""
    name, again = needed.name, f"`pip install '{needed.name}{needed.wanted}'`"
    if needed.version is None:
        return Finding(name, "!!", "not installed", f"the core needs it: {again}", core=True)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # what a broken binary raises is anyone's guess
        remedy = f"install it anew: {again.replace('install', 'install --force-reinstall', 1)}"
        return Finding(name, "!!", f"does not import ({_said(error)})", remedy, core=True)
    version = getattr(module, "__version__", needed.version)
    if needed.wanted and not needed.met:
        return Finding(name, "!!", f"{version}, not {needed.wanted}", again, core=True)
    return Finding(name, "ok", f"{version}{_built(module)}", core=True)


def _built(module: Any) -> str:
    if module.__name__ != "torch":
        return ""
    kind = module.version.hip and "ROCm", module.version.cuda and f"CUDA {module.version.cuda}"
    return f", built for {kind[0] or kind[1] or 'CPUs alone'}"


def _said(error: BaseException) -> str:
    """An error's first line, with files by their names: paths are nobody's business."""
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


def _extras(needed: Needed) -> Iterator[Finding]:
    names = dict.fromkeys(each.extra for each in needed if each.extra)
    for extra in sorted(names.keys() - {"dev"}, key=[*PURPOSES, *names].index):  # dev is all
        packages = [each for each in needed if each.extra == extra]
        lacking = [str(each) for each in packages if not each.met]
        purpose = PURPOSES.get(extra, "this extra")
        if not lacking:
            count = packages[0].name if len(packages) == 1 else f"{len(packages)} packages"
            yield Finding(extra, "ok", f"{count}, for {purpose}")
            continue
        fact = f"no {', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}, for {purpose}"
        yield Finding(extra, "--", fact, f"`{installed.install_command(extra)}`")


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
        remedy = f"to read it `{installed.install_command('data')}`"
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
