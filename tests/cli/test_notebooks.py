"""`astkit notebooks` copies the notebooks, and nothing over existing files."""

from __future__ import annotations

from pathlib import Path

import pytest

from astkit.cli import main
from astkit.files import shipped


def test_the_notebooks_are_copied_into_a_new_folder(tmp_path: Path, capsys) -> None:
    assert main(["notebooks", str(tmp_path / "mine")]) == 0
    originals = sorted(shipped("notebooks").glob("*.ipynb"))
    assert f"{len(originals)} notebooks" in capsys.readouterr().out
    for path in originals:
        assert (tmp_path / "mine" / path.name).read_bytes() == path.read_bytes()


def test_an_existing_folder_is_left_alone(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.ipynb").write_text("mine")
    with pytest.raises(SystemExit) as caught:
        main(["notebooks", str(tmp_path)])
    assert caught.value.code == 2
    assert "would be overwritten: name a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"]
