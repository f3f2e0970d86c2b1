"""Tasks by name and of folders: their parts, their models, and what is refused."""

from functools import partial

import pytest
import torch
from PIL import Image

from astkit.datasets import Images, as_loader, sources
from astkit.tasks import task
from astkit.tasks.images import folder
from tests.build import refused

PARTS = ("train", "validation", "test")


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_images_that_are_searched_are_tasks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (1, 28, 28) if name == "fashion_mnist" else (3, 32, 32)
    pixels = torch.randint(0, 256, (200, *shape), dtype=torch.uint8)
    data = Images(pixels, torch.arange(200) % 10, tuple("0123456789"), name)
    monkeypatch.setattr(sources, f"load_{name}", lambda root, size: (data, data))
    made = task(name)
    batch = next(as_loader(made["train"]).batches(0))
    assert made["make_model"]()(batch.x).shape == (128, 10)
    assert [made[part].num_samples for part in PARTS] == [180, 20, 200]


def test_another_name_is_refused() -> None:
    refused((partial(task, "speech"), "unknown task 'speech': choose one of cifar10, digits, f"))


@pytest.mark.parametrize("place", ["train", ""])
def test_folders_of_parts_are_used_drawn_or_refused(place, tmp_path, monkeypatch):
    for part, count in ((place, 20), ("val", 3), ("test", 4)):
        for label, level in (("cat", 40), ("dog", 200)):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                image = Image.new("RGB", (8 + i % 3, 9), (level, count, i))
                image.save(tmp_path / part / label / f"{i}.png")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    made = folder(f"~/{tmp_path.name}", size=8)
    assert [made[part].num_samples for part in PARTS] == [40, 6, 8]
    batch = next(made["train"].batches(0))
    assert made["make_model"]()(batch.x).shape == (40, 2)
    refused((partial(folder, tmp_path, size=3), "size is 3: give 4 or more pixels"))
    if place:
        drawn = folder(tmp_path / place, size=8)
        assert [drawn[part].num_samples for part in PARTS] == [28, 6, 6]
    (tmp_path / "val" / "dog").rename(tmp_path / "val" / "wolf")
    refused((partial(folder, tmp_path, size=8), "val holds other classes than"))
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "wolf")
    with pytest.raises(ValueError, match="class 'wolf', which the training part lacks"):
        folder(tmp_path, size=8)
