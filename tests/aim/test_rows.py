"""Features before the first step, by kind of data."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from astkit import Loader, indexed
from astkit.aim.rows import (
    CELLS,
    FILTERS,
    IMAGES,
    TABLE,
    TEXTS,
    TOKENS,
    WINDOW,
    Rows,
    image_features,
    token_features,
)
from astkit.datasets import Images
from tests import build


def items(*each: Any) -> Dataset[Any]:
    return build.as_dataset(each)


PIXELS = torch.arange(2 * 3 * 6 * 6).reshape(2, 3, 6, 6).to(torch.uint8)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (Images(PIXELS, torch.tensor([0, 1]), ("a", "b"), "few"), IMAGES),
        (TensorDataset(PIXELS.float(), torch.tensor([0, 1])), IMAGES),
        (items((PIXELS[0], 1), (PIXELS[1], 0)), IMAGES),
        (["one text", "another"], TEXTS),
        (items(("one text", 1), ("another", 0)), TEXTS),
        (items({"text": "one text", "label": 1}, {"text": "another", "label": 0}), TEXTS),
        (TensorDataset(torch.arange(8).reshape(2, 4), torch.arange(8).reshape(2, 4)), TOKENS),
        (items(*({"tokens": torch.arange(4), "mask": torch.ones(4) > 0, "label": 1},) * 2), TOKENS),
        (
            items(*({"input_ids": torch.arange(4), "attention_mask": torch.ones(4).long()},) * 2),
            TOKENS,
        ),
        (TensorDataset(torch.rand(2, 4), torch.rand(2, 1)), TABLE),
        (TensorDataset(torch.rand(2, 4, 3), torch.rand(2)), TABLE),
        (TensorDataset(torch.rand(2, 4), torch.arange(4).reshape(2, 2), torch.rand(2)), TABLE),
        (items(*({"age": 7, "height": 1.5 + row, "label": row} for row in range(2))), TABLE),
    ],
)
def test_the_kind_follows_from_type_and_shape(data: Any, kind: str) -> None:
    for given in (data, indexed(data), Subset(data, [0, 1]), DataLoader(data, 2)):
        rows = Rows(given)
        assert rows.kind == kind
        found = rows.features(torch.tensor([1, 0, 1]))
        dense = found if isinstance(found, np.ndarray) else found.toarray()
        assert dense.shape[0] == 3
        assert dense.dtype == np.float32
        assert (dense[0] == dense[2]).all()


def test_rows_of_a_subset_are_its_own() -> None:
    x, y = torch.rand(5, 2), torch.rand(5, 1)
    rows = Rows(Subset(TensorDataset(x, y), [3, 1]))
    assert len(rows) == 2
    inputs, targets = rows.read(torch.tensor([1, 0]))
    assert inputs.equal(x[[1, 3]])
    assert targets.equal(y[[1, 3]])
    assert len(Rows(Loader(TensorDataset(x, y), 2))) == 5


def test_images_are_described_by_statistics_and_filters() -> None:
    images = torch.randint(0, 256, (3, 2, 9, 9), generator=torch.Generator().manual_seed(0))
    found, flops = image_features(images.to(torch.uint8))
    x = images / 255
    assert found[:, :2].allclose(x.mean((2, 3)))
    assert found[:, 2:4].allclose(x.std((2, 3), correction=0))
    rows, columns = (x[:, :, 1:] - x[:, :, :-1]).abs(), (x[..., 1:] - x[..., :-1]).abs()
    assert found[:, 4:8].allclose(torch.cat([rows.mean((2, 3)), columns.mean((2, 3))], 1))
    filtered = found[:, 12:].reshape(3, FILTERS, CELLS, CELLS)
    assert bool((filtered >= 0).all())
    flat, _ = image_features(torch.full((1, 2, 9, 9), 7, dtype=torch.uint8))
    inner = flat[:, 12:].reshape(FILTERS, 3, 3)[:, 1, 1]
    assert float(inner.abs().max()) < 1e-5  # filters without a mean see no edge in the middle
    assert flops == 3 * FILTERS * 2 * 2 * WINDOW**2 * 5 * 5
    again, _ = image_features(images.to(torch.uint8)[1:])
    assert again.allclose(found[1:], atol=1e-6)
    large, _ = image_features(torch.zeros(1, 2, 300, 200))
    assert large.shape[1] == found.shape[1]


def test_tokens_are_counted_in_runs() -> None:
    tokens = np.array([[5, 6, 5, 6], [1, 1, 1, 1], [5, 6, 7, 8]])
    found = token_features(tokens).toarray()
    assert np.allclose((found**2).sum(1), 1)
    counts = sorted(found[0][found[0] > 0].tolist())  # 5, 6 and 5 6 twice; 6 5, 5 6 5, 6 5 6 once
    assert counts == pytest.approx([each / 15**0.5 for each in (1, 1, 1, 2, 2, 2)])
    counts = sorted(found[1][found[1] > 0].tolist())
    assert counts == pytest.approx([each / 29**0.5 for each in (2, 3, 4)])
    shared = float(found[0] @ found[2])  # 5, 6 and 5 6
    assert shared == pytest.approx((2 + 2 + 2) / (15 * 9) ** 0.5)


def test_rows_of_transformers_may_have_any_length_and_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [[5, 6, 5, 6], [1, 1], [7]]
    rows = Rows([{"input_ids": row, "labels": row} for row in ids])
    assert rows.kind == TOKENS
    tokens, labels = rows.read(torch.arange(3))
    assert tokens.tolist() == [[5, 6, 5, 6], [1, 1, -1, -1], [7, -1, -1, -1]]
    assert labels.equal(tokens.where(tokens >= 0, -100))
    assert rows.targets(torch.tensor([1, 2])).tolist() == [[1, 1], [7, -100]]
    found = rows.features(torch.arange(3)).toarray()
    for row, own in zip(ids, found, strict=True):
        assert own == pytest.approx(token_features(np.array([row])).toarray()[0])
    longer = [row + [0] * (6 - len(row)) for row in ids]
    real = [[1] * len(row) + [0] * (6 - len(row)) for row in ids]
    both = [
        {"label": 2, "input_ids": torch.tensor(row), "attention_mask": torch.tensor(mask)}
        for row, mask in zip(longer, real, strict=True)
    ]
    masked = Rows(both)
    assert (masked.features(torch.arange(3)) != rows.features(torch.arange(3))).nnz == 0
    assert masked.targets(torch.arange(3)).tolist() == [2, 2, 2]
    monkeypatch.setattr("astkit.aim.rows.CHUNK", 2)
    assert rows.targets(torch.arange(3)).equal(labels)
    empty = token_features(np.array([[3, 4], [-1, -1]])).toarray()
    assert np.allclose((empty**2).sum(1), [1, 0])


def test_what_has_no_features_needs_a_function() -> None:
    graphs = TensorDataset(torch.rand(4, 2, 2, 2, 2))
    with pytest.raises(ValueError, match=r"no features are known .* \[2, 2, 2, 2\] a row: pass"):
        Rows(graphs).features(torch.arange(4))
    own = Rows(graphs, features=lambda x: x.flatten(1).sum(1))
    assert own.features(torch.arange(4)).shape == (4, 1)
    lost = Rows(graphs, features=lambda x: x.flatten(1).sum(1) / 0)
    with pytest.raises(ValueError, match="features gave a NaN or infinite value: give finite"):
        lost.features(torch.arange(4))
    for data in (iter([1]), []):
        with pytest.raises(ValueError, match="of which no rows can be selected: pass a map-style"):
            Rows(data)


def test_rows_are_read_without_gradients_and_bad_ones_are_named() -> None:
    x = torch.rand(4, 2, requires_grad=True)
    for data in (TensorDataset(x, x[:, :1]), items((x[0], x[0, :1]), (x[1], x[1, :1]))):
        assert not any(part.requires_grad for part in Rows(data).read(torch.tensor([0, 1])))
    with pytest.raises(ValueError, match="the target of row 0 is NaN or infinite: leave out"):
        Rows(TensorDataset(x, x[:, :1] / 0)).targets(torch.arange(4))
    with pytest.raises(ValueError, match="row 1 of the texts is nan: pass strings only"):
        Rows(["a text", float("nan")]).features(torch.arange(2))


MEMORY = """
import random, resource
from astkit import aim

