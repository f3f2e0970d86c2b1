"""kernel-metadata.json says everything, in the words that Kaggle takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from astkit.export.bundle import bundle
from astkit.export.kaggle import Kernel, metadata, summary, write

FIELDS = {
    *("id", "title", "code_file", "language", "kernel_type", "is_private"),
    *("enable_gpu", "enable_tpu", "enable_internet", "machine_shape", "docker_image_pinning_type"),
    *("keywords", "dataset_sources", "competition_sources", "kernel_sources", "model_sources"),
}


def make(folder: Path, name: str = "01_small", **values: str):
    parameters = new_code_cell("dataset = 'digits'", metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[parameters, new_code_cell("1")]), folder / f"{name}.ipynb")
    return bundle(folder / f"{name}.ipynb", values)


@pytest.mark.parametrize("gpu", [True, False])
def test_every_field_is_written(gpu: bool, tmp_path: Path) -> None:
    kernel = Kernel("me", datasets=["some/cifar-10"], gpu=gpu)
    path = write(make(tmp_path), kernel, tmp_path / "out")
    values = json.loads((path.parent / "kernel-metadata.json").read_text())
    assert set(values) == FIELDS
    assert values["code_file"] == path.name
    assert values["kernel_type"] == "notebook"
    assert values["enable_gpu"] is gpu
    assert values["machine_shape"] == ("NvidiaTeslaT4" if gpu else "")
    assert (values["enable_internet"], values["enable_tpu"], values["is_private"]) == (
        *(False, False),
        True,
    )
    assert values["dataset_sources"] == ["some/cifar-10"]
    assert {path.name for path in path.parent.iterdir()} == {path.name, "kernel-metadata.json"}


@pytest.mark.parametrize(
    ("title", "slug"),
    [("", "astkit-01-small"), ("Does it pay?", "does-it-pay"), ("A_b  c: 10", "a-b-c-10")],
)
def test_the_title_slugifies_to_the_id(title: str, slug: str, tmp_path: Path) -> None:
    values = metadata(make(tmp_path), Kernel("me", title))
    assert values["id"] == f"me/{slug}"
    # Kaggle: the title lowercased, dashes for what is no letter or digit
    assert re.sub(r"[^a-z0-9]+", "-", values["title"].lower()).strip("-") == slug


def test_what_kaggle_would_refuse_is_refused(tmp_path: Path) -> None:
    for kernel, message in (
        (Kernel("me", "abcd"), "title is 'abcd': Kaggle accepts 5 to 50"),
        (Kernel("me", "?????a"), "title is"),
        (Kernel("me", "a" * 51), "title is"),
        (Kernel("me", datasets=["cifar-10"]), "dataset is 'cifar-10': pass OWNER/SLUG"),
        (Kernel("me", datasets=["https://x/y/z"]), "dataset is"),
    ):
        with pytest.raises(ValueError, match=message):
            write(make(tmp_path), kernel, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_the_summary_says_what_was_made_and_what_is_left(tmp_path: Path) -> None:
    made = make(tmp_path)
    path = write(made, Kernel(), tmp_path / "out")
    first, second, *steps = summary(made, Kernel(), path).splitlines()
    assert first.startswith(f"{path}: ")
    assert first.endswith(f" kB, {len(made.modules)} modules, {made.stamp}")
    assert second.endswith("GPU off, internet off")
    assert [step[:6] for step in steps] == ["1. rep", "2. kag"]
    assert summary(made, Kernel("me"), path).endswith(f"\n1. kaggle kernels push -p {path.parent}")


def test_the_summary_suggests_what_cifar10_needs(tmp_path: Path) -> None:
    made, kernel = make(tmp_path, dataset="cifar10"), Kernel("me")
    said = summary(made, kernel, write(made, kernel, tmp_path / "out"))
    assert "--dataset OWNER/SLUG" in said
    assert "pass --gpu" in said
    assert "parameters set: dataset = 'cifar10'\n" in said
    assert "internet off, datasets" not in said
    kernel = Kernel("me", datasets=["a/b", "c/d"], gpu=True)
    said = summary(made, kernel, write(made, kernel, tmp_path / "out"))
    assert "GPU on, internet off, datasets a/b, c/d\n1. kaggle kernels push" in said


def test_a_dataset_that_is_not_read_is_refused(tmp_path: Path) -> None:
    cells = [new_code_cell("rate = 1", metadata={"tags": ["parameters"]}), new_code_cell("1")]
    for source, refused in (("1", True), ("open('/kaggle/input/x')", False)):
        cells[1].source = source
        nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
        made, kernel = bundle(tmp_path / "a.ipynb"), Kernel("me", datasets=["a/b"], title="title")
        if refused:
            with pytest.raises(ValueError, match="dataset is 'a/b', but a reads no dataset"):
                write(made, kernel, tmp_path / "out")
        else:
            write(made, kernel, tmp_path / "out")


def test_a_wheel_is_a_dataset(tmp_path: Path) -> None:
    wheel = tmp_path / "astkit-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    made, kernel = make(tmp_path), Kernel("me", wheel=wheel)
    path = write(made, kernel, tmp_path / "out")
    about = json.loads((path.parent / "dataset" / "dataset-metadata.json").read_text())
    assert about["id"] == "me/astkit-wheel"
    assert (path.parent / "dataset" / wheel.name).read_bytes() == b"wheel"
    values = json.loads((path.parent / "kernel-metadata.json").read_text())
    assert values["dataset_sources"] == ["me/astkit-wheel"]
    said = summary(made, kernel, path)
    assert f"kaggle datasets create -p {path.parent / 'dataset'}" in said
    assert said.splitlines()[0].endswith(f" kB, {wheel.name}")
    code = "".join(cell.source for cell in nbformat.read(path, 4).cells)
    assert 'install("astkit-1-py3-none-any.whl", ' in code
    assert "use(Path" not in code
