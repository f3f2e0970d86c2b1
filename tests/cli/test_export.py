"""`astkit export` and `astkit notebooks`: what their options do, and what they refuse."""

from pathlib import Path

import nbformat
import pytest

from astkit.cli import main
from astkit.cli.export import EXPORT
from astkit.files import shipped
from astkit.runs import runner
from tests.cli.refusals import refused
from tests.runs import sweeping

PARAMETERS = "rate = 0.1  # a share\nname = ''  # a word\nlive = True\nseeds = [0, 1]\nout = ''"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return sweeping.write(tmp_path / "01_small.ipynb", "rate", parameters=PARAMETERS)


def settings(notebook: Path) -> dict[str, object]:
    """What the parameters are once their cell of the export has run."""
    book = nbformat.read(notebook.parent / "out" / notebook.name, 4)
    space: dict[str, object] = {}
    (source,) = (
        cell.source for cell in book.cells if "parameters" in cell.metadata.get("tags", [])
    )
    exec(source, {}, space)
    return space


def test_options_go_into_the_notebook(small: Path, capsys) -> None:
    out, defaults = small.parent / "out", {"rate": 0.1, "name": "", "live": True, "seeds": [0, 1]}
    defaults |= {"out": "run"}
    assert main(["export", str(small), "-o", str(out)]) == 0
    assert settings(small) == defaults
    assert str(out / small.name) in capsys.readouterr().out
    parameters = ["rate=1e-3", "name=null!", "live=false", "seeds=[0]"]
    words = [word for option in parameters for word in ("-p", option)]
    assert main(["export", str(small), "-o", str(out), *words]) == 0
    changed = {"rate": 0.001, "name": "null!", "live": False, "seeds": [0]}
    assert settings(small) == {**defaults, **changed}


def test_what_is_missing_is_said(small: Path, capsys) -> None:
    sweeping.write(small, "open('large.bin')\nopen('../a/b.csv')", parameters=PARAMETERS)
    (small.parent / "large.bin").write_bytes(bytes(1_000_001))
    assert main(["export", str(small), "-o", str(small.parent / "out")]) == 1
    _, missing = capsys.readouterr().out.splitlines()
    assert missing.startswith(f"not taken along: {small.parent / 'large.bin'} (attach it")


def test_a_competition_needs_no_notebook(tmp_path: Path) -> None:
    (example,) = (line for line in EXPORT.splitlines() if "titanic" in line)
    _, *words = example.replace("out/titanic", str(tmp_path)).split()
    assert main(words) == 0
    assert "label = 'Survived'" in (tmp_path / "competition.ipynb").read_text()


def test_wrong_options_are_refused_and_write_nothing(small: Path, capsys) -> None:
    out = small.parent / "out"
    for options, sentence in (
        ([small, "-p", "rat=1"], "01_small.ipynb has no parameter 'rat': choose from"),
        ([small, "-p", "seeds=[0],[1]"], "seeds has 2 values: give one, a list as [0,1]"),
    ):
        assert refused(capsys, "export", *options, "-o", out).startswith(sentence)
    assert not out.exists()


def test_the_notebooks_are_copied_into_a_new_folder_only(tmp_path: Path, capsys) -> None:
    assert main(["notebooks", str(tmp_path / "mine")]) == 0
    originals = sorted(shipped("notebooks").glob("*.ipynb"))
    assert f"{len(originals)} notebooks" in capsys.readouterr().out
    for path in originals:
        assert (tmp_path / "mine" / path.name).read_bytes() == path.read_bytes()
        for value in runner.read_notebook(
            path
        ).defaults.values():  # the results that it reads come along
            if isinstance(value, str) and value.endswith((".json", ".png")):
                assert (tmp_path / "mine" / value).read_bytes()
    (tmp_path / "mine" / originals[0].name).write_text("mine")
    assert "would be overwritten: name a new folder" in refused(
        capsys, "notebooks", tmp_path / "mine"
    )
    assert (tmp_path / "mine" / originals[0].name).read_text() == "mine"
