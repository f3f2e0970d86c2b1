"""A small notebook that fails on demand, and executions that are played."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from astkit.runs import runner

PARAMETERS = """\
rate = 0.1  # a float
seed = 0  # an integer
names = ["a", "b"]  # a list
mode = "plain"  # a text
root = None  # anything
live: bool = True  # a switch
log = ""  # a file
fails = []  # rate and seed of the run that fails
"""

WORK = """\
if [rate, seed] == fails:
    raise ValueError(f"seed {seed}\\nis unlucky")
"""


def write(path: Path, *cells: str, parameters: str | None = PARAMETERS) -> Path:
    """Write a notebook of a parameters cell, the work above, and ``cells``."""
    language = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": language, "language_info": {"name": "python"}}
    tagged = (
        [] if parameters is None else [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    )
    code = [new_code_cell(source) for source in (cells or (WORK,))]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[*tagged, *code], metadata=metadata), path)
    return path


@pytest.fixture
def toy(tmp_path):
    return write(tmp_path / "toy.ipynb")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def process(monkeypatch):
    """In place of executing: the parameters of each call, and what ``acts`` make of it in turn.

    An act takes the record and the parameters, and returns how the execution ends.
    """
    calls = []

    def play(*acts):
        def execute(source, record, parameters, show):
            calls.append(parameters)
            act = (acts or ("complete",))[min(len(calls), len(acts) or 1) - 1]
            return act(record, parameters) if callable(act) else act

        monkeypatch.setattr(runner, "execute", execute)
        return calls

    return play


def error(message="no\n  luck"):
    """What a failed execution leaves."""
    return {"type": "ValueError", "message": message, "traceback": "", "cell": {"number": 3}}