words = [f"w{number}" for number in range(5000)]
draw = random.Random(0)

def text(first):
    return " ".join(draw.choices(words[first : first + 4000], k=36))

pool = [text(1000 * (row % 5 > 0)) for row in range(1_000_000)]
target = [text(0) for _ in range(1000)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = aim.weights(pool, target)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert weights[::5].mean() > 3, weights[::5].mean()
print((after - before) / 2**20)
"""


@pytest.mark.full
def test_a_million_texts_need_less_than_a_gibibyte_beside_the_data() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert float(done.stdout) < 1.0


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_that_are_kept_are_not_read_again(sparse: bool) -> None:
    texts = [f"word{row} word{row % 3}" for row in range(9)]
    read: list[Any] = []

    def known(rows: Tensor) -> Tensor:
        read.extend(rows.tolist())
        return torch.stack([rows, rows**2], 1).float()

    rows = Rows(texts) if sparse else Rows(TensorDataset(torch.zeros(9, 2)), by_row=known)
    every, few = torch.arange(9).flip(0), torch.tensor([7, 2, 4])
    expected = rows.features(every)
    rows.keep(few)
    read.clear()
    found = rows.features(every)
    assert (found != expected).sum() == 0
    assert not set(read) & {7, 2, 4}
    assert rows.features(few[:2]).shape == (2, expected.shape[1])
