"""Whatever lies in a file that somebody else made, its reader succeeds or names the file.

Each kind of file has valid examples, which the kit itself wrote, and a reader. A seeded attack
changes one file: its bytes, the values in it, or what lies in its place (a link, a pipe, a folder).
The reader must succeed or refuse with one sentence that names the file, in bounded time and memory,
and change nothing outside the folder it was given.
"""

import gzip
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import warnings
import zlib
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import nn

from astkit import Checkpoints, Comparison, Gate, Loader, Trainer
from astkit.datasets import Images, load, open_mapped, pairs, write_mapped
from astkit.datasets.parquet import image_rows, shard_files
from astkit.runs import notebook, tables
from astkit.trainers import MetricsFile
from tests.runs import sweeping, test_tables

FAST, FULL = 30, 1000
MOST_MEMORY = 1 << 20  # KiB that a reader may take for one file
MOST_SECONDS = 60
LONGEST = 1500  # characters of a refusal
JUNK = (b"", b"\0" * 4096, b"\n", b"null", b"[]", b"PK\x03\x04", b"\x80\x04.", b"[" * 100_000)
VALUES = ("null", "true", "-1", "0.5", "1e999", "NaN", str(2**63), '""', '"x"', '"\\ud800"', "[]")
VALUES += ('"../../outside"', '"line\\nline"', '"\\u001b]0;title\\u0007"', "{}", "[[]]", "[1, {}]")
TOKEN = re.compile(rb'"[^"]*"|-?\d[\d.]*|true|false|null|\[\]')
LINES = "".join(f'{{"source": "a text of {n} words", "target": "an answer"}}\n' for n in range(4))
IMAGES = Images(torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.arange(8) % 2, ("a", "b"), "")


def changed(rng, content):
    """Truncated, with a flipped bit, overwritten, with bytes inserted, or replaced by junk."""
    at = rng.randrange(len(content) + 1)
    filling = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * rng.choice((1, 8, 100))
    flipped = bytes(byte ^ 4 for byte in content[at : at + 1]) + content[at + 1 :]
    overwritten = filling + content[at + len(filling) :]
    if rng.random() < 0.2:
        return rng.choice((*JUNK, rng.randbytes(2000)))
    return content[:at] + rng.choice((b"", flipped, overwritten, filling + content[at:]))


