"""Images in parquet files: what unusable files say; test_sources.py reads whole ones."""

import pytest
import torch

from astkit.datasets import parquet
from astkit.datasets.parquet import image_rows

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

PIXELS = torch.zeros(3, 6, 5, dtype=torch.uint8)


def test_what_is_no_image_is_named(tmp_path):
    path = tmp_path / "1.parquet"
    for table, words in (
        ({"img": [{"bytes": b"junk"}], "label": [0]}, r"Row 0 \(in .*1.parquet\) is damaged or no"),
        ({"img": [None], "label": [1]}, r"Row 0 \(in .*\) is damaged"),
        ({"x": [1]}, "has the columns x instead of img"),
        ({"img": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}, "has no rows"),
    ):
        pq.write_table(pa.table(table), path)
        with pytest.raises(ValueError, match=words):
            list(image_rows([path], 10))
    with pytest.raises(ValueError, match="the folder has no rows"):
        next(image_rows([], 1))
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(ValueError, match="is not a complete parquet file"):
        next(image_rows([path], 1))
    with pytest.raises(ValueError, match=r"0\.parquet is missing; fetch"):
        next(image_rows([tmp_path / "0.parquet"], 1))


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_small_file_never_takes_more_than_the_limit(dictionary, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MOST_BYTES", 8 << 20)
    rows, zeros = 64, bytes(1 << 20)
    path = tmp_path / "train-0.parquet"
    table = pa.table({"img": pa.array([{"bytes": zeros}] * rows), "label": [0] * rows})
    options = {"compression": "brotli", "write_statistics": False}
    pq.write_table(table, path, use_dictionary=dictionary, **options)
    assert path.stat().st_size < 5000
    before, largest = pa.total_allocated_bytes(), []

    def decoded(data, where, remedy):
        largest.append(pa.total_allocated_bytes() - before)
        return PIXELS

    monkeypatch.setattr(parquet, "decode", decoded)
    if dictionary:  # the rows take more than the limit together, but are read one by one
        assert len(list(image_rows([path], rows))) == rows
        assert max(largest) < 8 << 20
    else:
        with pytest.raises(ValueError, match="has a row group of more than 8,388,608 bytes"):
            list(image_rows([path], rows))
