import io

import numpy as np
import pytest
from PIL import Image


def noise(label, number, size=8):
    """The pixels of one picture of `make_folders`: uint8 ``[size, size, 3]``."""
    return np.random.default_rng([label, number]).integers(0, 256, (size, size, 3), dtype=np.uint8)


def make_folders(root, names, count, size=8, suffix=".png"):
    """``count`` random images in each ``root/<name>/``; returns their paths."""
    paths = []
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            paths.append(root / name / f"{number}{suffix}")
            Image.fromarray(noise(label, number, size)).save(paths[-1])
    return paths


def encode(picture, kind="PNG"):
    """A file of ``picture``: uint8 ``[3, height, width]``."""
    content = io.BytesIO()
    Image.fromarray(np.asarray(picture).transpose(1, 2, 0)).save(content, kind)
    return content.getvalue()


@pytest.fixture
def pixels():
    return noise


@pytest.fixture
def class_folders():
    return make_folders


@pytest.fixture(scope="session")
def encoded():
    return encode
