"""The two ways a notebook is run here, papermill and nbval, and the notebooks they are run on."""

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
            command = [sys.executable, str(HERE / "forks.py")]
            forks = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(forks.terminate)
            address = forks.stdout.readline().strip()
            overrides = {"argv": [*command, address, "-f", "{connection_file}"]}
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
