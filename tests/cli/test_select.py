"""`astkit select`: what it chooses from files of each kind, and what it refuses."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from astkit.cli import main
from tests.aim.conftest import fewer_trees  # noqa: F401 (fixture)
from tests.cli.refusals import refused

POOL, TARGET = 600, 150


def selected(capsys, pool: Path, target: Path, out: Path, *more: str) -> list[str]:
    """What the command prints."""
    assert main(["select", str(pool), "--target", str(target), "--out", str(out), *more]) == 0
    return capsys.readouterr().out.splitlines()


def table(rows: int, seed: int, other: float) -> pd.DataFrame:
    """Rows whose price follows another law in the first share ``other``."""
    draw = np.random.default_rng(seed)
    size, sign = draw.normal(size=rows), np.where(np.arange(rows) < other * rows, -1, 1)
    place = draw.choice(["town", "field, wide"], rows)
    price = sign * size + (place == "town") + 0.1 * draw.normal(size=rows)
    return pd.DataFrame({"size": size.round(4), "place": place, "price": price.round(4)})


def test_rows_of_a_table_are_chosen_by_the_law_of_the_target(tmp_path: Path, capsys) -> None:
    pool, target, out = (tmp_path / name for name in ("pool.csv", "target.csv", "chosen.csv"))
    table(POOL, 0, 0.5).to_csv(pool, index=False)
    table(TARGET, 1, 0.0).to_csv(target, index=False)
    said = selected(capsys, pool, target, out, "--label", "price")
    assert re.match(r"forecast: \+\d.* % of the RMSE from choosing by the target; ", said[0])
    lines = pool.read_text().splitlines()
    chosen = out.read_text().splitlines()
    assert said[1] == f"{len(chosen) - 1:,} distinct rows of {POOL:,} in {out}"
    assert chosen[0] == lines[0]
    places = [lines.index(line) for line in chosen[1:]]  # rows are written as they were
    assert places == sorted(set(places))  # in order, and none twice
    assert np.mean(np.array(places) > POOL / 2) > 0.8  # of 0.5 in the pool


def test_a_column_that_tells_all_rows_apart_is_named(tmp_path: Path, capsys) -> None:
    pool, target, out = (tmp_path / name for name in ("pool.csv", "target.csv", "chosen.csv"))
    for path, rows, other, first in ((pool, POOL, 0.5, "2024"), (target, TARGET, 0.0, "2025")):
        frame = table(rows, len(first), other)
        frame.insert(1, "day", pd.date_range(first, periods=rows, freq="h").astype(str))
        frame.to_csv(path, index=False)
    said = selected(capsys, pool, target, out, "--label", "price")
    assert said[0] == "not compared, since they tell nearly every row apart: day"
    assert re.match(r"forecast: \+\d.* % of the RMSE from choosing by the target; ", said[1])


def test_weights_are_a_column_for_other_libraries(tmp_path: Path, capsys) -> None:
    pool, target, out = (tmp_path / name for name in ("pool.csv", "target.csv", "all.csv"))
    frame = table(POOL, 0, 0.5)
    frame.loc[3, "place"] = 'a "quoted\nplace'
    pool.write_bytes(frame.to_csv(index=False, lineterminator="\r\n").encode())
    table(TARGET, 1, 0.0).to_csv(target, index=False)
    said = selected(capsys, pool, target, out, "--label", "price", "--weights")
    assert said[-1].startswith(f"{POOL:,} rows in {out}, by their weights worth ")
    found = pd.read_csv(out)
    pd.testing.assert_frame_equal(found.drop(columns="weight"), pd.read_csv(pool))
    assert found["weight"].mean() == pytest.approx(1, rel=1e-4)
    assert found["weight"][POOL // 2 :].sum() > 0.75 * POOL
    assert out.read_bytes().count(b"\r\n") == pool.read_bytes().count(b"\r\n")
    frame.to_parquet(tmp_path / "pool.parquet")
    packed = tmp_path / "all.parquet"
    selected(capsys, tmp_path / "pool.parquet", target, packed, "--label", "price", "--weights")
    assert pd.read_parquet(packed)["weight"].to_numpy() == pytest.approx(found["weight"], rel=0.3)
    refusing = ("--label", "price", "--weights", "--out", tmp_path / "again.csv")
    assert "already: rename it" in refused(capsys, "select", out, "--target", target, *refusing)


def test_all_rows_are_kept_where_the_forecast_cannot_tell(tmp_path: Path, capsys) -> None:
    pool, target, out = (tmp_path / name for name in ("pool.csv", "target.csv", "chosen.csv"))
    table(POOL, 0, 0.0).to_csv(pool, index=False)
    moved = table(TARGET, 1, 0.0)
    moved.assign(size=moved["size"] + 1, price=moved["price"] + 1).to_csv(target, index=False)
    said = selected(capsys, pool, target, out, "--label", "price")
    assert said[0].startswith("forecast: cannot tell, ")
    assert said[1] == f"{POOL:,} distinct rows of {POOL:,} in {out}"
    assert out.read_text() == pool.read_text()


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_lines_of_text_are_chosen_by_their_words(suffix: str, tmp_path: Path, capsys) -> None:
    draw = random.Random(0)

    def text(kind: str) -> str:
        words = " ".join(f"{kind}{draw.randrange(50)}" for _ in range(8))
        return words if suffix == ".txt" else json.dumps({"text": words, "from": "here"})

    pool, target, out = (tmp_path / f"{name}{suffix}" for name in ("pool", "target", "chosen"))
    pool.write_text("\n".join(text("a" if row % 3 else "b") for row in range(POOL)))
    target.write_text("\n".join(text("b") for _ in range(TARGET)))
    said = selected(capsys, pool, target, out)
    assert "weights assume that these follow inputs as before" in said[0]
    chosen = out.read_text().splitlines()
    assert set(chosen) <= set(pool.read_text().splitlines())
    assert 0.7 * POOL / 3 < len(chosen) < 1.3 * POOL / 3
    assert np.mean(["b1" in line or "b2" in line for line in chosen]) > 0.9
    said = selected(capsys, pool, target, out, "--rows", "1000")
    written = out.read_text().splitlines()
    assert len(written) == 1000
    assert said[1].endswith("1,000 with repeats")


def test_a_folder_of_images_gives_paths(tmp_path: Path, capsys) -> None:
    draw = np.random.default_rng(0)
    for name, count in (("pool", 240), ("target", 110)):
        for number in range(count):
            dark = name == "target" or number % 2
            pixels = draw.integers(0, 60, (8, 8, 3)) + (0 if dark else 150)
            path = tmp_path / name / ("dark" if dark else "light") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    out = tmp_path / "chosen.txt"
    selected(capsys, tmp_path / "pool", tmp_path / "target", out)
    paths = [Path(line) for line in out.read_text().splitlines()]
    assert 90 < len(paths) < 190
    assert np.mean([path.parent.name == "dark" for path in paths]) > 0.8


def test_it_refuses_in_one_sentence(tmp_path: Path, capsys) -> None:
    pool, small, other = (tmp_path / name for name in ("pool.csv", "small.csv", "other.csv"))
    table(POOL, 0, 0.5).to_csv(pool, index=False)
    table(20, 1, 0.0).to_csv(small, index=False)
    other.write_text("size,colour\n1,2\n")
    words = tmp_path / "words.csv"
    words.write_text("size,row\n" + "".join(f"{row % 7},w{row}\n" for row in range(120)))
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"words": 1}\n')
    for arguments, sentence in (
        ((pool, "--target", "nowhere.csv"), "target: nowhere.csv is no file: give a CSV"),
        ((pool, "--target", tmp_path), "are not both tables (.csv, .parquet), .jsonl or"),
        ((pool, "--target", small), "the target has 20 rows, too few"),
        ((pool, "--target", other, "--label", "size"), "the target has 1 rows, too few"),
        ((words, "--target", words, "--label", "row"), "'row' has 120 different values, more than"),
        ((lines, "--target", lines), "has the line '{\"words\": 1}': give objects"),
        ((lines, "--target", lines, "--label", "text"), "only a table has columns"),
        ((pool, "--target", small, "--rows", "0"), "--rows is 0: give a whole number of 1 or more"),
        ((pool, "--target", small, "--rows", "9", "--weights"), "drawn or weighted, give one"),
        ((tmp_path / "out.csv", "--target", small), "out.csv, which is read: name another file"),
    ):
        assert sentence in refused(capsys, "select", *arguments, "--out", tmp_path / "out.csv")
