"""Images in memory, and what files from elsewhere may not do: reach other decoders, never end."""

import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from astkit.datasets import Images, load
from astkit.datasets import images as module
from astkit.datasets.images import decode

PICTURE = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))


def images(n=6, classes=("a", "b"), **changes):
    parts = {
        "images": torch.randint(0, 256, (n, 3, 4, 5), dtype=torch.uint8),
        "labels": torch.arange(n) % 2,
        "classes": classes,
        "name": "toy",
    }
    return Images(**{**parts, **changes})


def written(kind, picture=PICTURE):
    content = io.BytesIO()
    picture.save(content, kind)
    return content.getvalue()


def test_describes_itself_and_its_parts():
    data = images()
    assert (len(data), data.num_classes, data.shape) == (6, 2, (3, 4, 5))
    part = data.subset(torch.tensor([4, 1]))
    assert torch.equal(part.images, data.images[[4, 1]])
    assert part.labels.tolist() == [0, 1]
    assert len(data.subset(data.labels == 1)) == 3


def test_names_the_argument_that_is_wrong():
    for changes, words in (
        ({"images": torch.zeros(6, 3, 4, 5)}, "images is a torch.float32 of"),
        ({"images": torch.zeros(6, 4, 5, dtype=torch.uint8)}, r"shape \[6, 4, 5\]; pass a torch"),
        ({"images": np.zeros((6, 3, 4, 5), np.uint8)}, "images is a uint8 of"),
        ({"labels": torch.zeros(6)}, "labels is a torch.float32 of"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"shape \[6, .*labels has 5 rows"),
        ({"labels": torch.tensor([0, 1, 0, 1, 2, 2])}, "'toy' has the label 2, but classes nam"),
        ({"labels": torch.tensor([0, 1, 0, 1, 0, -1])}, "has the label -1"),
        ({"n": 0}, "pass at least one image"),
    ):
        with pytest.raises(ValueError, match=words):
            images(**changes)
    for nothing in (images().labels > 1, []):
        with pytest.raises(ValueError, match="pass at least one image"):
            images().subset(nothing)


def test_channel_stats_are_those_of_the_pixels(monkeypatch):
    monkeypatch.setattr(module, "STATS_ROWS", 4)
    data = images()
    mean, std = data.channel_stats()
    pixels = data.images.double() / 255
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)).float())
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0).float())
    flat = images(images=torch.full((6, 1, 4, 5), 51, dtype=torch.uint8)).channel_stats()
    assert [part.item() for part in flat] == pytest.approx([0.2, 1 / 255])


def test_grey_levels_of_16_bits_keep_their_brightness():
    levels = np.array([[0, 128, 255], [256, 32_768, 65_535]], np.uint16)
    grey = decode(written("PNG", Image.fromarray(levels)), "it", "replace it")
    assert grey.shape == (3, 2, 3)
    assert grey[0].tolist() == [[0, 0, 1], [1, 128, 255]]
    assert torch.equal(grey[1:], grey[:1].expand(2, -1, -1))
    for mode, pixel, expected in (("L", 90, [90] * 3), ("RGBA", (1, 2, 3, 0), [1, 2, 3])):
        other = decode(written("PNG", Image.new(mode, (1, 1), pixel)), "it", "replace it")
        assert other.flatten().tolist() == expected


def test_only_png_and_jpeg_reach_a_decoder_whatever_the_name_says(monkeypatch, tmp_path):
    for kind in ("PNG", "JPEG"):
        assert decode(written(kind), "it", "replace it").shape == (3, 8, 8)
    # Pillow gives an EPS to Ghostscript, which runs programs
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("was run"))
    for kind in ("EPS", "GIF", "TIFF", "WEBP", "ICO", "BMP", "PPM"):
        (tmp_path / kind / "ant").mkdir(parents=True)
        (tmp_path / kind / "ant" / "1.png").write_bytes(written(kind))
        with pytest.raises(ValueError, match=r"ant/1\.png .*neither PNG nor JPEG\); replace it"):
            load("folders", tmp_path / kind)


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch):
    content = written("PNG")
    monkeypatch.setattr(module, "MOST_PIXELS", 64)
    assert decode(content, "it", "replace it").shape == (3, 8, 8)
    monkeypatch.setattr(module, "MOST_PIXELS", 63)
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ValueError, match="it has more than 63 pixels, the most for one image;"):
        decode(content, "it", "replace it")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs devices")
def test_only_regular_files_are_read_not_endless_devices(tmp_path):
    batches = [f"python/data_batch_{number}" for number in range(1, 6)]
    for name in (*batches, "python/test_batch", "fashion/train-images-idx3-ubyte"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="published checksum"):
        load("cifar10", tmp_path / "python")
    with pytest.raises(ValueError, match="not a regular file"):
        load("fashion_mnist", tmp_path / "fashion")
    (tmp_path / "folders" / "ant").mkdir(parents=True)
    os.mkfifo(tmp_path / "folders" / "ant" / "1.png")  # it is not waited for
    with pytest.raises(ValueError, match=r"1\.png is not a regular file; replace it"):
        load("folders", tmp_path / "folders")
