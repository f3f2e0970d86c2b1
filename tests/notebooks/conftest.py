"""The two ways a notebook is run here, papermill and nbval, and the notebooks they are run on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import papermill
import pytest
import yaml
from ipykernel.kernelspec import write_kernel_spec

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "notebooks"
CELL_SECONDS = 300
FORKS = """
import os, signal, sys
sys.path.pop(0)  # the current folder
from multiprocessing.connection import Listener
import scipy.stats, torch._dynamo, torchvision
signal.signal(signal.SIGCHLD, lambda *_: os.wait())
listener = Listener()
print(listener.address, flush=True)
os.dup2(2, 1)
while True:
    asker = listener.accept()
    if os.fork() == 0:
        break
    asker.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
folder, environment, arguments = asker.recv()
os.chdir(folder)
os.environ |= {**environment, "JPY_PARENT_PID": str(os.getppid())}
from astkit.aim import estimators, proxies, ratio
from ipykernel.kernelapp import launch_new_instance
proxies.TREES |= {"max_iter": 3}
estimators.TREES |= {"max_bins": 8, "max_iter": 10}
ratio.FOLDS = 2
launch_new_instance(arguments)
"""
"""Forks a kernel when asked, with torch imported, which takes longer than some notebooks.

pandas is not: it asks when it is imported whether it is in a notebook. `aim` fits fewer and smaller
trees in it, which take most of the time of some notebooks.
"""
FORKED = """
import os, signal, sys
from multiprocessing.connection import Client
signal.signal(signal.SIGINT, signal.SIG_IGN)
with Client(sys.argv[1]) as kernel:
    kernel.send((os.getcwd(), dict(os.environ), sys.argv[2:]))
    kernel.poll(None)  # until it ends
"""
"""Asks for a kernel, and lives as long as it."""

Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session", params=sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    """Each notebook of the project in turn."""
    return request.param


@pytest.fixture(scope="session")
def reduced(notebook: Path) -> dict[str, Any]:
    """The parameters that make ``notebook`` small enough for a test."""
    return yaml.safe_load((HERE / "params" / f"{notebook.stem}.yaml").read_text())


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of a kernel that is this very interpreter, whatever kernels the machine has."""
    folder = tmp_path_factory.mktemp("jupyter")
    (folder / "kernels").mkdir()
    with ExitStack() as stack:
        overrides = None
        if os.environ.get("ASTKIT_FULL") != "1":
            forks = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(forks.terminate)
            address = forks.stdout.readline().strip()
            argv = [sys.executable, "-c", FORKED, address, "-f", "{connection_file}"]
            overrides = {"argv": argv}
        write_kernel_spec(folder / "kernels" / "python3", overrides)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("JUPYTER_PATH", str(folder))  # searched before all other places
        yield "python3"


@pytest.fixture(scope="module")
def run_papermill(kernel: str) -> Callable[[Path, Path, dict[str, Any]], Path]:
    """Run a notebook in notebooks/ with other parameters; returns the executed copy."""

    def run(source: Path, target: Path, parameters: dict[str, Any]) -> Path:
        papermill.execute_notebook(
            source,
            target,
            parameters,
            kernel_name=kernel,
            cwd=FOLDER,
            execution_timeout=CELL_SECONDS,
            progress_bar=False,
        )
        return target

    return run


@pytest.fixture(scope="session")
def run_nbval() -> Callable[[Path], Completed]:
    """Run an executed notebook again and compare what both runs printed."""

    def run(executed: Path) -> Completed:
        # nbval runs a notebook where it lies, so what notebooks/ holds has to lie there too
        for path in FOLDER.iterdir():
            if not (link := executed.parent / path.name).exists():
                link.symlink_to(path)
        options = [
            *("--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"),
            f"--nbval-sanitize-with={HERE / 'nbval.cfg'}",
            # neither the settings of this project nor those of whoever started the suite
            *("-c", os.devnull, f"--rootdir={executed.parent}", "-p", "no:cacheprovider"),
            *("--color=no", "--no-header", "-q"),
        ]
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, executed],
            cwd=executed.parent,
            env=environment,
            capture_output=True,
            text=True,
        )

    return run
