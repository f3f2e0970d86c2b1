"""The exported notebook: its order, its bytes, and cells that write what they hold."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import nbformat
import papermill
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from astkit.export import bundle as bundles
from astkit.export import notebook
from astkit.export.bundle import Bundle, bundle
from astkit.export.closure import ROOT


@pytest.fixture
def small(tmp_path: Path) -> Path:
    shown = new_output("stream", text="of an earlier run")
    written = [
        new_markdown_cell("# Does it?"),
        new_code_cell("rate = 0.1  # a share", metadata={"tags": ["parameters"]}),
        new_code_cell("from astkit import files", outputs=[shown], execution_count=3),
        new_code_cell("1", metadata={"tags": ["nbval-ignore-output"], "papermill": {"x": 1}}),
        new_code_cell("1"),
    ]
    nbformat.write(new_notebook(cells=written), tmp_path / "small.ipynb")
    return tmp_path / "small.ipynb"


@pytest.fixture
def made(small: Path) -> Bundle:
    return bundle(small, {"rate": 0.9})


def sources(book: NotebookNode, kind: str = "code") -> list[str]:
    return [cell.source for cell in book.cells if cell.cell_type == kind]


def test_the_order_is_settings_package_start_notebook(made: Bundle) -> None:
    book = notebook.build(made)
    heads = [source.splitlines()[0] for source in sources(book, "markdown")]
    assert heads == ["# Does it?", "## Settings"]
    values, package, start, *body = sources(book)
    assert values.startswith("rate = 0.9  # a share\ntime_budget_h = 0")
    assert package.startswith(f"# {made.stamp}\nimport base64")
    assert start.splitlines()[1] == f'use(Path("astkit"), "{made.source}")'
    folded = [cell.metadata["jupyter"] for cell in book.cells if "jupyter" in cell.metadata]
    assert folded == [{"source_hidden": True, "outputs_hidden": True}, {"source_hidden": True}]
    assert body == ["from astkit import files", "1", "1"]


def test_readable_has_a_cell_for_each_module(made: Bundle) -> None:
    code = sources(notebook.build(made, readable=True))
    written = [source.split()[1] for source in code if source.startswith("%%writefile")]
    assert written == list(made.modules)
    assert "astkit/files.py" in written
    assert "astkit/gating/gate.py" not in written
    assert "unpack(" not in code[1].partition("\n\n\nmake_folder")[2]


def test_neither_outputs_nor_traces_of_a_run_are_left(made: Bundle) -> None:
    book = notebook.build(made)
    assert "of an earlier run" not in notebook.text(made)
    assert all(c.execution_count is None for c in book.cells if c.cell_type == "code")
    assert book.cells[-2].metadata == {"tags": ["nbval-ignore-output"]}
    assert len({cell.id for cell in book.cells}) == len(book.cells)


def test_papermill_finds_the_parameters_and_replaces_the_values(
    made: Bundle, tmp_path: Path
) -> None:
    path = tmp_path / "exported.ipynb"
    path.write_text(notebook.text(made))
    assert set(papermill.inspect_notebook(path)) == {"rate", "time_budget_h"}
    loaded = papermill.iorw.load_notebook_node(str(path))
    book = papermill.parameterize.parameterize_notebook(loaded, {"rate": 0.3})
    space: dict[str, object] = {}
    exec("\n".join(sources(book)[:2]), space)
    assert space["rate"] == 0.3


def test_the_same_source_gives_the_same_bytes(small: Path, made: Bundle) -> None:
    again = bundle(small, made.values)
    assert notebook.text(again) == notebook.text(made)
    moved = small.parent / "elsewhere"
    moved.mkdir()
    copy = small.rename(moved / small.name)
    assert notebook.text(bundle(copy, made.values)) == notebook.text(made)
    other = bundle(copy)
    assert notebook.text(other) != notebook.text(made)


def test_a_commit_is_that_of_the_exported_files(tmp_path: Path, monkeypatch) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *who, *arguments]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return result.stdout.strip()

    monkeypatch.setattr(bundles, "ROOT", tmp_path)
    module, other = tmp_path / "module.py", tmp_path / "other.txt"
    module.write_text("1\n")
    assert bundles._commit(["module.py"]) is None
    git("init", "-q")
    assert bundles._commit(["module.py"]) is None  # not committed
    git("add", "module.py")
    git("commit", "-qm", "module")
    first = git("rev-parse", "HEAD")
    assert bundles._commit(["module.py"]) == first
    other.write_text("2\n")
    git("add", "other.txt")
    git("commit", "-qm", "other")
    assert bundles._commit(["module.py"]) == first  # the export is what it was
    module.write_text("3\n")
    assert bundles._commit(["module.py"]) is None


def test_the_commit_is_in_the_stamp(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "_commit", lambda modules: "a" * 40)
    named = bundle(small)
    assert named.stamp.endswith("commit aaaaaaaa)")
    assert named.stamp in notebook.text(named)
    assert json.loads(notebook.text(named))["metadata"]["astkit"]["commit"] == "a" * 40


def test_a_parameter_that_the_export_would_replace_is_refused(small: Path) -> None:
    book = nbformat.read(small, 4)
    defined = set()
    for node in ast.parse(f"{bundles.VERIFY}\n{bundles.START}").body:
        defined |= {each.name for each in getattr(node, "names", [node]) if hasattr(each, "name")}
    assert defined == bundles.TAKEN
    for name in sorted(defined):
        book.cells[1].source = f"{name} = 1  # taken"
        nbformat.write(book, small)
        with pytest.raises(ValueError, match=f"the parameter '{name}' has a name"):
            bundle(small)


def written_by(cell: str) -> str:
    """What IPython passes to %%writefile for ``cell``."""
    caught: list[tuple[str, str, str]] = []

    class Shell:
        def run_cell_magic(self, *arguments: str) -> None:
            caught.append(arguments)

    exec(TransformerManager().transform_cell(cell), {"get_ipython": Shell})
    ((magic, line, body),) = caught
    assert (magic, line) == ("writefile", "astkit/x.py")
    return body


def test_every_module_is_written_as_it_is() -> None:
    # IPython removes text that looks like a prompt, and carriage returns
    for path in sorted((ROOT / "astkit").rglob("*.py")):
        text = path.read_text()
        assert written_by(notebook._module("astkit/x.py", text).source) == text, path


def test_an_export_never_overwrites_a_package(made: Bundle, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = sources(notebook.build(made))[1]
    (tmp_path / "astkit").mkdir()
    (tmp_path / "astkit" / "mine.py").touch()
    with pytest.raises(RuntimeError, match="astkit/ exists and would"):
        exec(package, {})
    assert (tmp_path / "astkit" / "mine.py").exists()
    (tmp_path / "astkit" / "mine.py").rename(tmp_path / "mine.py")
    (tmp_path / "astkit").rmdir()
    exec(package, {})
    for name, text in made.modules.items():
        assert (tmp_path / name).read_text() == text
    (tmp_path / "astkit" / "stale.py").touch()
    exec(package, {})  # its own folder of an earlier run
    assert not (tmp_path / "astkit" / "stale.py").exists()


def test_files_that_parameters_name_are_taken_along(
    small: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "table.bin").write_bytes(b'\xff\x00{}"')
    book = nbformat.read(small, 4)
    book.cells[1].source = "results = 'found/table.bin'\nword = 'found/none.bin'"
    book.cells[1].source += f"\nempty = ''\ntext = '{'no file ' * 100}'"
    nbformat.write(book, small)
    made = bundle(small)
    assert made.values == {"results": "table.bin"}
    for readable in (False, True):
        folder = tmp_path / str(readable)
        folder.mkdir()
        monkeypatch.chdir(folder)
        exec(sources(notebook.build(made, readable))[1], {})
        assert (folder / "table.bin").read_bytes() == b'\xff\x00{}"'
    (tmp_path / "table.bin").touch()
    book.cells[1].source = "results = 'found/table.bin'\nsame = './found/table.bin'"
    nbformat.write(book, small)
    assert list(bundle(small).files) == ["table.bin"]
    with pytest.raises(ValueError, match=r"same names .*table.bin, but another file called table"):
        bundle(small, {"same": "table.bin"})
    (tmp_path / "found" / "table.bin").write_bytes(bytes(1_000_001))
    with pytest.raises(ValueError, match=r"results names .*table.bin, which has more than 1 MB"):
        bundle(small)


@pytest.mark.full
def test_a_changed_module_cell_is_refused(made: Bundle, begin_in, tmp_path: Path) -> None:
    book = notebook.build(made, readable=True)
    (cell,) = (c for c in book.cells if c.source.startswith("%%writefile astkit/export/start.py"))
    cell.source += "\nopen('ran', 'w')"
    nbformat.write(book, tmp_path / "changed.ipynb")
    with pytest.raises(AssertionError, match=r"RuntimeError: the modules in astkit are not those"):
        begin_in("bare", tmp_path / "changed.ipynb", tmp_path / "empty", {})()
    ran = nbformat.read(tmp_path / "empty" / "ran.ipynb", 4)
    assert not (tmp_path / "empty" / "ran").exists()
    assert not ran.cells[-1].outputs
