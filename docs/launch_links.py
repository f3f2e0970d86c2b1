"""Prints the links that open the notebooks of this fork in the cloud: `make links`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CELL = """%pip install "astkit-torch[notebooks] @ git+https://github.com/{name}"
!astkit notebooks kit && cp -r kit/results kit/*.py ."""


def repository(address: str) -> str:
    """ "owner/name" of the address of a GitHub remote, else ``ValueError``."""
    found = re.search(
        r"github\.com[:/]+([\w.-]+/[\w.-]+?)(\.git)?/?$", address
    )
    if found is None:
        raise ValueError(
            f"origin is {address!r}, which is not on GitHub, from where the services read: push the"
            " fork there, and call git remote add origin ADDRESS"
        )
    return found[1]


def links(name: str, branch: str, notebooks: Iterable[str]) -> str:
    """Markdown with a link for each service, for notebooks by their file names."""
    files = f"{name}/blob/{branch}/notebooks"
    colab = f"https://colab.research.google.com/github/{files}"
    kaggle = (
        f"https://kaggle.com/kernels/welcome?src=https://github.com/{files}"
    )
    binder = f"https://mybinder.org/v2/gh/{name}/{branch}?urlpath=lab/tree/notebooks"
    lines = [
        f"[Codespaces](https://codespaces.new/{name}) · [Binder]({binder})",
        "",
    ]
    for each in notebooks:
        lines.append(
            f"- {each}: [Colab]({colab}/{each}) · [Kaggle]({kaggle}/{each})"
        )
    return "\n".join(
        [
            *lines,
            "",
            "First cell in Colab and Kaggle:",
            "",
            CELL.format(name=name),
        ]
    )


def git(*command: str) -> str:
    """What git answers in this checkout, or nothing."""
    done = subprocess.run(
        ["git", *command], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    files = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    try:
        fork = repository(git("remote", "get-url", "origin"))
        print(links(fork, git("branch", "--show-current"), files))
    except ValueError as error:
        sys.exit(str(error))
