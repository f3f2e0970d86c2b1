"""Pools of data in files: what is read of each row, and written of those that are chosen."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from astkit.datasets import pools


def put(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def chosen(pool: pools.Pool, *rows: int) -> bytes:
    """The file of these rows."""
    return b"".join(pool.lines(torch.tensor(rows)))


def test_a_column_is_read_alike_in_both_files(tmp_path: Path) -> None:
    """By its name; words by their number in the pool, days since 1970."""
    pool = put(
        tmp_path / "pool.csv", "size,place,day,y\n10,b,1970-01-03,u\n9,a,,v\n,b,1970-01-04,u\n"
    )
    target = put(tmp_path / "target.csv", "place,size,day,y\nc,7 kg,1970-01-05,v\na,9,,u\n")
    made = pools.tables(pool, target, "y")
    assert made.names == ["size", "place", "day"]
    assert made.rows.tensors[0].nan_to_num(-7).tolist() == [[10, 0, 2], [9, 1, -7], [-7, 0, 3]]
    assert made.target.tensors[0].nan_to_num(-7).tolist() == [[-7, -7, 4], [9, 1, -7]]
    assert [part.tensors[1].tolist() for part in (made.rows, made.target)] == [[0, 1, 0], [1, 0]]
    assert made.notes == [
        "target: column 'size': cells that are no number count as missing: '7 kg' in row 1"
    ]


def test_a_label_of_decimals_is_a_regression_and_one_stray_word_changes_nothing(
    tmp_path: Path,
) -> None:
    lines = [f"{row},{row / 2 if row != 3 else '-'}\n" for row in range(80)]
    path = put(tmp_path / "pool.csv", "x,y\n" + "".join(lines))
    made = pools.tables(path, path, "y")
    assert made.rows.tensors[1].shape == (79, 1)
    assert made.rows.tensors[1][:4, 0].tolist() == [0, 0.5, 1, 2]
    assert made.notes == ["1 row without 'y': left out"] * 2
    assert chosen(made, 3) == b"x,y\n4,2.0\n"  # rows keep their numbers in the file


@pytest.mark.parametrize(
    ("encoding", "end"),
    [("utf-8", "\n"), ("utf-8-sig", "\r\n"), ("utf-16", "\n"), ("cp1252", "\r")],
)
def test_chosen_rows_are_written_as_they_are(encoding: str, end: str, tmp_path: Path) -> None:
    """Quotes, spaces, empty cells, zeros in front, line ends within cells, and all bytes."""
    first, second = f'"1", NA,3,"ü{end}ü"', ' 01,"t,"" ",1e3,'
    text = end.join(["a,b,c,d", first, "", second, "7,7,7,7,", "8,8,8,8"])
    path = put(tmp_path / "pool.csv", text, encoding)
    made = pools.tables(path, path, None)
    expected = end.join(["a,b,c,d", first, first, "7,7,7,7,", "8,8,8,8"])
    assert chosen(made, 0, 0, 2, 3).decode(encoding).splitlines() == expected.splitlines()
    assert len(made.rows) == 4


def test_packed_tables_and_parquet_are_chosen_from_alike(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.5, 2.5, 3.5], "c": ["a", "b", "a"]})
    frame.to_csv(tmp_path / "pool.csv.gz", index=False)
    frame.to_parquet(tmp_path / "pool.parquet")
    packed = pools.read_pool(tmp_path / "pool.csv.gz", tmp_path / "pool.parquet", None)
    assert chosen(packed, 0, 2) == b"x,c\n1.5,a\n3.5,a\n"
    assert torch.equal(packed.rows.tensors[0], packed.target.tensors[0])
    stored = pools.read_pool(tmp_path / "pool.parquet", tmp_path / "pool.csv.gz", None)
    (tmp_path / "out.parquet").write_bytes(chosen(stored, 1))
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "out.parquet").reset_index(drop=True),
        frame.iloc[[1]].reset_index(drop=True),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,y\n1,2,3\n4,5,6\n", "its header has 2 names, but row 1 has 3, row 2 has 3 cells"),
        ("", "is empty: give a table with a header"),
        ("y\n1\n2\n", "has no columns but the one of --label"),
        ("a,b\n1,2\n", "there is no column 'y': choose one of a, b"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = put(tmp_path / "pool.csv", text)
    with pytest.raises(ValueError, match=f"pool.csv .*{words}"):
        pools.read_pool(path, path, "y")


def test_lines_end_where_they_end(tmp_path: Path) -> None:
    said = ["one\u2028two", "three\x85\x0c", "four"]
    path = put(tmp_path / "pool.txt", "\r\n".join(said) + "\n \n", "utf-8-sig")
    assert pools.texts(path)[0] == said
    put(path, f'{{"text": "{said[0]}"}}\n', "utf-8-sig")
    assert pools.objects(path)[0] == said[:1]


@pytest.mark.parametrize("line", ['{"text": null}', '{"text": 3}', "[]", "{"])
def test_a_line_without_a_text_is_named(line: str, tmp_path: Path) -> None:
    path = put(tmp_path / "pool.jsonl", '{"text": "one"}\n' + line)
    with pytest.raises(ValueError, match=r"pool.jsonl has the line .*: give objects"):
        pools.objects(path)
