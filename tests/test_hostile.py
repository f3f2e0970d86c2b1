"""Half a file of each kind that the kit writes or reads is refused by its name."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from astkit import Comparison
from astkit.datasets import Images, load, open_mapped, pairs, write_mapped
from astkit.runs import runner
from astkit.runs.record import Record
from astkit.trainers import checkpoint
from tests.runs import sweeping, test_tables

IMAGES = Images(torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.arange(8) % 2, ("a", "b"), "")
PAIR = json.dumps({"source": "some words", "target": "an answer"}) + "\n"


def picture(folder: Path) -> None:
    (folder / "cat").mkdir()
    Image.new("RGB", (8, 8), (90, 20, 30)).save(folder / "cat" / "0.png")


# name: what writes an example into a folder, the file that is cut, and what reads it
KINDS: dict[str, tuple[Callable[[Path], object], str, Callable[[Path], object]]] = {
    "run folder": (
        lambda folder: test_tables.make(folder, 0.1, 0),
        "*/result.json",
        lambda path: Record(path.parent).result,
    ),
    "comparison": (
        lambda folder: (folder / "comparison.json").write_text('{"entries": [], "metric": "a"}'),
        "comparison.json",
        Comparison.load,
    ),
    "notebook": (
        lambda folder: sweeping.write(folder / "toy.ipynb", "print(rate)"),
        "toy.ipynb",
        runner.read_notebook,
    ),
    "checkpoint": (
        lambda folder: checkpoint.write(folder / "step_1", {"weight": torch.ones(3)}),
        "step_1.safetensors",
        checkpoint.read,
    ),
    "text pairs": (
        lambda folder: (folder / "pairs.jsonl.gz").write_bytes(gzip.compress(PAIR.encode())),
        "pairs.jsonl.gz",
        pairs.read_pairs,
    ),
    "image": (picture, "cat/0.png", lambda path: load("folders", path.parents[1], size=8)),
    "mapped": (
        lambda folder: write_mapped(folder / "mapped", IMAGES),
        "mapped/images.npy",
        lambda path: open_mapped(path.parent),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_file_is_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    write, name, read = KINDS[kind]
    write(tmp_path)
    (path,) = tmp_path.glob(name)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=path.stem):
        read(path)
