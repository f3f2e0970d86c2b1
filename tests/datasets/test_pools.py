"""Pools of data in files: what is read of each row, and written of those that are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from astkit.datasets import pools


def put(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def test_a_column_is_read_alike_in_both_files(tmp_path: Path) -> None:
    pool = put(tmp_path / "pool.csv", "size,place,y\n10,1,a\n9,unknown,b\n,2,a\n")
    target = put(tmp_path / "target.csv", "place,size,y\n1,10,b\n2,9,a\n")
    train, wanted, _, names = pools.tables(pool, target, "y")
    assert names == ["size", "place"]
    assert train.tensors[0].nan_to_num(-7).tolist() == [[10, 0], [9, 2], [-7, 1]]
    assert wanted.tensors[0].tolist() == [[10, 0], [9, 1]]
    assert (train.tensors[1].tolist(), wanted.tensors[1].tolist()) == ([0, 1, 0], [1, 0])
    put(pool, "x,y\n1,0.5\n2,1\n")
    put(target, "x,y\n1,3\n")
    assert pools.tables(pool, target, "y")[0].tensors[1].tolist() == [[0.5], [1.0]]


def test_chosen_rows_are_written_as_they_are(tmp_path: Path) -> None:
    text = 'a,a,,x\n1,NA,3,\n\n01,"t,\n",1e3,\u2028\n7,7,7,7\n'
    path = put(tmp_path / "pool.csv", text, "utf-8-sig")
    _, _, lines, _ = pools.tables(path, path, None)
    expected = 'a,a,,x\n01,"t,\n",1e3,\u2028\n1,NA,3,\n'
    assert lines(torch.tensor([1, 0])) == expected


@pytest.mark.parametrize(
    ("text", "encoding", "words"),
    [
        ("a,b\n1,2,3\n4,5,6\n", "utf-8", r"as its header \(.*Expected 2 fields in line 2, saw 3\)"),
        ("a,b\n1,\xe9\n", "latin-1", "is no table in UTF-8"),
        ("", "utf-8", "No columns to parse from file"),
        ("y\n1\n", "utf-8", "has no columns but the one of --label"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(
    text: str, encoding: str, words: str, tmp_path: Path
) -> None:
    path = put(tmp_path / "pool.csv", text, encoding)
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
