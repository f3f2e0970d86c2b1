"""A notebook and the package as one file, for Kaggle: no installation, no internet.

The package is a compressed archive in one folded cell, after the notebook's title.
"""

from __future__ import annotations

import ast
import base64
import gzip
import hashlib
import inspect
import io
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from astkit.files import SHARE, shipped, write_atomic

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from astkit.runs.runner import Notebook

COMPETITION = Path(__file__).with_name("competition.ipynb")
"""Template of a competition: train.csv to submission.csv."""
LOWEST_TORCH = (2, 9)  # as in pyproject.toml
OPTIONAL = ("systems", "integrations")  # parts that no other imports
LARGEST = 1e6  # bytes of a file that is taken along, and of a notebook on Kaggle
TEXTS = ("astkit.datasets.pairs", "astkit.datasets.texts", "astkit.systems.lattice")
DATA = {"bikes.csv.gz": ("bikes",), "docs_pairs.jsonl.gz": TEXTS, "docs_pairs.LICENSES.txt": TEXTS}
"""Files of the folder data, and what code that opens them imports, or gives `load` in quotes."""

_PACKAGE = Path(__file__).parents[1]
_FOLDED = {"jupyter": {"source_hidden": True}, "_kg_hide-input": True}  # JupyterLab and Kaggle
_CHARACTERS = 5000  # of a line of the archive
_STRING = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"")
_WORD = re.compile(r"[^\s'\"=;,()<>|&]+")
_KNOWN = re.compile(r"^[^*]|\.\w+$")  # of a pattern: its beginning, or the kind of file
_MADE = re.compile(r"%[-.\d]*[a-z]|\{[^{}]*\}")  # a part of a text that code puts in
# %run a.py, x = !python a.py, and their next lines after a backslash; help?
_MAGIC = re.compile(r"^([ \t]*(?:[\w, ]+=\s*)?)[%!](?:.*\\\n)*.*|^.*\?$", re.MULTILINE)
_SETTINGS = """## Settings

Kaggle passes no parameters: change values in the next cell. The folded cell above holds astkit, so
that neither an installation nor the internet is required."""
_LIMITED = """ `%env ASTKIT_TIME_BUDGET_H=8.5` in a
cell before ends training after 8.5 hours, before the session ends."""
_CELL = """\
# {package}, as a compressed archive, which is all that the cells need.
# {data}
# The archive is compared with its SHA-256 before anything in it is imported.
{unpack}

unpack(
    "{digest}",
{lines}
)
from astkit.runs import export

export.begin()"""


def write_notebook(
    notebook: Notebook, parameters: Mapping[str, Any], folder: str | os.PathLike[str]
) -> Path:
    """Write what `build_notebook` returns into ``folder``, which is created if missing."""
    import nbformat

    text = nbformat.writes(build_notebook(notebook, parameters)) + "\n"
    return write_atomic(Path(folder) / notebook.path.name, text)


def build_notebook(notebook: Notebook, parameters: Mapping[str, Any]) -> NotebookNode:
    """The exported notebook: the package below its title, and its cells without outputs.

    Values are set at the end of the parameters cell, below the defaults with their comments. Files
    that parameters name, relative to the notebook, become part of the archive, and so do its
    `Needs`. Results go to the folder ``run`` if the notebook has a parameter ``out``. Equal files
    and values give equal bytes.
    Raises ``ValueError`` for unknown parameters, and files of more than `LARGEST` bytes.
    """
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    from astkit.runs.runner import PYTHON, load_notebook

    values = {name: notebook.check(name, value) for name, value in parameters.items()}
    needs = find_needs(notebook, values)
    if notebook.defaults.get("out") == "":
        values = {"out": "run", **values}
    cells = load_notebook(notebook.path).cells
    first = next((i for i, cell in enumerate(cells) if cell.cell_type == "code"), len(cells))
    tagged = [i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])]
    place = tagged[0] if tagged else first
    source = cells[place].source if tagged else ""
    named = {}
    for name, value in {**notebook.defaults, **values}.items():
        if isinstance(value, str) and os.path.isfile(path := notebook.path.parent / value):
            if path.stat().st_size > LARGEST:
                large = f"{name} names {path}, which has more than {LARGEST / 1e6:g} MB"
                raise ValueError(f"{large}: upload it to Kaggle as a dataset, and pass that path")
            named[name] = path
    files = {f"files/{name}/{path.name}": path for name, path in named.items()}
    files |= {f"beside/{name}": path for name, path in needs.files.items()}
    files |= {f"data/{name}": shipped(f"data/{name}") for name in needs.data}
    text = archive(files, needs.parts)
    digest = hashlib.sha256(text.encode()).hexdigest()
    values |= {n: f"astkit-{digest[:8]}/files/{n}/{path.name}" for n, path in named.items()}
    if values:
        lines = (f"{name} = {value!r}" for name, value in values.items())
        source = "\n".join([source, "", "# set by astkit export", *lines])
    limited = any("TimeIsUp" in cell.source for cell in cells)  # others would fail at the limit
    exported = [
        *map(_strip, cells[:first]),
        new_code_cell(_package_cell(text, digest, needs.data), metadata=_FOLDED),
        *map(_strip, cells[first:place]),
        new_markdown_cell(_SETTINGS + _LIMITED if limited else _SETTINGS),
        new_code_cell(source, metadata={"tags": ["parameters"]}),
        *map(_strip, cells[place + 1 if tagged else place :]),
    ]
    for number, cell in enumerate(exported):  # random ids would change the file's bytes
        cell.id = f"cell-{number}"
    book = new_notebook(cells=exported, metadata=PYTHON)
    nbformat.validate(book)
    return book


