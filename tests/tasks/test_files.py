"""All folders of images are used."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from astkit.tasks.files import folder

PARTS = ("train", "validation", "test")


def test_folders_of_parts_beside_those_of_classes_are_used_or_refused(tmp_path: Path) -> None:
    for place, count in (("", 20), ("val", 3), ("test", 4)):
        for label, level in (("cat", 40), ("dog", 200)):
            (tmp_path / place / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (level, count, i)).save(
                    tmp_path / place / label / f"{i}.png"
                )
    made = folder(tmp_path, size=8)
    assert [made[part].num_samples for part in PARTS] == [40, 6, 8]
    with pytest.raises(ValueError, match="size is 3: give 4 or more pixels"):
        folder(tmp_path, size=3)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "wolf")
    with pytest.raises(ValueError, match="class 'wolf', which is missing in the training part"):
        folder(tmp_path, size=8)
