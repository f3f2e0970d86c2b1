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
from astkit.export.cells import literals
from astkit.files import write_atomic

METADATA, DATASET = "kernel-metadata.json", "dataset"
NOBODY = "YOUR-KAGGLE-NAME"
LICENSES = [{"name": "other"}]
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
        readable: write each module in a cell of its own, not all of them compressed in one.
        wheel: install this wheel of astkit from a dataset; modules are not written.
    """

    user: str = NOBODY
    title: str = ""
    datasets: Sequence[str] = ()
    gpu: bool = False
    public: bool = False
    readable: bool = False
    wheel: Path | None = None

    @property
    def wheel_dataset(self) -> str:
        """The dataset that holds the wheel."""
        return f"{self.user}/astkit-wheel"


def write(made: Bundle, kernel: Kernel, folder: Path) -> Path:
    """Write the exported file and its metadata into ``folder``; returns the file's path.

    With a wheel, ``folder/dataset`` is the dataset that holds it.

    Raises ``ValueError`` for a title or a dataset that Kaggle would reject, and for a dataset that
    the notebook does not use.
    """
    if kernel.datasets and not reads_data(made):
        raise ValueError(
            f"dataset is {kernel.datasets[0]!r}, but {made.name} reads no dataset: leave it out, or"
            " give the notebook a parameter `dataset` or read from /kaggle/input"
        )
    described = metadata(made, kernel)
    if kernel.wheel is not None:
        about = {"title": "astkit wheel", "id": kernel.wheel_dataset, "licenses": LICENSES}
        write_atomic(folder / DATASET / "dataset-metadata.json", json.dumps(about, indent=2) + "\n")
        write_atomic(folder / DATASET / kernel.wheel.name, kernel.wheel.read_bytes())
    write_atomic(folder / METADATA, json.dumps(described, indent=2) + "\n")
    code = folder / described["code_file"]
    return write_atomic(code, notebook.text(made, kernel.readable, kernel.wheel))


def reads_data(made: Bundle) -> bool:
    """Whether the notebook has a parameter ``dataset`` or reads from ``/kaggle/input``."""
    read = any("/kaggle/input" in cell.source for cell in made.body)
    return read or "dataset" in literals(made.parameters)


def metadata(made: Bundle, kernel: Kernel) -> dict[str, Any]:
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
        "code_file": f"{made.name}.ipynb",
        "language": "python",
        "kernel_type": "notebook",
        "is_private": not kernel.public,
        "enable_gpu": kernel.gpu,
        "enable_tpu": False,
        "enable_internet": False,
        "machine_shape": "NvidiaTeslaT4" if kernel.gpu else "",
        "docker_image_pinning_type": "original",  # the image of the first run, for reproducibility
        "keywords": [],
        "dataset_sources": [*kernel.datasets, *[kernel.wheel_dataset] * (kernel.wheel is not None)],
        "competition_sources": [],
        "kernel_sources": [],
        "model_sources": [],
    }


def summary(made: Bundle, kernel: Kernel, path: Path) -> str:
    """Summary of the written files and the next steps, in a few lines."""
    cifar = literals(made.parameters).get("dataset") == "cifar10"
    steps = {
        f"replace {NOBODY} by your Kaggle name, or pass --user": kernel.user == NOBODY,
        "add a dataset that contains CIFAR-10: --dataset OWNER/SLUG": cifar and not kernel.datasets,
        "CIFAR-10 trains faster on a GPU: pass --gpu": cifar and not kernel.gpu,
        f"kaggle datasets create -p {path.parent / DATASET}": kernel.wheel is not None,
        f"kaggle kernels push -p {path.parent}": True,
    }
    needed = [step for step, is_needed in steps.items() if is_needed]
    source = kernel.wheel.name if kernel.wheel else f"{len(made.modules)} modules, {made.stamp}"
    values = ", ".join(f"{name} = {value!r}" for name, value in made.values.items())
    datasets = ", ".join(kernel.datasets)
    lines = [
        f"{path}: {path.stat().st_size / 1e3:.0f} kB, {source}",
        *([f"parameters set: {values}"] if values else []),
        f"{path.parent / METADATA}: GPU {'on' if kernel.gpu else 'off'}, internet off"
        + (f", datasets {datasets}" if datasets else ""),
        *(f"{number}. {step}" for number, step in enumerate(needed, 1)),
    ]
    return "\n".join(lines)


def _words(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name).strip()


def _slug(title: str) -> str:
    return _words(title).lower().replace(" ", "-")
