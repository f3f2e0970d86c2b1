"""A seeded generator of hostile files, and the judge of what the kit's readers make of them.

Each kind of file has a valid example, which the kit itself wrote, and a reader. An attack changes
one file of a copy of the example: bytes, the values in its JSON, its header, or what lies in its
place (a link, a pipe, a folder). The reader must succeed or refuse with one sentence that names the
file, in bounded time and memory, and change nothing outside the folder it was given.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astkit.profiling import peak_memory

Change = Callable[[random.Random, bytes], bytes]

MOST_MEMORY = 1 << 30
"""Bytes that a reader may take for one file, beyond what the process held before."""
MOST_SECONDS = 60
LONGEST = 1500  # characters of a refusal


@dataclass(frozen=True)
class Kind:
    """A kind of file. ``example`` writes a valid one into a folder and returns the file that is
    attacked; ``read`` reads the folder as a user of the kit would; ``changes`` are of its own."""

    example: Callable[[Path], Path]
    read: Callable[[Path, Path], object]
    changes: tuple[Change, ...] = ()
    renamed: Callable[[Path, bytes], Path] = lambda path, content: path


# --- changes of bytes ------------------------------------------------------------------------


def truncated(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) or 1)]


def flipped(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 8, 64)) if content else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwritten(rng: random.Random, content: bytes) -> bytes:
    start, length = rng.randrange(len(content) or 1), rng.choice((1, 4, 8, 100))
    filling = rng.choice((b"\0", b"\xff", b"\x7f", rng.randbytes(1))) * length
    return content[:start] + filling + content[start + length :]


def inserted(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.randbytes(rng.choice((1, 2, 100))) + content[start:]


def replaced(rng: random.Random, content: bytes) -> bytes:
    junk = (
        b"",
        b"\0" * 4096,
        b"\n",
        b"null",
        b"[]",
        b"\xef\xbb\xbf{}",
        b"PK\x03\x04",
        b"\x80\x04.",
    )
    return rng.choice((*junk, b"[" * 100_000, content * 2, content[::-1], rng.randbytes(2000)))


BYTES: tuple[Change, ...] = (truncated, flipped, overwritten, inserted, replaced)


# --- changes of JSON -------------------------------------------------------------------------

_SCALARS: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, -(2**70), 0.5, 1e308, float("nan"), float("inf"), "", "x",
    "x" * 5000, "\x1b]0;title\x07", "<script>", "../../outside", "$x_{$", "\ud800", "line\nline",
)  # fmt: skip


def _value(rng: random.Random) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(([], {}, [[]], [None], {"$": "tensor"}, {"": 1}, {"step": {}}, [1, "a"]))
    return rng.choice(_SCALARS)


def tangled(rng: random.Random, tree: Any) -> Any:
    """``tree`` with some of its parts replaced, taken out, doubled or renamed."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        places: list[tuple[Any, Any]] = []
        _collect(tree, places)
        if not places:
            return _value(rng)
        parent, key = rng.choice(places)
        action = rng.randrange(6)
        if action == 0:
            del parent[key]
        elif action == 1 and isinstance(parent, list):
            parent.insert(key, parent[key])
        elif action == 1:
            parent[rng.choice(("", "x", "step", "name"))] = parent.pop(key)
        else:
            parent[key] = _value(rng)
    return tree


def _collect(tree: Any, places: list[tuple[Any, Any]]) -> None:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, part in list(pairs):
        places.append((tree, key))
        if isinstance(part, dict | list):
            _collect(part, places)


def reshaped(rng: random.Random, content: bytes) -> bytes:
    """Valid JSON of the wrong shape."""
    return json.dumps(tangled(rng, json.loads(content))).encode()