def archive(files: Mapping[str, Path], parts: Iterable[str] = OPTIONAL) -> str:
    """The package with these `OPTIONAL` parts, and ``files`` (by name): tar.bz2 in base 85."""
    contents = dict(files)
    for path in _PACKAGE.rglob("*.*"):
        name = f"astkit/{path.relative_to(_PACKAGE).as_posix()}"
        left_out = "/." in name or "__pycache__" in name or path.is_relative_to(SHARE)
        left_out |= name.split("/")[1] in {*OPTIONAL} - {*parts} or path == COMPETITION
        if path.is_file() and not left_out:
            contents[name] = path
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:bz2") as tar:
        for name, path in sorted(contents.items()):
            data = path.read_bytes()
            if name.startswith("data/") and name.endswith(".gz"):  # smaller if packed once
                name, data = name.removesuffix(".gz"), gzip.decompress(data)
            entry = tarfile.TarInfo(name)  # without dates and owners
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return base64.b85encode(content.getvalue()).decode()


def unpack(digest: str, *lines: str) -> None:
    """Make the archive in ``lines`` importable; its code is copied into exported notebooks.

    Files from beside the notebook are put into the current folder where they are missing. Raises
    ``RuntimeError`` if its SHA-256 is not ``digest``, or if astkit was imported before.
    """
    import base64
    import hashlib
    import io
    import os
    import shutil
    import sys
    import tarfile

    text = "".join(lines).encode()
    if hashlib.sha256(text).hexdigest() != digest:
        raise RuntimeError("the archive in this cell is not the one exported: export it again")
    folder = os.path.abspath(f"astkit-{digest[:8]}")
    with tarfile.open(fileobj=io.BytesIO(base64.b85decode(text))) as tar:
        # below Python 3.11.4 there is no filter, and extractall has no argument for it
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)
    for place, _, names in os.walk(os.path.join(folder, "beside")):
        target = os.path.relpath(place, os.path.join(folder, "beside"))
        os.makedirs(target, exist_ok=True)
        for name in names:
            if not os.path.exists(os.path.join(target, name)):
                shutil.copy(os.path.join(place, name), target)
    sys.path.insert(0, folder)
    import astkit

    if not str(astkit.__file__).startswith(folder):
        raise RuntimeError("another astkit was imported before: restart, and run from the top")


def begin() -> None:
    """Print torch's version and the device; raises ``RuntimeError`` for a torch that is too old."""
    import torch

    version = torch.__version__.split("+")[0].split(".")
    if tuple(map(int, version[:2])) < LOWEST_TORCH:
        needed = f"{'.'.join(map(str, LOWEST_TORCH))} or newer: choose the latest environment"
        raise RuntimeError(f"torch is {torch.__version__}, and astkit needs {needed}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    print(f"torch {torch.__version__}; {device}")


def _package_cell(text: str, digest: str, data: list[str]) -> str:
    from astkit.stamp import stamp

    about = stamp()
    changes = " with changes" if about["dirty"] else ""
    commit = f" at commit {str(about['commit'])[:8]}{changes}" if about["commit"] else ""
    rows = (text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS))
    return _CELL.format(
        package=f"astkit {about['astkit']}{commit}",
        data=f"It carries the data {', '.join(data)}." if data else "It carries no data.",
        unpack=inspect.getsource(unpack),
        digest=digest,
        lines="\n".join(f'    "{row}",' for row in rows),
    )


class Needs(NamedTuple):
    """What the code of a notebook below its parameters names, imports or runs, and its values name.

    And what these name in turn.

    Attributes:
        files: those that an export takes along, by their path from the notebook's folder, in which
            they are; of up to `LARGEST` bytes. They are unpacked into the current folder.
        lacking: the others, and folders of which nothing is taken.
        data: of `DATA`.
        parts: `OPTIONAL` ones of the package.
    """

    files: dict[str, Path]
    lacking: list[Path]
    data: list[str]
    parts: list[str]


