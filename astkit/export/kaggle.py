"""Files for `kaggle kernels push`: the exported file and kernel-metadata.json."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astkit.export import notebook
from astkit.export.bundle import Bundle
from astkit.export.cells import names
from astkit.files import write_atomic

METADATA = "kernel-metadata.json"
NOBODY = "YOUR-KAGGLE-NAME"
TITLE_LENGTH = range(5, 51)  # limits of Kaggle
_SOURCE = re.compile(r"[\w-]+/[\w-]+(/\d+)?")


@dataclass(frozen=True)
class Kernel:
    """Settings of the export on Kaggle.

    Args:
        user: Kaggle user name.
        title: derived from the notebook's name if empty.
        datasets: ``owner/slug`` of each dataset to mount.
        gpu: use a T4 (Kaggle's torch has no kernels for the P100).
    """

    user: str = NOBODY
    title: str = ""
    datasets: Sequence[str] = ()
    gpu: bool = False
    public: bool = False


def write(made: Bundle, kernel: Kernel, folder: Path) -> Path:
    """Write the exported file and its metadata into ``folder``; returns the file's path.

    Raises ``ValueError`` for a title or a dataset that Kaggle would reject.
    """
    code_file = f"{made.name}.ipynb"
    described = metadata(made, kernel, code_file)
    write_atomic(folder / METADATA, json.dumps(described, indent=2) + "\n")
    return write_atomic(folder / code_file, notebook.text(made))


def metadata(made: Bundle, kernel: Kernel, code_file: str) -> dict[str, Any]:
    """kernel-metadata.json with all fields that Kaggle's client reads.

    Defaults differ from the documentation (`enable_internet` is sent as true): see
    docs/kernels_metadata.md of Kaggle/kaggle-cli.
    """
    title = kernel.title or _words(f"astkit {made.name}")
    if len(title) not in TITLE_LENGTH or len(_slug(title)) < TITLE_LENGTH.start:
        raise ValueError(f"title is {title!r}: Kaggle accepts 5 to 50 characters, pass --title")
    for name in kernel.datasets:
        if not _SOURCE.fullmatch(name):
            raise ValueError(f"dataset is {name!r}: pass OWNER/SLUG, as in the dataset's URL")
    return {
        "id": f"{kernel.user}/{_slug(title)}",
        "title": title,
        "code_file": code_file,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": not kernel.public,
        "enable_gpu": kernel.gpu,
        "enable_tpu": False,
        "enable_internet": False,
        "machine_shape": "NvidiaTeslaT4" if kernel.gpu else "",
        "docker_image_pinning_type": "original",  # the image of the first run, for reproducibility
        "keywords": [],
        "dataset_sources": list(kernel.datasets),
        "competition_sources": [],
        "kernel_sources": [],
        "model_sources": [],
    }


def summary(made: Bundle, kernel: Kernel, path: Path) -> str:
    """Summary of the written files and the next steps, in a few lines."""
    name = kernel.user == NOBODY and f'replace {NOBODY} in "id" by your Kaggle name, or pass --user'
    data = "dataset" in names(made.parameters) and not kernel.datasets
    add = data and "for CIFAR-10, add a dataset that contains it: --dataset OWNER/SLUG"
    steps = [step for step in (name, add, f"kaggle kernels push -p {path.parent}") if step]
    lines = [
        f"{path}: {len(made.modules)} modules, {path.stat().st_size / 1e3:.0f} kB, {made.stamp}",
        f"{path.parent / METADATA}: GPU {'on' if kernel.gpu else 'off'}, internet off",
        *(f"{number}. {step}" for number, step in enumerate(steps, 1)),
    ]
    return "\n".join(lines)


def _words(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name).strip()


def _slug(title: str) -> str:
    return _words(title).lower().replace(" ", "-")
