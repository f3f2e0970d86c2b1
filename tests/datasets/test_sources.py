import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import astkit.datasets
from astkit.datasets import load
from astkit.names import REGISTRIES


def test_no_module_imports_a_heavy_library_before_it_is_used():
    heavy = {"sklearn", "pyarrow", "pandas", "matplotlib", "torchvision", "PIL"}
    for path in Path(astkit.datasets.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                assert not heavy & {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module.partition(".")[0] not in heavy


def test_names_the_choices():
    with pytest.raises(ValueError, match="unknown dataset 'mnist': choose one of cifar10, digits"):
        load("mnist")
    assert set(REGISTRIES["dataset"]) == {"digits", "cifar10", "folders"}
    with pytest.raises(ValueError, match="size is 16 for 'digits'"):
        load("digits", size=16)


def test_digits_keep_scikit_learns_values():
    from sklearn.datasets import load_digits

    data, test = load()
    assert test is None
    assert data.images.shape == (1797, 1, 8, 8)
    original = torch.from_numpy(load_digits().images)
    assert torch.equal((data.images[:, 0].double() * 16 / 255).round(), original)
    assert data.images.max() == 255
    assert data.labels.bincount().sum() == 1797


def test_folders_are_read_by_name(tmp_path, class_folders, pixels):
    class_folders(tmp_path, ("ant", "bee"), 3)
    data, test = load("folders", tmp_path)
    assert test is None
    assert data.classes == ("ant", "bee")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    wanted = np.stack([pixels(label, number) for label in (0, 1) for number in range(3)])
    assert np.array_equal(data.images.permute(0, 2, 3, 1), wanted)


def test_folders_with_a_test_part(tmp_path, class_folders):
    class_folders(tmp_path / "train", ("ant", "bee"), 2, suffix=".jpg")
    class_folders(tmp_path / "test", ("bee",), 1)
    train, test = load("folders", str(tmp_path))
    assert len(train) == 4
    assert test.labels.tolist() == [1]


def test_folders_with_an_unknown_test_class(tmp_path, class_folders):
    class_folders(tmp_path / "train", ("ant",), 1)
    class_folders(tmp_path / "test", ("wasp",), 1)
    with pytest.raises(ValueError, match="class 'wasp'"):
        load("folders", tmp_path)


def test_different_sizes_need_a_size(tmp_path, class_folders):
    class_folders(tmp_path, ("ant",), 1, size=8)
    class_folders(tmp_path, ("bee",), 1, size=6)
    with pytest.raises(ValueError, match=r"ant/0.png is 8x8 pixels and .*bee/0.png is 6x6.*size="):
        load("folders", tmp_path)
    data, _ = load("folders", tmp_path, size=4)
    assert data.shape == (3, 4, 4)


def test_parts_of_different_sizes_need_a_size(tmp_path, class_folders):
    class_folders(tmp_path / "train", ("ant",), 1, size=8)
    class_folders(tmp_path / "test", ("ant",), 1, size=6)
    with pytest.raises(ValueError, match="pass size="):
        load("folders", tmp_path)


def test_missing_folders_say_where(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load("folders", tmp_path)
    with pytest.raises(ValueError, match="root is None"):
        load("folders")


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_truncated_image_is_named(tmp_path, class_folders, suffix):
    path = class_folders(tmp_path, ("ant",), 2, size=16, suffix=suffix)[1]
    content = path.read_bytes()
    for keep in (0, 20, int(0.6 * len(content))):
        path.write_bytes(content[:keep])
        with pytest.raises(ValueError, match=f"1{suffix} is damaged or no image.*replace it"):
            load("folders", tmp_path)
