"""`astkit notebooks` copies the notebooks, and nothing over existing files."""

from __future__ import annotations

from pathlib import Path

from astkit.cli import main
from astkit.files import shipped
from tests.cli.refusals import refused


def test_the_notebooks_are_copied_into_a_new_folder_only(tmp_path: Path, capsys) -> None:
    assert main(["notebooks", str(tmp_path / "mine")]) == 0
    originals = sorted(shipped("notebooks").glob("*.ipynb"))
    assert f"{len(originals)} notebooks" in capsys.readouterr().out
    for path in originals:
        assert (tmp_path / "mine" / path.name).read_bytes() == path.read_bytes()
    (tmp_path / "mine" / originals[0].name).write_text("mine")
    assert "would be overwritten: name a new folder" in refused(
        capsys, "notebooks", tmp_path / "mine"
    )
    assert (tmp_path / "mine" / originals[0].name).read_text() == "mine"
