"""What files from elsewhere may not do: reach other decoders, fill the memory, never end."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from astkit.datasets import decode as module
from astkit.datasets import load, open_mapped
from astkit.datasets.cifar10 import CLASSES
from astkit.datasets.decode import decode

PICTURE = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))


def written(kind):
    content = io.BytesIO()
    PICTURE.save(content, kind)
    return content.getvalue()


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


def png_of_zeros(side):
    """A PNG that claims ``side`` x ``side`` pixels; decoding it would take three bytes for each."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1 << 20), 9))
    return b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore:Image size")
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    (tmp_path / "ant").mkdir()
    for side in (8193, 12_000, 50_000):
        (tmp_path / "ant" / "1.png").write_bytes(png_of_zeros(side))
        with pytest.raises(ValueError, match=r"ant/1\.png has more than 67,108,864 pix") as caught:
            load("folders", tmp_path)
        assert str(caught.value).count(". ") == 0


def test_the_largest_image_that_is_accepted(monkeypatch):
    monkeypatch.setattr(module, "MOST_PIXELS", 64)
    assert decode(written("PNG"), "it", "replace it").shape == (3, 8, 8)
    monkeypatch.setattr(module, "MOST_PIXELS", 63)
    with pytest.raises(ValueError, match="it has more than 63 pixels"):
        decode(written("PNG"), "it", "replace it")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs devices")
def test_only_regular_files_are_read_not_endless_devices(tmp_path):
    def link(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/dev/zero")

    def refused(read):
        with pytest.raises(ValueError, match=r"not a regular file|published checksum"):
            read()

    link(tmp_path / "folders" / "ant" / "1.png")
    refused(lambda: load("folders", tmp_path / "folders"))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        link(tmp_path / "python" / name)
    refused(lambda: load("cifar10", tmp_path / "python"))
    link(tmp_path / "parquet" / "train-0.parquet")
    refused(lambda: load("cifar10", tmp_path / "parquet"))
    for name in CLASSES:
        link(tmp_path / "classes" / "train" / name / "1.png")
    refused(lambda: load("cifar10", tmp_path / "classes"))
    for name in ("images.npy", "labels.npy", "classes.json"):
        folder = tmp_path / f"mapped-{name}"
        folder.mkdir()
        np.save(folder / "images.npy", np.zeros((2, 3, 4, 4), np.uint8))
        np.save(folder / "labels.npy", np.zeros(2, np.int64))
        (folder / name).unlink(missing_ok=True)
        link(folder / name)
        refused(lambda folder=folder: open_mapped(folder))


def test_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "ant").mkdir()
    os.mkfifo(tmp_path / "ant" / "1.png")
    with pytest.raises(ValueError, match=r"1\.png is not a regular file; replace it"):
        load("folders", tmp_path)
