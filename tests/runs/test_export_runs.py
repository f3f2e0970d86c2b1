"""An exported notebook, run where there is no astkit, finds what the package finds."""

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
import pandas as pd
import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from PIL import Image

from astkit.datasets.sources import CIFAR10 as CLASSES
from astkit.runs import export
from tests.notebooks.conftest import FOLDER

PARAMS = Path(__file__).resolve().parents[1] / "notebooks" / "params"
RUN_SECONDS = 900
SMALLER: dict[str, dict[str, Any]] = {  # and where its data set is mounted, if it has one
    "00": {},
    "01": {"dataset": "cifar10", "seeds": [0], "mount": "made-up-slug"},
    "02": {"seeds": [0], "live_epochs": 2},
    "03": {"dataset": "cifar10", "seeds": [0], "mount": "datasets/owner/made-up-slug"},
    "04": {"texts": str(FOLDER.parent / "data" / "docs_pairs.jsonl.gz")},
    "05": {},
    "06": {},
    "07": {},
}
MEASURED = "nbval-ignore-output"
# what a notebook found, where its own tables also hold what was measured
FOUND = {"03": "print([r['test_accuracy'] for r in results if r['arm'].endswith('fp32')])"}
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


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two kernels: "package" is this interpreter, "bare" has its packages, but neither
    astkit nor a network."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    # a folder named in a .pth file has its own .pth files, such as astkit's, left out
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    (site / "sitecustomize.py").write_text(NO_NETWORK)
    bare = str(folder / "bin" / "python")
    probe = "import socket\ntry: import astkit\nexcept ImportError: print('absent')\n"
    probe += "try: socket.create_connection(('192.0.2.1', 9), 5)\nexcept OSError as e: print(e)"
    environment = without("PYTHONPATH")
    answer = subprocess.check_output([bare, "-c", probe], cwd=folder, env=environment, text=True)
    assert answer.startswith("absent\nno network")
    for name, python in (("bare", bare), ("package", sys.executable)):
        (folder / "kernels" / name).mkdir(parents=True)
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": name, "language": "python"}
        (folder / "kernels" / name / "kernel.json").write_text(json.dumps(spec))
    return folder


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


@pytest.fixture(scope="session")
def begin_in(kernels: Path) -> Callable[..., Callable[[], NotebookNode]]:
    """Begin to run a notebook in a new folder; what is returned waits for the executed one."""

    def begin(kernel: str, source: Path, folder: Path, parameters: dict[str, Any], **variables):
        folder.mkdir(exist_ok=True)
        target, values = folder / "ran.ipynb", folder.with_suffix(".yaml")
        values.write_text(json.dumps(parameters))  # which is YAML, too
        environment = without("PYTHONPATH", "ASTKIT_DATA", "ASTKIT_INPUT")
        environment |= {"JUPYTER_PATH": str(kernels), "OMP_NUM_THREADS": "1"}
        environment |= {name: str(value) for name, value in variables.items()}
        if kernel == "package":
            environment["PYTHONPATH"] = str(FOLDER.parent)
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


def make_cifar10(folder: Path) -> Path:
    """Write a small CIFAR-10 of noise."""
    for part, count in (("train", 8), ("test", 2)):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                generator = np.random.default_rng([label, number, count])
                pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder


def findings(book: NotebookNode, cells: int) -> list[tuple[str, list[Any]]]:
    """Source and outputs of those of the last ``cells`` that show the same in every run."""
    code = [cell for cell in book.cells[-cells:] if cell.cell_type == "code"]
    kept = [cell for cell in code if MEASURED not in cell.metadata.get("tags", [])]
    return [(cell.source, _shown(cell)) for cell in kept]


def _shown(cell: NotebookNode) -> list[Any]:
    """Outputs without pictures, some of which draw seconds; a stream is split at any place."""
    shown: list[Any] = ["".join(output.get("text", "") for output in cell.outputs)]
    for output in cell.outputs:
        data = output.get("data", {})
        shown.append({kind: content for kind, content in data.items() if kind != "image/png"})
    return [each for each in shown if each]


@pytest.mark.full
@pytest.mark.parametrize("number", SMALLER)
def test_an_export_finds_what_the_package_finds(number: str, begin_in, tmp_path: Path) -> None:
    (original,) = FOLDER.glob(f"{number}_*.ipynb")
    book = nbformat.read(original, 4)
    if number in FOUND:
        book.cells.append(new_code_cell(FOUND[number]))
    copy = tmp_path / original.name
    nbformat.write(book, copy)
    plan = export.read(copy)
    named = {
        name: FOLDER / each for name, each in plan.defaults.items() if each and each == str(each)
    }
    files = {name: str(path.resolve()) for name, path in named.items() if path.is_file()}
    changes = dict(SMALLER[number])
    mount = changes.pop("mount", "none")
    parameters = yaml.safe_load((PARAMS / f"{original.stem}.yaml").read_text())
    parameters = {**parameters, **files, **changes}
    data = make_cifar10(tmp_path / "input" / mount / "packed")
    kinds = [cell.cell_type for cell in book.cells]
    count = len(kinds) - kinds.index("code") - 1  # cells after the parameters

    exported = export.build(plan, {"out": "", **parameters})
    exported.cells.insert(-count, new_code_cell(WHERE))
    nbformat.write(exported, tmp_path / "exported.ipynb")
    mounted = {"ASTKIT_INPUT": tmp_path / "input"}
    running = begin_in("bare", tmp_path / "exported.ipynb", tmp_path / "empty", {}, **mounted)
    twin = begin_in("package", copy, tmp_path / "twin", parameters, ASTKIT_DATA=data)()
    ran = running()
    (package,) = (tmp_path / "empty").glob("astkit-*")
    assert ran.cells[-count - 1].outputs[0].text.strip() == str(package)
    expected = findings(twin, count)
    assert findings(ran, count) == expected
    assert any(outputs for _, outputs in expected)
    # what is written stays in the current folder
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {package.name, "ran.ipynb"}


def test_the_template_of_a_competition_writes_a_submission(begin_in, tmp_path: Path) -> None:
    folder = tmp_path / "input" / "competitions" / "made-up"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    sides = pd.DataFrame(generator.normal(size=(600, 2)), columns=["height", "width"])
    table = sides.assign(kind=generator.choice(["a", "b"], 600), name=[f"n{i}" for i in range(600)])
    table.loc[::7, "width"] = np.nan
    labels = np.where(sides["height"] + (table["kind"] == "a") > 0.5, "large", "small")
    table.insert(0, "number", range(600))
    table[:400].assign(size=labels[:400]).to_csv(folder / "train.csv", index=False)
    table[400:].to_csv(folder / "test.csv", index=False)
    parameters = {"target": "size", "row_id": "number", "epochs": 10}
    plan = export.read(export.COMPETITION)
    source = export.write(plan, parameters, tmp_path / "out")
    begin_in("bare", source, tmp_path / "empty", {}, ASTKIT_INPUT=tmp_path / "input")()
    submission = pd.read_csv(tmp_path / "empty" / "submission.csv")
    assert submission.columns.tolist() == ["number", "size"]
    assert submission["number"].tolist() == list(range(400, 600))
    assert np.mean(submission["size"] == labels[400:]) > 0.8