def reshaped_line(rng: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    lines[place] = reshaped(rng, lines[place]) + b"\n"
    return b"".join(lines)


# --- run folders, comparisons, metrics, notebooks --------------------------------------------


def _run_folder(folder: Path) -> Path:
    from astkit.runs.record import Record

    rows = [
        {"arm": arm, "seed": 0, "test_accuracy": 0.5, "flops": 1e9} for arm in ("dense", "gate")
    ]
    curves = [{"arm": "dense", "seed": 0, "epoch": e, "val_loss": 1.0} for e in range(2)]
    for seed in (0, 1):
        record = Record.create(folder, "toy", {"epochs": 1 + seed, "seed": seed}, seed)
        record.finish(rows, curves, wall_seconds=1.0)
    record.write("error.json", {"type": "ValueError", "message": "no"})
    return folder


def _one_of_a_run(folder: Path) -> Path:
    _run_folder(folder)
    paths = sorted(path for path in folder.rglob("*.json") if path.is_file())
    return random.Random(str(folder)).choice(paths)


def _report(folder: Path, path: Path) -> None:
    from astkit.runs import tables

    found = tables.collect(folder)
    if len(found.rows):
        tables.table(found)


def _of(folder: Path) -> random.Random:
    """Random numbers that depend on the sizes of the files in ``folder`` alone."""
    return random.Random(str(sorted(path.lstat().st_size for path in folder.rglob("*"))))


def _comparison(folder: Path) -> Path:
    entry = {"policy": "dense", "seed": 0, "value": 0.5, "flops": 1.0, "seconds": 1.0}
    entry |= {"curve": [[1.0, 1.0, 0.5]], "visits": "dense.safetensors"}
    content = {"entries": [entry], "metric": "accuracy", "higher": True, "settings": {"model": "x"}}
    return _written(folder / "comparison.json", json.dumps(content).encode())


def _load_comparison(folder: Path, path: Path) -> None:
    from astkit.runs.comparison import Comparison

    Comparison.load(path)


def _metrics(folder: Path) -> Path:
    lines = [{"step": step, "phase": "train", "loss": 1.0, "rate": 0.5} for step in range(1, 6)]
    lines.append({"step": 5, "phase": "epoch", "epoch": 1, "val_loss": None})
    return _written(
        folder / "metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    )


def _read_metrics(folder: Path, path: Path) -> None:
    from astkit.trainers import MetricsFile

    file = MetricsFile(path)
    file.log(9, phase="train", loss=1.0)
    file.close()
    file.records()
    file.load_state_dict({"lines": 2})


def _pairs(folder: Path) -> Path:
    lines = [{"source": f"a text of {n} words", "target": "an answer"} for n in range(4)]
    text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    return _written(folder / "pairs.jsonl.gz", gzip.compress(text))


def _read_pairs(folder: Path, path: Path) -> None:
    from astkit.lattice import pairs

    pairs.read_pairs(path)


def reshaped_pair(rng: random.Random, content: bytes) -> bytes:
    return gzip.compress(rng.choice(BYTES + (reshaped_line,) * 4)(rng, gzip.decompress(content)))


def _notebook(folder: Path) -> Path:
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    cells = [
        new_markdown_cell("# A title"),
        new_code_cell("rate = 0.1  # a share\nseeds = [0]", metadata={"tags": ["parameters"]}),
        new_code_cell("print(rate)"),
    ]
    text = nbformat.writes(new_notebook(cells=cells))
    return _written(folder / "toy.ipynb", text.encode())


def _read_notebook(folder: Path, path: Path) -> None:
    from astkit.export import cells
    from astkit.runs import parameters

    parameters.read(path)
    cells.open_notebook(path)


# --- checkpoints -----------------------------------------------------------------------------


def _trainer(folder: Path, resume: bool) -> Any:
    import torch
    from torch import nn

    from astkit import Budget, Checkpoints, Gate, Trainer
    from astkit.datasets import Images, Loader

    pixels = torch.arange(8 * 16, dtype=torch.uint8).reshape(8, 1, 4, 4)
    data = Images(pixels, torch.arange(8) % 2, ("a", "b"), "toy")
    torch.manual_seed(0)
    return Trainer(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
        Loader(data, 4),
        budget=Budget(epochs=2),
        policy=Gate(0.5),
        checkpoints=Checkpoints(folder, keep=1),
        resume=resume,
    )


def _checkpoint(folder: Path) -> Path:
    from astkit.trainers.checkpoint import listed

    trainer = _trainer(folder, resume=False)
    steps = trainer.steps()
    next(steps)
    steps.close()  # leaves a checkpoint
    trainer.checkpoints.writer.flush()
    return listed(folder)[0]


def _resume(folder: Path, path: Path) -> None:
    from astkit.trainers.checkpoint import newest

    newest(folder)
    trainer = _trainer(folder, resume=True)
    next(trainer.steps(), None)
    trainer.checkpoints.writer.flush()


def _header(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _joined(header: Any, tensors: bytes, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + tensors


def other_state(rng: random.Random, content: bytes) -> bytes:
    """Another training state in a sound file."""
    header, tensors = _header(content)
    state = json.loads(header["__metadata__"]["astkit"])
    header["__metadata__"]["astkit"] = json.dumps(tangled(rng, state))
    return _joined(header, tensors)


def other_header(rng: random.Random, content: bytes) -> bytes:
    header, tensors = _header(content)
    return _joined(tangled(rng, header), tensors)


def huge_header(rng: random.Random, content: bytes) -> bytes:
    header, tensors = _header(content)
    return _joined(header, tensors, rng.choice((2**20, 2**40, 2**63, 2**64 - 1)))


def compressed(rng: random.Random, content: bytes) -> bytes:
    """What a name that ends in .gz promises, or a bomb."""
    return gzip.compress(rng.choice((content, content[:50], b"\0" * (100 << 20))), 1)


def bomb(rng: random.Random, content: bytes) -> bytes:
    """Two megabytes that expand to two gigabytes."""
    return gzip.compress(b" " * (1 << 26), 1) * 32


def _digested(path: Path, content: bytes) -> Path:
    """The name under which a checkpoint of this ``content`` passes for whole."""
    digest = hashlib.sha256(content).hexdigest()[:16]
    stem = path.name.partition(".")[0].rpartition("_")[0]
    ending = ".gz" if content[:2] == b"\x1f\x8b" else ""
    return path.with_name(f"{stem}_{digest}.safetensors{ending}")


# --- images, parquet, memory-mapped arrays ---------------------------------------------------


def _images(folder: Path) -> Path:
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8), (number * 90, 20, 30)).save(folder / name / f"{number}.png")
    if random.Random(str(folder)).random() < 0.3:
        Image.new("RGB", (8, 8)).save(folder / "dog" / "2.jpg")
        return folder / "dog" / "2.jpg"
    return folder / "dog" / "1.png"


def _read_images(folder: Path, path: Path) -> None:
    from astkit.datasets import load

    load("folders", folder, size=_of(folder).choice((None, 8)))


def _chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def huge_png(rng: random.Random, content: bytes) -> bytes:
    """A few kilobytes that claim, or hold, a huge picture."""
    sizes = ((50_000, 50_000), (9_000, 9_000), (2**31 - 1, 1), (0, 5))
    width, height = (8_000, 8_000) if rng.random() < 0.03 else rng.choice(sizes)
    head = struct.pack(
        ">IIBBBBB", width, height, rng.choice((1, 8, 16)), rng.choice((0, 2)), 0, 0, 0
    )
    if width == 8_000:  # accepted, so it must be whole
        head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * (height * (width + 1) if width == 8_000 else 1 << 20), 1)
    text = _chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * (1 << 24)))
    parts = (
        _chunk(b"IHDR", head),
        rng.choice((b"", text)),
        _chunk(b"IDAT", rows),
        _chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def other_format(rng: random.Random, content: bytes) -> bytes:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    gif = b"GIF89a\x08\0\x08\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x08\0\x08\0\0\x02\x02L\x01\0;"
    return rng.choice((eps, gif, b"II*\0\x08\0\0\0", b"RIFF\0\0\0\0WEBPVP8 ", b"icns\0\0\0\x08"))


def _parquet(folder: Path) -> Path:
    import io

    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(buffer, "png")
    rows = [{"bytes": buffer.getvalue(), "path": None}] * 6
    path = folder / "train-00000-of-00001.parquet"
    table = pyarrow.table({"img": rows, "label": [0, 1] * 3})
    pyarrow.parquet.write_table(table, path, row_group_size=3)
    return path


def other_table(rng: random.Random, content: bytes) -> bytes:
    """A sound parquet file with values or columns of other types."""
    import io

    import pyarrow
    import pyarrow.parquet

    picture = {"bytes": b"no picture", "path": "../outside"}
    images: tuple[list[Any], ...] = (
        [picture] * 4, [None] * 4, ["text"] * 4, [1] * 4, [{"bytes": None}] * 4, [b""] * 4,
    )  # fmt: skip
    labels: tuple[list[Any], ...] = (
        [0, 1, 0, 1],
        [None] * 4,
        [-5] * 4,
        [2**40] * 4,
        ["a"] * 4,
        [0.5] * 4,
    )
    table = {rng.choice(("img", "image", "x")): rng.choice(images), "label": rng.choice(labels)}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), buffer)
    return buffer.getvalue()


