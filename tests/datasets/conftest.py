import pytest
import torch
from torchvision.io import write_jpeg, write_png


def make_folders(root, names, count, size=8, suffix=".png"):
    """``count`` random images in each ``root/<name>/``; returns their paths."""
    paths = []
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            noise = torch.Generator().manual_seed(100 * label + number)
            picture = torch.randint(0, 256, (3, size, size), generator=noise, dtype=torch.int64).to(
                torch.uint8
            )
            path = root / name / f"{number}{suffix}"
            (write_png if suffix == ".png" else write_jpeg)(picture, str(path))
            paths.append(path)
    return paths


@pytest.fixture
def class_folders():
    return make_folders