def reshaped(rng, content):
    """JSON with other values or names."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        places = list(TOKEN.finditer(content))
        if not places:
            break
        found = rng.choice(places)
        content = content[: found.start()] + rng.choice(VALUES).encode() + content[found.end() :]
    return content


def compressed(rng, content):
    """Other lines, or two megabytes that expand to two gigabytes."""
    if rng.random() < 0.1:
        return gzip.compress(b" " * (1 << 26), 1) * 32
    return gzip.compress(rng.choice((changed, reshaped))(rng, gzip.decompress(content)))


def other_tensors(rng, content):
    """A safetensors file whose header has other entries or another length; other JSON."""
    if content.startswith(b"{"):
        return reshaped(rng, content)
    end = 8 + int.from_bytes(content[:8], "little")
    header = reshaped(rng, content[8:end])
    stated = rng.choice((len(header), len(header), 2**20, 2**40, 2**64 - 1))
    return struct.pack("<Q", stated) + header + content[end:]


def rehash(path):
    """State the digest of a changed checkpoint in it, so that it passes for whole."""
    described, tensors = path.with_suffix(".json"), path.with_suffix(".safetensors")
    if path not in (described, tensors) or not (described.exists() and tensors.exists()):
        return
    try:
        head = json.loads(described.read_bytes())
        head.pop("sha256")
        text = json.dumps(head, allow_nan=False)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return
    digest = hashlib.sha256(tensors.read_bytes() + text.encode()).hexdigest()
    described.write_text(json.dumps({**head, "sha256": digest}))


def other_image(rng, content):
    """A few bytes that claim a huge picture, or another format."""
    if not content.startswith(b"\x89PNG") or rng.random() < 0.3:
        return rng.choice((b"%!PS-Adobe-3.0 EPSF-3.0\n", b"GIF89a\x08\0\x08\0\x80\0", b"II*\0\x08"))
    sizes = ((50_000, 50_000), (9_000, 9_000), (2**31 - 1, 1), (0, 5))
    head = b"IHDR" + struct.pack(">II", *rng.choice(sizes)) + content[24:29]
    return content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]


def other_table(rng, content):
    """A sound parquet file with values or columns of other types."""
    shown = rng.choice(({"bytes": b"no picture"}, None, "text", 1, {"bytes": None}, b""))
    label = rng.choice((1, None, -5, 2**40, "a", 0.5))
    return parquet(**{rng.choice(("img", "image", "x")): [shown] * 4, "label": [label] * 4})


def parquet(**columns):
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer, row_group_size=3)
    return buffer.getvalue()


def other_array(rng, content):
    """An .npy header that does not fit what follows, or a list of class names that is none."""
    if not content.startswith(b"\x93NUMPY"):
        return reshaped(rng, content)
    changes = {
        b"'|u1'": (b"'<i8'", b"'|O'", b"'<U5'"),
        b"(8,": (b"(-1", b"(9999999999999,", b"(4,"),
    }
    old = rng.choice(list(changes))
    return content.replace(old, rng.choice(changes[old]), 1)


def comparison(folder):
    entry = {"policy": "dense", "seed": 0, "value": 0.5, "flops": 1.0, "seconds": 1.0}
    entry |= {"curve": [[1.0, 1.0, 0.5]], "visits": "dense.safetensors"}
    content = {"entries": [entry], "metric": "accuracy", "higher": True, "settings": {"model": "x"}}
    forecast = {"gain": 1.0, "error": 0.1, "unit": "", "power": 0.5, "seconds": 1.0, "reason": ""}
    content |= {"notes": ["a note"], "forecast": forecast, "stamp": {}}
    (folder / "comparison.json").write_text(json.dumps(content))


def metrics(folder):
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, 6):
        file.log(step, phase="train", loss=1.0, rate=0.5)
    file.close()


def read_metrics(folder, path):
    metrics(path.parent)
    MetricsFile(path).load_state_dict({"file": path.name, "lines": 2})


def trainer(folder, resume):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 2))
    options = {"policy": Gate(0.5), "epochs": 2, "checkpoints": Checkpoints(folder, keep=1)}
    return Trainer(model, Loader(IMAGES, 4), resume=resume, **options)


def checkpoint(folder):
    steps = trainer(folder, resume=False).steps()
    next(steps)
    steps.close()  # leaves a checkpoint


def picture(format):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (90, 20, 30)).save(buffer, format)
    return buffer.getvalue()


def images(folder):
    for name in ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.jpeg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(picture(name.rpartition(".")[2]))


def encoded_images(folder):
    content = parquet(img=[{"bytes": picture("png")}] * 6, label=[0, 1] * 3)
    (folder / "train-00000-of-00001.parquet").write_bytes(content)


# name: what writes an example into a folder, what reads it, and an attack of its own
KINDS = {
    "run folder": (
        lambda folder: [test_tables.make(folder, 0.1, seed) for seed in (0, 1)],
        lambda folder, path: len((runs := tables.collect(folder)).rows) and tables.table(runs),
        reshaped,
    ),
    "comparison": (comparison, lambda folder, path: Comparison.load(path), reshaped),
    "metrics": (metrics, read_metrics, reshaped),
    "notebook": (
        lambda folder: sweeping.write(folder / "toy.ipynb", "print(rate)"),
        lambda folder, path: notebook.read(path),
        reshaped,
    ),
    "checkpoint": (
        checkpoint,
        lambda folder, path: next(trainer(folder, resume=True).steps(), None),
        other_tensors,
    ),
    "text pairs": (
        lambda folder: (folder / "pairs.jsonl.gz").write_bytes(gzip.compress(LINES.encode())),
        lambda folder, path: pairs.read_pairs(path),
        compressed,
    ),
    "image": (images, lambda folder, path: load("folders", folder, size=8), other_image),
    "parquet": (
        encoded_images,
        lambda folder, path: list(image_rows(shard_files(folder, "train") or [path], most=1000)),
        other_table,
    ),
    "mapped": (
        lambda folder: write_mapped(folder / "mapped", IMAGES),
        lambda folder, path: list(Loader(open_mapped(folder / "mapped"), 2).batches(0)),
        other_array,
    ),
}


def attack(rng, change, folder, outside):
    """Change one file of ``folder``, or put something else in its place; returns its path."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    path = rng.choice(files)
    if len(files) == 1 and rng.random() < 0.05:
        odd = rng.choice(("a b", "-rf", "a\nb", "\x1b[31m", "ü\u202e", "x" * 180, "$(id)"))
        return path.rename(path.with_name(odd + "".join(path.suffixes)))
    if rng.random() > 0.12:
        path.write_bytes((change if rng.random() < 0.6 else changed)(rng, path.read_bytes()))
        if rng.random() < 0.7:
            rehash(path)
        return path
    path.rename(outside / "linked")
    links = [outside / "linked", outside / "none", path, "/dev/zero"]
    displacements = [lambda link=link: path.symlink_to(link) for link in links]
    rng.choice((*displacements, path.mkdir, lambda: os.mkfifo(path), lambda: None))()
    return path


def faults(kind, read, place, seed):
    """What is wrong with how ``read`` takes one hostile file, made of an example in ``place``."""
    rng, folder, outside = random.Random(f"{kind} {seed}"), place / "target", place / "outside"
    for each in (folder, outside):
        shutil.rmtree(each, ignore_errors=True)
    outside.mkdir()
    shutil.copytree(place / "example", folder)
    path = attack(rng, KINDS[kind][2], folder, outside)
    before, error = {each: each.read_bytes() for each in outside.iterdir()}, None
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        read(folder, path)
    except BaseException as caught:
        error = caught
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    said, refused = str(error), isinstance(error, ValueError | OSError)
    names = (path.name, repr(path.name)[1:-1], path.parent.name)
    rest = said.replace(str(path), "").replace(path.name, "")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    found = {
        "not a refusal": error is not None and not refused,
        "names no file": refused and not any(name in said for name in names),
        "several lines": refused and "\n" in rest,
        "too long": refused and len(rest) > LONGEST,
        "changed a file outside": before != {each: each.read_bytes() for each in outside.iterdir()},
        "took much memory": grown > MOST_MEMORY,
    }
    return [f"{kind} {seed} {path.name}: {name}: {error!r:.500}" for name in found if found[name]]


@pytest.fixture
def alarm():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with warnings.catch_warnings(action="ignore"):
        yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "seeds", [range(FAST), pytest.param(range(FAST, FULL), marks=pytest.mark.full)], ids=str
)
def test_a_hostile_file_is_read_or_refused_by_name(kind, seeds, tmp_path, alarm):
    (tmp_path / "example").mkdir()
    KINDS[kind][0](tmp_path / "example")
    before = children()
    assert [fault for seed in seeds for fault in faults(kind, KINDS[kind][1], tmp_path, seed)] == []
    assert children() <= before


def children():
    """Ids of the processes that this one has started and that have not ended."""
    tasks = Path("/proc/self/task")
    return {pid for task in tasks.glob("*/children") for pid in task.read_text().split()}
