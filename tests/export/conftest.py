"""An environment as on Kaggle: the image's packages, no astkit, no network, an input folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbformat import NotebookNode
from PIL import Image

from astkit.datasets.cifar10 import CLASSES

RUN_SECONDS = 900

# sockets reach this machine only: a kernel speaks with papermill over them
NO_NETWORK = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        if arguments[1][0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"no network: {event} {arguments[1]}")

sys.addaudithook(refuse)
"""


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with this one's packages, but neither astkit nor a network."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    # a folder named in a .pth file has its own .pth files, such as astkit's, left out
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    (site / "sitecustomize.py").write_text(NO_NETWORK)
    python = folder / "bin" / "python"
    probe = "import socket\ntry: import astkit\nexcept ImportError: print('absent')\n"
    probe += "try: socket.create_connection(('192.0.2.1', 9), 5)\nexcept OSError as e: print(e)"
    answer = subprocess.run(
        [python, "-c", probe], cwd=folder, capture_output=True, text=True, check=True
    )
    lines = answer.stdout.splitlines()
    assert lines[0] == "absent"
    assert lines[1].startswith("no network")
    return python


@pytest.fixture(scope="session")
def begin_in(
    bare_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Callable[[], NotebookNode]]:
    """Begin to run a notebook in a new folder; what is returned waits for the executed one.

    Kernel "bare" lacks astkit, "package" is this interpreter.
    """
    home = tmp_path_factory.mktemp("jupyter")
    for name, python in (("bare", str(bare_python)), ("package", sys.executable)):
        (home / "kernels" / name).mkdir(parents=True)
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": name, "language": "python"}
        (home / "kernels" / name / "kernel.json").write_text(json.dumps(spec))

    def begin(kernel: str, source: Path, folder: Path, parameters: dict[str, Any], **variables):
        folder.mkdir(exist_ok=True)
        target, values = folder / "ran.ipynb", folder.with_suffix(".yaml")
        values.write_text(json.dumps(parameters))  # which is YAML, too
        left_out = ("PYTHONPATH", "ASTKIT_DATA", "ASTKIT_INPUT")
        environment = {name: os.environ[name] for name in os.environ if name not in left_out}
        environment |= {"JUPYTER_PATH": str(home), "OMP_NUM_THREADS": "1"}
        environment |= {name: str(value) for name, value in variables.items()}
        options = ["-f", values, "-k", kernel, "--cwd", folder, "--no-progress-bar"]
        process = subprocess.Popen(
            [sys.executable, "-m", "papermill", source, target, *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        def finish() -> NotebookNode:
            said, _ = process.communicate(timeout=RUN_SECONDS)
            assert process.returncode == 0, said
            return nbformat.read(target, 4)

        return finish

    return begin


@pytest.fixture(scope="session")
def make_input() -> Callable[[Path, str], Path]:
    """Write a small CIFAR-10 of noise below ``root``, mounted as said; returns its folder."""

    def make(root: Path, mount: str) -> Path:
        folder = root / mount / "packed"
        for part, count in (("train", 8), ("test", 2)):
            for label, name in enumerate(CLASSES):
                (folder / part / name).mkdir(parents=True)
                for number in range(count):
                    pixels = np.random.default_rng([label, number, count]).integers(
                        0, 256, (32, 32, 3), dtype=np.uint8
                    )
                    Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
        return folder

    return make
