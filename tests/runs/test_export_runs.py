"""An exported notebook runs where there is neither astkit nor a network."""

import io
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from PIL import Image

from astkit.runs import export, runner
from tests.notebooks.conftest import FOLDER

PARAMS = Path(__file__).resolve().parents[1] / "notebooks" / "params"
RUN_SECONDS = 900
SMALLER: dict[str, dict[str, Any]] = {  # and where its data set is mounted, if it has one
    **{f"0{number}": {} for number in range(9)},
    "01": {"dataset": "cifar10", "seeds": [0], "mount": "made-up-slug"},
    "02": {"seeds": [0], "batches": 40},
    "03": {"dataset": "cifar10", "seeds": [0], "mount": "datasets/owner/made-up-slug"},
}
WHERE = "import astkit, os; print(os.path.dirname(os.path.dirname(astkit.__file__)))"

# sockets reach this machine only: a kernel speaks with papermill over them
NO_NETWORK = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        if arguments[1][0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"no network: {event} {arguments[1]}")

sys.addaudithook(refuse)
"""


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a kernel "bare", which has this interpreter's packages without astkit."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    # a folder named in a .pth file has its own .pth files, such as astkit's, left out
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\nimport no_network\n")
    (site / "no_network.py").write_text(NO_NETWORK)
    bare = str(folder / "bin" / "python")
    probe = "import socket\ntry: import astkit\nexcept ImportError: print('absent')\n"
    probe += "try: socket.create_connection(('192.0.2.1', 9), 5)\nexcept OSError as e: print(e)"
    environment = without("PYTHONPATH")
    answer = subprocess.check_output([bare, "-c", probe], cwd=folder, env=environment, text=True)
    assert answer.startswith("absent\nno network")
    (folder / "kernels" / "bare").mkdir(parents=True)
    argv = [bare, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "bare", "language": "python"}
    (folder / "kernels" / "bare" / "kernel.json").write_text(json.dumps(spec))
    return folder


def executed(kernels: Path, source: Path, folder: Path, mounted: Path) -> NotebookNode:
    """The notebook ``source`` as it is after the bare kernel ran it in a new folder."""
    folder.mkdir()
    environment = without("PYTHONPATH", "ASTKIT_DATA") | {"JUPYTER_PATH": str(kernels)}
    environment |= {"ASTKIT_INPUT": str(mounted), "OMP_NUM_THREADS": "1"}
    options = ["-k", "bare", "--cwd", folder, "--no-progress-bar"]
    done = subprocess.run(
        [sys.executable, "-m", "papermill", source, folder / "ran.ipynb", *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return nbformat.read(folder / "ran.ipynb", 4)


def make_cifar10(folder: Path) -> None:
    """Write a small CIFAR-10 of noise."""
    folder.mkdir(parents=True)
    for part, count in (("train", 80), ("test", 20)):
        random, images = np.random.default_rng(count), []
        for _ in range(count):
            buffer = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(
                buffer, "PNG"
            )
            images.append({"bytes": buffer.getvalue()})
        table = pyarrow.table({"img": images, "label": [row % 10 for row in range(count)]})
        pyarrow.parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")


@pytest.mark.full
@pytest.mark.parametrize("number", SMALLER)
def test_an_export_runs_on_its_own_package(number: str, kernels: Path, tmp_path: Path) -> None:
    (original,) = FOLDER.glob(f"{number}_*.ipynb")
    plan, changes = runner.read_notebook(original), dict(SMALLER[number])
    make_cifar10(tmp_path / "input" / changes.pop("mount", "none") / "cifar10")
    parameters = yaml.safe_load((PARAMS / f"{original.stem}.yaml").read_text())
    named = {
        name: FOLDER / each for name, each in plan.defaults.items() if each and each == str(each)
    }
    files = {name: str(path.resolve()) for name, path in named.items() if path.is_file()}
    exported = export.build_notebook(plan, {"out": "", **parameters, **files, **changes})
    exported.cells.append(new_code_cell(WHERE))
    source, folder = tmp_path / "exported.ipynb", tmp_path / "empty"
    nbformat.write(exported, source)
    ran = executed(kernels, source, folder, tmp_path / "input")
    (package,) = folder.glob("astkit-*")
    assert ran.cells[-1].outputs[0].text.strip() == str(package)
    # what is written stays in the current folder
    beside = export.find_needs(plan, {}).files.keys() | {"__pycache__"}
    assert {path.name for path in folder.iterdir()} - beside == {package.name, "ran.ipynb"}


@pytest.mark.parametrize(
    ("hours", "task"),
    [
        ("8.5", "classes"),
        pytest.param("8.5", "regression", marks=pytest.mark.full),
        pytest.param("1e-9", "classes", marks=pytest.mark.full),
    ],
)
def test_the_template_of_a_competition_writes_a_submission(
    hours: str, task: str, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", hours)
    folder = tmp_path / "input" / "competitions" / "made-up"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    sides = pd.DataFrame(generator.normal(size=(600, 2)), columns=["height", "width"])
    table = sides.assign(kind=generator.choice(["a", "b"], 600), name=[f"n{i}" for i in range(600)])
    table.loc[::7, "width"] = np.nan
    size = sides["height"] + (table["kind"] == "a")
    labels = np.where(size > 0.5, "large", "small") if task == "classes" else 1000 + 50 * size
    table.insert(0, "number", range(600))
    table[:400].assign(size=labels[:400]).to_csv(folder / "train.csv", index=False)
    table[400:].to_csv(folder / "test.csv", index=False)
    parameters = {"label": "size", "row_id": "number", "epochs": 40}
    plan = runner.read_notebook(export.COMPETITION)
    source = export.write_notebook(plan, parameters, tmp_path / "out")
    executed(kernels, source, tmp_path / "empty", tmp_path / "input")
    submission = pd.read_csv(tmp_path / "empty" / "submission.csv")
    assert submission.columns.tolist() == ["number", "size"]
    assert submission["number"].tolist() == list(range(400, 600))
    if task == "regression":
        assert np.std(submission["size"].to_numpy() - labels[400:]) < 40
    elif hours != "1e-9":
        assert np.mean(submission["size"] == labels[400:]) > 0.8
