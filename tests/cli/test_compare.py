"""`astkit compare`: from a named data set and files to a verdict, and how it refuses."""

import json
import sys
from pathlib import Path

import pytest

from astkit import Comparison
from astkit.cli import main
from astkit.comparison import compare as comparison
from tests.cli.refusals import refused


def test_a_comparison_is_printed_as_text_or_as_json(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n" + "".join(f"{row % 7},{row % 3}.5\n" for row in range(60)))
    words = ["compare", "--csv", str(path), "--label", "b", "--policies", "cached_loss"]
    words += ["--epochs", "1", "--seeds", "1", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    report = Comparison.load(tmp_path / "out")
    assert {"dense", "cached_loss"} <= {entry["policy"] for entry in report.entries}
    end = f"\n\n{report.verdict}\n\n{report.table().to_string()}\n\npage      "
    out = capsys.readouterr().out
    assert end in out
    assert out.count(report.verdict) == 1
    assert "cached_loss" in (tmp_path / "out" / "comparison.html").read_text()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == Comparison.load(tmp_path / "out").to_json()


def test_a_target_may_be_trained_on(tmp_path, capsys):
    paths = [tmp_path / f"{name}.csv" for name in ("old", "recent")]
    for slope, path in zip((1, 3), paths, strict=True):
        rows = "".join(f"{row % 11},{slope * (row % 11) + row % 7}.5\n" for row in range(100))
        path.write_text("a,b\n" + rows)
    words = ["compare", "--csv", str(paths[0]), "--target", str(paths[1]), "--label", "b"]
    words += ["--policies", "infobatch", "--epochs", "1", "--seeds", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "rows: 100 to train on, 20 to validate, set aside of the target, 20 to test, set" in said
    assert "target alone: best at step" in said
    assert "--target is of a table" in refused(capsys, "compare", "--target", "x.csv")


def test_options_reach_the_comparison(monkeypatch, tmp_path):
    asked = {}

    def compare(**options):
        asked.update(options)
        raise ValueError("stop")

    monkeypatch.setattr(comparison, "compare", compare)
    with pytest.raises(SystemExit):
        main(["compare"])
    assert [each["name"] for each in asked["policies"]] == ["auto", "cached_loss", "infobatch"]
    assert (asked.get("budget"), asked["seeds"]) == (None, 5)
    assert asked["out"] is None
    assert len(asked["train"].data) > len(asked["validation"].data)
    words = ["--epochs", "2", "--policies"]
    words += ["gate:rate=0.25,score=margin,fallback=false,layers=[1,[2,3]],seed=null"]
    words += ["mine.py:Rule:rate=0.5", "mine.py:Rule"]
    with pytest.raises(SystemExit):
        main(["compare", *words])
    assert (asked["budget"], asked["epochs"]) == (None, 2)
    gate = {"name": "gate", "rate": 0.25, "score": "margin", "fallback": False, "seed": None}
    own = [{"name": "mine.py:Rule", "rate": 0.5}, {"name": "mine.py:Rule"}]
    assert asked["policies"] == [{**gate, "layers": [1, [2, 3]]}, *own]
    words = ["compare", "--csv", "a.csv", "--label", "y", "--test", "b.csv", "--drop", "p", "q"]
    words += ["--dtypes", "day=%d/%m/%Y", "a=b=words", "--keep", "id", "--encoding", "gbk"]
    with pytest.raises(SystemExit):
        main([*words, "--task", "classes", "--date", "day", "--groups", "owner"])
    assert (asked["train"], asked["test"]) == (Path("a.csv"), Path("b.csv"))
    assert asked["dtypes"] == {"day": "%d/%m/%Y", "a=b": "words"}
    table = {"label": "y", "task": "classes", "drop": ["p", "q"], "date": "day"}
    table |= {"groups": "owner", "in_order": False, "keep": ["id"], "encoding": "gbk"}
    assert {name: asked[name] for name in table} == table


def test_what_is_predicted_and_left_out_is_said_first(tmp_path, capsys):
    path = tmp_path / "table.csv"
    lines = [f"{row % 7},{row},{2 * row},{row % 3}\n" for row in range(60)]
    path.write_text("size,price,double,sort\n" + "".join(lines) + "n.a.,,,\n")
    words = ["compare", "--csv", str(path), "--policies", "cached_loss", "--epochs", "1"]
    assert main([*words, "--seeds", "1", "--label", "price"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:5] == [
        "regression of price: 60 rows, 2 columns",
        "column 'size': cells that are no number count as missing: 'n.a.' in row 61",
        "columns that hold the label 'price', left out: double",
        "1 row without 'price': left out",
        "rows: 43 to train on, 8 to validate, 9 to test",
    ]
    assert "RMSE" in "".join(said)
    path.write_text("a,b,b\n1,2,3,4\n")
    sentence = refused(capsys, "compare", "--csv", path, "--label", "c", lines=4)
    assert sentence.startswith(f"{path} cannot be read:\n- its header has 3 names, but row 1 has 4")


def test_mistakes_are_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASTKIT_DATA", raising=False)
    for options, sentence in (
        (["--dataset", "mnist"], "unknown task 'mnist': choose one of cifar10, digits"),
        (["--csv", "a.csv"], "--csv needs --label"),
        (["--label", "a"], "--label is of a table: give --csv too"),
        (["--in-order"], "--in-order is of a table: give --csv too"),
        (["--dtypes", "zip=words"], "--dtypes is of a table: give --csv too"),
        (["--csv", "a.csv", "--label", "a", "--dtypes", "zip"], "--dtypes zip: give a column and"),
        (["--csv", "a.csv", "--label", "a"], "a.csv is no file: give a CSV or parquet file"),
        (["--policies", "infobach"], "unknown policy 'infobach': choose one of"),
        (["--policies", "gate:0.25"], "policy gate:0.25 is '0.25': give name=value"),
        (["--policies", "gate:seed=1,seed=2"], "policy gate:seed=1,seed=2 gives seed twice"),
        (["--policies", "gate:name=random"], "policy gate:name=random gives name twice"),
        (["--policies", "random"], "policy 'random' cannot be made with {'seed': 0}"),
        (["--size", "12"], "--size is of a folder of images: give --images too"),
        (["--csv", "a.csv", "--label", "a", "--size", "0"], "--size is of a folder of images"),
        (["--epochs", "nan"], "budget epochs is nan"),
        (["--seeds", "-2"], "--seeds is -2: give a whole number of 1 or more"),
        (["-o", __file__], f"out is {__file__}, which is a file: name a folder"),
        (["--images", "nowhere"], "No class folders with"),
    ):
        assert refused(capsys, "compare", *options).startswith(sentence), options
    for arguments, sentence in (
        ([], "required: COMMAND"),
        (["train"], "invalid choice: 'train'"),
        (["compare", "--momentum", "0.9"], "unrecognized arguments"),
        (["compare", "--csv", "a", "--images", "b"], "not allowed with argument"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_what_a_library_says_is_one_line(monkeypatch, capsys):
    def diverging(**_):
        raise FloatingPointError("the training loss became nan")

    monkeypatch.setattr(comparison, "compare", diverging)
    with pytest.raises(SystemExit) as ended:
        main(["compare"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "astkit: the training loss became nan\n"
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "or the extra 'notebooks' of astkit" in refused(capsys, "compare")
