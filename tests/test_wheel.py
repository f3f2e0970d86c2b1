"""The wheel works where there is no checkout: built from the sdist, installed, used."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(UV is None, reason="installs with uv, which is not there"),
]
LOOP = """
import torch
from astkit import Gate
x, y = torch.randn(64, 4), torch.arange(64) % 3
model, gate = torch.nn.Linear(4, 3), Gate(0.25)
criterion = torch.nn.CrossEntropyLoss(reduction="none")
chosen = gate(model, x, y)
chosen.mean(criterion(model(x[chosen.index]), y[chosen.index])).backward()
print(len(chosen.index))
"""


def run(*command: str | Path, folder: Path) -> str:
    """Standard output of a command in ``folder``, without this checkout in its environment."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", out, ROOT, folder=out)
    (found,) = out.glob("*.whl")  # build makes it of the sdist
    assert len(list(out.glob("*.tar.gz"))) == 1
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel and its own dependencies alone."""
    folder = tmp_path_factory.mktemp("alone")
    run(UV, "venv", "--python", sys.executable, folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    run(UV, "pip", "install", "--python", python, wheel, folder=folder)
    return python.parent


def test_the_core_needs_five_packages(installed: Path, tmp_path: Path) -> None:
    assert 0 < int(run(installed / "python", "-c", LOOP, folder=tmp_path)) < 64
    code = "from importlib.metadata import requires; print(*requires('astkit-torch'), sep='\\n')"
    needed = run(installed / "python", "-c", code, folder=tmp_path).splitlines()
    names = {re.split(r"\W", line)[0] for line in needed if "extra ==" not in line}
    assert names == {"numpy", "safetensors", "torch", "torchvision", "tqdm"}


def test_a_command_that_needs_more_says_what(installed: Path, tmp_path: Path) -> None:
    command = [installed / "astkit", "export", "-o", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "install it, or the extra 'notebooks' of astkit" in done.stderr
    assert done.stderr.count("\n") == 1


def test_notebooks_and_compare_run_from_the_wheel(installed, wheel, tmp_path):
    python = installed / "python"
    run(UV, "pip", "install", "--python", python, f"{wheel}[notebooks]", folder=tmp_path)
    run(installed / "astkit", "notebooks", "mine", folder=tmp_path)
    shipped = sorted(path.name for path in (tmp_path / "mine").glob("*.ipynb"))
    assert shipped == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    first = next(name for name in shipped if name.startswith("01"))
    short = ("-p", "preset=quick", "-p", "epochs=1", "-p", "rounds=2")
    said = run(installed / "astkit", "run", f"mine/{first}", *short, folder=tmp_path)
    assert "complete" in said
    options = ("--dataset", "digits", "--epochs", "1", "--seeds", "2", "--policies", "infobatch")
    assert "infobatch" in run(installed / "astkit", "compare", *options, folder=tmp_path)
    run(installed / "astkit", "export", "-o", "out", folder=tmp_path)
    assert "astkit" in (text := (tmp_path / "out" / "competition.ipynb").read_text())
    assert len(text) < 900_000  # with the data of the package, without the notebooks
