"""Image files: which are found in folders, and that each is read as it is meant to be seen."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from astkit.datasets import load
from astkit.datasets.image_files import decode, find_images

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
UPRIGHT = torch.from_numpy(PIXELS).permute(2, 0, 1)
# what a camera stores for each EXIF orientation (Exif 2.32, tag 0x0112): the inverse of its turn
STORED = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, -1),
}
LOSSLESS = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}


def encoded(kind: str, pixels: np.ndarray = PIXELS, **options: object) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, kind, **options)
    return content.getvalue()


def put(root: Path, *names: str) -> None:
    """Write an image in the format of its name to each place."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS).save(path)


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_turned_as_its_orientation_says(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = encoded(kind, STORED[orientation](PIXELS), exif=exif, **LOSSLESS.get(kind, {}))
    image = decode(stored, "it")
    assert image.shape == UPRIGHT.shape
    assert (image.int() - UPRIGHT.int()).abs().float().mean() < (5 if kind == "JPEG" else 1e-9)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "PPM", "GIF"])
def test_formats_without_loss_are_read_to_the_bit(kind: str) -> None:
    grey = PIXELS[..., :1].repeat(3, 2) if kind == "GIF" else PIXELS  # at most 256 colours
    image = Image.fromarray(grey[..., 0]) if kind == "GIF" else Image.fromarray(grey)
    content = io.BytesIO()
    image.save(content, kind, **LOSSLESS.get(kind, {}))
    assert torch.equal(decode(content.getvalue(), "it"), torch.from_numpy(grey).permute(2, 0, 1))


def test_the_first_image_of_an_animation_is_read() -> None:
    frames = [Image.fromarray(np.full((4, 4), level, np.uint8)) for level in (10, 200)]
    for kind in ("GIF", "WEBP", "TIFF", "MPO"):
        content = io.BytesIO()
        options = {"lossless": True} if kind == "WEBP" else {}
        frames[0].save(content, kind, save_all=True, append_images=frames[1:], **options)
        assert decode(content.getvalue(), "it").float().mean() == pytest.approx(10, abs=1)


TREES = {
    "classes with deeper folders": ("a/0.png", "a/deep/1.png", "a/b-c/2.png", "b/x/y/z/3.jpg"),
    "images in deeper folders alone": ("cat/images/0.bmp", "dog/images/0.bmp", "dog/more/1.webp"),
    "names that sort otherwise as parts": ("a/b/0.png", "a/b-c/1.png", "a/b.d/2.png", "c/1.tiff"),
}


@pytest.mark.parametrize("tree", TREES)
def test_rows_are_those_of_torchvision(tree: str, tmp_path: Path) -> None:
    put(tmp_path, *TREES[tree])
    expected = ImageFolder(tmp_path)
    paths = [path for name in expected.classes for path in find_images(tmp_path / name)]
    assert [str(path) for path in paths] == [path for path, _ in expected.samples]
    data, _ = load("folders", tmp_path, size=8)
    assert data.labels.tolist() == expected.targets
    assert list(data.classes) == expected.classes
    assert all((suffix in Image.registered_extensions()) for suffix in IMG_EXTENSIONS)
    assert sorted(map(str, find_images(tmp_path))) == sorted(path for path, _ in expected.samples)


@pytest.mark.parametrize(
    "hidden",
    [
        "a/._0.png",
        "a/.ipynb_checkpoints/0-checkpoint.png",
        "a/.thumbnails/deep/0.webp",
        ".git/0.png",
    ],
)
def test_hidden_files_are_skipped_by_all(hidden: str, tmp_path: Path) -> None:
    put(tmp_path, "a/0.png", "b/0.png")
    path = tmp_path / hidden
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0\x05\x16\x07" + bytes(60))  # no image, as macOS writes it
    assert len(load("folders", tmp_path)[0]) == 2
    assert len(find_images(tmp_path)) == 2


def test_a_format_that_is_not_read_is_named_by_all(tmp_path: Path) -> None:
    put(tmp_path, "a/0.png", "b/deep/0.ico")
    for read in (find_images, lambda root: load("folders", root)):
        with pytest.raises(ValueError, match=r"b/deep/0.ico is none of PNG, JPEG, .*; convert it"):
            read(tmp_path)


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    put(tmp_path, "kept/0.png", "kept/deep/1.png", "root/b/0.png")
    (tmp_path / "root/a").symlink_to(tmp_path / "kept")
    assert load("folders", tmp_path / "root")[0].labels.tolist() == [0, 0, 1]


def test_grey_levels_of_16_bits_keep_their_brightness() -> None:
    levels = np.array([[0, 128, 255], [256, 32_768, 65_535]], np.uint16)
    for kind in ("PNG", "TIFF", "PPM"):
        grey = decode(encoded(kind, levels), "it")
        assert grey[0].tolist() == [[0, 0, 1], [1, 128, 255]]
        assert torch.equal(grey[1:], grey[:1].expand(2, -1, -1))
    for mode, pixel, expected in (("L", 90, [90] * 3), ("RGBA", (1, 2, 3, 0), [1, 2, 3])):
        content = io.BytesIO()
        Image.new(mode, (1, 1), pixel).save(content, "PNG")
        assert decode(content.getvalue(), "it").flatten().tolist() == expected


def test_other_formats_do_not_reach_a_decoder_whatever_the_name_says(monkeypatch, tmp_path) -> None:
    # Pillow gives an EPS to Ghostscript, which runs programs
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("was run"))
    for kind in ("EPS", "ICO"):
        (tmp_path / kind / "ant").mkdir(parents=True)
        (tmp_path / kind / "ant" / "1.png").write_bytes(encoded(kind))
        with pytest.raises(ValueError, match=r"ant/1\.png is damaged .*\(none of PNG, JPEG"):
            load("folders", tmp_path / kind)


def test_more_pixels_than_pillow_allows_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(ValueError, match=r"it is damaged or no image \(.*decompression bomb"):
        decode(encoded("PNG"), "it")
    with pytest.raises(ValueError, match="its pixels are decimals"):
        decode(encoded("TIFF", np.zeros((2, 2), np.float32)), "it")
