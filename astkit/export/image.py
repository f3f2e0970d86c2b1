"""What an exported notebook may count on: the one list of what Kaggle's Python image has."""

from __future__ import annotations

import sys

LOWEST_TORCH = (2, 9)  # as in pyproject.toml

# anywidget, optuna, papermill, NVML and zeus are left out: nothing exported may depend on them
IMAGE = frozenset(
    {
        "IPython",
        "PIL",
        "ipywidgets",
        "matplotlib",
        "numpy",
        "pandas",
        "psutil",
        "pyarrow",
        "safetensors",
        "scipy",
        "sklearn",
        "torch",
        "torchvision",
        "tqdm",
    }
)


def has(module: str) -> bool:
    """Whether ``module`` (dotted) comes with Python or with the image."""
    top = module.partition(".")[0]
    return top in IMAGE or top in sys.stdlib_module_names


def torch_fault(version: str) -> str | None:
    """What is wrong with torch ``version``, such as "2.9.1+cu128"; ``None`` if it will do."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers >= LOWEST_TORCH:
        return None
    lowest = ".".join(map(str, LOWEST_TORCH))
    return (
        f"torch is {version}, and astkit needs {lowest} or newer: choose the latest environment"
        " in the notebook's settings"
    )