def _read_parquet(folder: Path, path: Path) -> None:
    from astkit.datasets.parquet import image_rows, shard_files

    for _ in image_rows(shard_files(folder, "train") or [path], most=1000):
        pass


def _mapped(folder: Path) -> Path:
    import torch

    from astkit.datasets import Images, write_mapped

    data = Images(torch.zeros(4, 1, 4, 4, dtype=torch.uint8), torch.arange(4) % 2, ("a", "b"), "")
    write_mapped(folder / "mapped", data)
    paths = sorted((folder / "mapped").iterdir())
    return random.Random(str(folder)).choice(paths)


def _read_mapped(folder: Path, path: Path) -> None:
    from astkit.datasets import Loader, open_mapped

    for _ in Loader(open_mapped(folder / "mapped"), 2).batches(0):
        pass


def other_array(rng: random.Random, content: bytes) -> bytes:
    """An .npy header that does not fit what follows, or a list of class names that is none."""
    if not content.startswith(b"\x93NUMPY"):
        return reshaped(rng, content)
    dtype = rng.choice(("|u1", "<i8", "<f8", "|O", "<U5", "|V9", "[('a', '<i4')]"))
    shape = rng.choice(("(4, 1, 4, 4)", "(-1,)", "()", "(99999999999999,)", "(4,)", "(2, 2)"))
    order = rng.choice(("True", "False"))
    quoted = dtype if dtype[0] == "[" else repr(dtype)
    head = f"{{'descr': {quoted}, 'fortran_order': {order}, 'shape': {shape}, }}"
    head = head.ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head.encode() + content[-64:]


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