def find_needs(notebook: Notebook, parameters: Mapping[str, Any]) -> Needs:
    """What a notebook needs with these ``parameters``."""
    from astkit.runs.runner import load_notebook

    folder, values = notebook.path.parent, {**notebook.defaults, **parameters, "out": ""}
    named, found, places = _words(repr([*values.values()])), set[Path](), {folder}
    cells = load_notebook(notebook.path).cells
    own = (cell for cell in cells if "parameters" not in cell.metadata.get("tags", []))
    sources = [cell.source for cell in own if cell.cell_type == "code"]
    new = {notebook.path}
    while new:  # what is found names more
        named = named.union(*map(_words, sources))
        meant = (_meant(each, named, folder in (each, *each.parents)) for each in places)
        new, sources = set[Path]().union(*meant) - found - {notebook.path}, []
        found |= new
        for path in sorted(new):
            places.add(path if path.is_dir() else path.parent)
            if path.suffix in (".py", ".sh") and path.is_file():
                sources.append(path.read_text("utf-8", errors="replace"))
            elif path.suffix == ".ipynb":
                cells = load_notebook(path).cells
                sources += [cell.source for cell in cells if cell.cell_type == "code"]
    given = {folder / value for value in values.values() if isinstance(value, str)}
    files, lacking = {}, []
    for path in sorted(path for path in found - given if path.is_file()):
        if path.resolve().is_relative_to(folder) and path.stat().st_size <= LARGEST:
            files[path.resolve().relative_to(folder).as_posix()] = path
        else:
            lacking.append(path)
    known = {*folder.parents, folder}.union(*(path.parents for path in found if path.is_file()))
    lacking += sorted(path for path in found - known if path.is_dir())
    data = [name for name, words in DATA.items() if any(_names(named, word) for word in words)]
    parts = [part for part in OPTIONAL if _names(named, f"astkit.{part}")]
    return Needs(files, lacking, data, parts)


def _names(named: set[str], word: str) -> bool:
    """Whether ``word``, or something of the module ``word``, is ``named``."""
    return any(f"{each}.".startswith(f"{word}.") for each in named)


def _words(source: str) -> set[str]:
    """Strings in code, and what it imports, as "module.name"; of magics and shells all words.

    What code puts into a string is "*".
    """
    try:
        tree, shell = ast.parse(_MAGIC.sub(r"\1None", source)), _MAGIC.finditer(source)
    except SyntaxError:  # such as a cell of a shell
        tree, shell = ast.Module([], []), re.finditer(r"(?s).+", source)
    words, keys = set[str](), set[int]()
    for part in shell:
        words = words.union(*_STRING.findall(part[0]))
        words |= {each.removeprefix("!") for each in _WORD.findall(part[0])}
    for node in ast.walk(tree):  # a container comes before its keys
        match node:
            case ast.Import():
                words |= {each.name for each in node.names}
            case ast.ImportFrom(module=module, level=level):
                inside = "." * level + f"{module}." * bool(module)
                words |= {inside + each.name for each in node.names}
            case ast.Dict():
                keys |= set(map(id, node.keys))
            case ast.Subscript():
                keys.add(id(node.slice))
            case ast.JoinedStr(values=values):
                parts = (each.value if isinstance(each, ast.Constant) else "*" for each in values)
                words.add("".join(map(str, parts)))
            case ast.Constant(value=str(text)):
                words |= {text, _MADE.sub("*", text)} if id(node) not in keys else set()
                # a command, perhaps; names of files
                words |= {each for each in _WORD.findall(text) if "." in each[1:-1]}
    return words


def _meant(place: Path, named: Iterable[str], inside: bool) -> set[Path]:
    """Modules in ``place`` that are ``named``, with their packages, and ``inside`` any files.

    And folders, unless they have an absolute path.
    """
    meant = set[str]()
    for name in named:
        at = os.path.join(place, name)
        found = [at, *(glob(at, recursive=True) if _KNOWN.search(name) else [])] if inside else []
        meant |= {each for each in found if not (os.path.isabs(name) and os.path.isdir(each))}
        parts = name.lstrip(".").removesuffix(".py").split(".")
        above = [".."] * (len(name) - len(name.lstrip(".")) - 1)  # of a relative import
        if parts[0] == "astkit" or parts[0][:1] in ("", "*", "/"):  # the archive has it
            continue
        for end in range(len(parts)):
            module = os.path.join(place, *above, *parts[: end + 1])
            meant |= {*glob(f"{module}.py"), *glob(f"{module}.*.so")}
            if os.path.isfile(os.path.join(module, "__init__.py")):
                meant |= {*map(str, Path(module).rglob("*.py"))}
    return {Path(os.path.abspath(each)) for each in meant if os.path.exists(each)}


def _strip(cell: NotebookNode) -> NotebookNode:
    """The cell without outputs and without metadata except tags."""
    tags = cell.metadata.get("tags")
    cell.metadata = {"tags": tags} if tags else {}
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
    return cell
