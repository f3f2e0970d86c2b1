"""Cells as plain code: what is shown, what is awaited, and how sources are kept."""

from __future__ import annotations

import ast
import asyncio

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from astkit.export import script
from astkit.export.bundle import bundle
from astkit.export.headless import Stage
from astkit.export.script import _as_script, _literal


@pytest.mark.parametrize(
    ("source", "script"),
    [
        ("x", "STAGE.show(x)"),
        ("x = 1\nx  # why", "x = 1\nSTAGE.show(x)  # why"),
        ("(x\n + y)", "STAGE.show((x\n + y))"),
        ("'ä'; ü", "'ä'; STAGE.show(ü)"),
        ("x;", "x;"),
        ("print(x)", "print(x)"),
        ("display(x)", "display(x)"),
        ("x = 1", "x = 1"),
        ("", ""),
        ("# only", "# only"),
        ("x = await f(y)", "x = STAGE.wait(lambda: f(y))"),
        ("await (f)", "STAGE.show(STAGE.wait(lambda: (f)))"),
        ("ä = 'ä'; await f()\nx = 1", "ä = 'ä'; STAGE.wait(lambda: f())\nx = 1"),
        ("if x:\n    await f()", "if x:\n    STAGE.wait(lambda: f())"),
        ("async def f():\n    await g()", "async def f():\n    await g()"),
    ],
)
def test_a_cell_becomes_plain_code(source: str, script: str) -> None:
    assert _as_script(source, "cell") == script
    ast.parse(script)


@pytest.mark.parametrize(
    "source",
    ["await f(await g())", "async with x: ...", "async for x in y: ...", "[x async for x in y]"],
)
def test_other_asynchronous_code_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"^code cell 4 "):
        _as_script(source, "code cell 4")


@given(st.text(st.sampled_from("'\"\\\na{}\t%r")))
def test_a_source_is_kept_as_it_is(source: str) -> None:
    assert ast.literal_eval(_literal(source)) == source


def test_a_source_is_kept_readable_where_it_can_be() -> None:
    assert _literal('"""A."""\nx = "\\n"\n') == 'r\'\'\'"""A."""\nx = "\\n"\n\'\'\''


class Drawn:
    def _repr_png_(self) -> bytes:
        return b"png"


class Table:
    def to_string(self) -> str:
        return "a b"


class Text:
    def _repr_markdown_(self) -> str:
        return "**a**"


def test_the_stage_shows_text_and_saves_pictures(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    stage = Stage("01_name")
    stage.show(Table(), Text(), None, 5, Drawn(), display_id=True)
    stage.show(Drawn())
    said = capsys.readouterr().out.splitlines()
    assert said == ["a b", "**a**", "5", "picture: 01_name_1.png", "picture: 01_name_2.png"]
    assert (tmp_path / "01_name_2.png").read_bytes() == b"png"


def test_the_stage_waits_for_all_kinds_of_awaitables_on_one_loop() -> None:
    stage = Stage("x")
    loops = []

    async def later(value: int) -> int:
        loops.append(asyncio.get_running_loop())
        return value

    task = stage.wait(lambda: later(1))
    also = stage.wait(lambda: asyncio.create_task(later(2)))
    assert (task, also) == (1, 2)
    assert loops[0] is loops[1]


def test_neither_a_file_name_nor_text_in_markdown_becomes_code(tmp_path) -> None:
    name = 'a"""\nraise SystemExit("name ran")\n"""'
    text = "one\rraise SystemExit('text ran')\x0craise SystemExit('page ran')"
    cells = [new_code_cell("x = 1"), new_markdown_cell(text)]
    path = tmp_path / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    tree = ast.parse(script.text(bundle(path, as_script=True)))
    assert name in ast.get_docstring(tree, clean=False)
    assert "SystemExit" not in "".join(
        ast.unparse(node) for node in tree.body[1:3] + tree.body[-3:]
    )