CHECKPOINT = (other_state, other_state, other_header, huge_header, compressed)
KINDS: dict[str, Kind] = {
    "run folder": Kind(_one_of_a_run, _report, (reshaped, reshaped)),
    "comparison": Kind(_comparison, _load_comparison, (reshaped, reshaped)),
    "metrics": Kind(_metrics, _read_metrics, (reshaped_line, reshaped_line)),
    "notebook": Kind(_notebook, _read_notebook, (reshaped, reshaped, reshaped)),
    "checkpoint": Kind(_checkpoint, _resume, CHECKPOINT, _digested),
    "text pairs": Kind(_pairs, _read_pairs, (*[reshaped_pair] * 9, bomb)),
    "image": Kind(_images, _read_images, (huge_png, other_format)),
    "parquet": Kind(_parquet, _read_parquet, (other_table, other_table)),
    "mapped": Kind(_mapped, _read_mapped, (other_array, other_array)),
}


# --- what lies in the place of a file --------------------------------------------------------


def _displaced(rng: random.Random, path: Path, outside: Path) -> str:
    """Put something else in the place of ``path``; returns what."""
    content = path.read_bytes()
    path.unlink()
    what = rng.choice(("link", "dangling link", "loop", "device", "pipe", "folder", "nothing"))
    if what == "link":
        (outside / "linked").write_bytes(content)
        path.symlink_to(outside / "linked")
    elif what == "dangling link":
        path.symlink_to(outside / "missing")
    elif what == "loop":
        path.symlink_to(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    return what


def _odd_name(rng: random.Random, path: Path) -> Path:
    stem = rng.choice(("a b", "-rf", "a\nb", "\x1b[31m", "ü\u202e", "x" * 180, "'; rm", "$(id)"))
    return path.rename(path.with_name(stem + "".join(path.suffixes)))


def attacked(kind: str, example: Path, folder: Path, outside: Path, seed: int) -> tuple[Path, str]:
    """A copy of ``example`` in ``folder`` with one file attacked: its path, and what was done."""
    rng = random.Random(f"{kind} {seed}")
    root = example.parent
    while root.name != "example":
        root = root.parent
    shutil.copytree(root, folder)
    path = folder / example.relative_to(root)
    if kind in ("run folder", "mapped"):  # any of their files
        files = [each for each in path.parent.iterdir() if each.is_file() and each.stat().st_size]
        path = rng.choice(sorted(files))
    choice = rng.random()
    if choice < 0.12:
        return path, _displaced(rng, path, outside)
    if choice < 0.16 and kind in ("comparison", "metrics", "notebook", "image"):
        return _odd_name(rng, path), "odd name"
    own = KINDS[kind].changes
    change = rng.choice(own) if rng.random() < 0.6 else rng.choice(BYTES)
    content = change(rng, path.read_bytes())
    sound = change in own or rng.random() < 0.5  # under a name that fits the new content
    if sound and (new := KINDS[kind].renamed(path, content)) != path:
        path.unlink()
        path = new
    return _written(path, content), change.__name__


# --- the judge -------------------------------------------------------------------------------


def judge(kind: str, example: Path, place: Path, seed: int) -> str | None:
    """What is wrong with how the reader takes one hostile file; ``None`` if nothing is."""
    folder, outside = place / "target", place / "outside"
    for each in (folder, outside):
        shutil.rmtree(each, ignore_errors=True)
    outside.mkdir(parents=True)
    (outside / "precious").write_text("unchanged")
    path, what = attacked(kind, example, folder, outside, seed)
    before, said, error = _state(outside), "success", None
    with _limited(), warnings.catch_warnings(), peak_memory() as peak:
        warnings.simplefilter("ignore")
        try:
            KINDS[kind].read(folder, path)
        except BaseException as caught:
            error, said = caught, f"{type(caught).__name__}: {caught}"
    faults = []
    if error is not None and not isinstance(error, ValueError | OSError):
        faults.append("not a refusal")
    elif error is not None:
        named = (path.name, str(path), repr(path.name)[1:-1], path.parent.name, str(folder))
        told = str(error)
        faults += [] if any(name in told for name in named) else ["names no file"]
        for name in named[:2]:
            told = told.replace(name, "file")
        faults += ["several lines"] if "\n" in told else []
        faults += ["too long"] if len(told) > LONGEST else []
    faults += ["changed a file outside"] if _state(outside) != before else []
    if (grown := peak.reading.grown) is not None and grown > MOST_MEMORY:
        faults.append(f"took {grown >> 20} MiB")
    if not faults:
        return None
    return f"{kind} {seed}, {what}, {path.name!r}: {', '.join(faults)}: {said[:600]}"


class Hung(BaseException):
    """A reader did not come to an end."""


@contextmanager
def _limited() -> Iterator[None]:
    """End a block that hangs with an exception."""

    def hung(*_: object) -> None:
        raise Hung(f"after {MOST_SECONDS} seconds")

    old = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def _state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
