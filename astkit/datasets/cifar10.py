"""CIFAR-10 (Krizhevsky 2009), wherever and in whichever of its usual layouts it lies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from astkit.datasets.cifar10_files import LAYOUTS, looked_for
from astkit.datasets.sources import Parts


def load_cifar10(root: Path | None, download: bool, size: int | None) -> Parts:
    """Training and test part, uint8 ``[N, 3, 32, 32]``; the first layout found is the one used.

    Raises ``FileNotFoundError`` with every path tried when there is none, and ``ValueError`` for
    one that is damaged or incomplete.
    """
    places = search_places(root)
    found = find_layout(places)
    if found is None and download:
        _download(places[0])
        found = find_layout(places)
    if found is None:
        tried = "".join(f"\n  {folder}" for place in places for folder in _candidates(place))
        raise FileNotFoundError(
            f"CIFAR-10 was not found. Looked for {looked_for()}; in these folders and in their "
            f"subfolders cifar10* and cifar-10*:{tried}\nTo get it, pass download=True, or put one "
            "of the layouts into one of these folders (see data/README.md)."
        )
    folder, layout = found
    return LAYOUTS[layout].read(folder)


def search_places(root: Path | None) -> list[Path]:
    """Where to search, in order: ``root``, ``ASTKIT_DATA``, ``data/`` of the checkout and here."""
    places = [] if root is None else [root]
    if os.environ.get("ASTKIT_DATA"):
        places.append(Path(os.environ["ASTKIT_DATA"]).expanduser())
    package_parent = Path(__file__).resolve().parents[2]
    if package_parent.name != "site-packages":
        places.append(package_parent / "data")
    places.append(Path.cwd() / "data")
    return list(dict.fromkeys(places))


def find_layout(places: list[Path]) -> tuple[Path, str] | None:
    """The first folder at ``places`` that holds CIFAR-10, and the name of its layout."""
    for folder in (inner for place in places for inner in _candidates(place)):
        for name, layout in LAYOUTS.items():
            if layout.present(folder):
                return folder, name
    return None


def _candidates(place: Path) -> Iterator[Path]:
    yield place
    for pattern in ("cifar10*", "cifar-10*"):
        yield from sorted(path for path in place.glob(pattern) if path.is_dir())


def _download(place: Path) -> None:
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import download_and_extract_archive

    try:
        download_and_extract_archive(
            CIFAR10.url, str(place), filename=CIFAR10.filename, md5=CIFAR10.tgz_md5
        )
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(
            f"CIFAR-10 is not on this machine and its download to {place} failed ({error}); "
            f"fetch {CIFAR10.url} by other means and unpack it there."
        ) from error
