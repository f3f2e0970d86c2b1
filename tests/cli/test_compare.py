"""The command line: what it writes, what it skips, and how it says no."""

from __future__ import annotations

import json

import pytest
import torch

from astkit.cli import main
from astkit.runs import arms, compare
from tests.cli.refusals import refused

ARMS = "dense; batched gate ;random; dense, equal FLOPs"


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "report.json"


def run(out, *options, names=ARMS):
    arguments = ["compare", names, "--dataset", "digits", "--out", str(out), "--threads", "1"]
    return main([*arguments, "--epochs", "0.2", *options])


def test_compare_writes_results_settings_and_stamp(out, capsys):
    assert run(out, "--target-rate", "0.25", "--lr", "0.01", "--seeds", "0,7") == 0
    report = json.loads(out.read_text())
    expected = [name.strip() for name in ARMS.split(";")]
    assert [(r["seed"], r["arm"]) for r in report["results"]] == [
        (seed, name) for seed in (0, 7) for name in expected
    ]
    settings = report["settings"]
    assert (settings["dataset"], settings["epochs"]) == ("digits", 0.2)
    assert settings["gate"]["target_rate"] == 0.25
    assert settings["config"]["lr"] == 0.01
    assert torch.__version__.startswith(report["stamp"]["torch"])
    assert report["stamp"]["threads"] == 1
    assert {result["threads"] for result in report["results"]} == {1}
    assert torch.get_num_threads() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"{name}, seed {seed}" for seed in (0, 7) for name in expected
    ]


def test_fast_leaves_the_switches_to_the_machine(out):
    run(out, "--fast", "--precision", "fp32", names="dense")
    report = json.loads(out.read_text())
    config = report["settings"]["config"]
    assert (config["compile"], config["prefetch"], config["allocator"]) == ("auto",) * 3
    assert config["precision"] == "fp32"
    decided = {d["name"] for d in report["results"][0]["setting_up"]["decisions"]}
    assert {"compile", "prefetch", "channels_last"} <= decided


def test_a_second_call_skips_what_is_there(out, monkeypatch, capsys):
    run(out, names="dense")
    before = out.read_bytes()

    def forbidden(*arguments):
        raise AssertionError("this arm was there already")

    with monkeypatch.context() as patch:
        patch.setattr(arms, "run", forbidden)
        assert run(out, names="dense") == 0
    assert out.read_bytes() == before
    assert run(out, names="dense; random") == 0
    report = compare.load(out)
    assert [result["arm"] for result in report["results"]] == ["dense", "random"]
    assert report["results"][0] == json.loads(before)["results"][0]


def test_options_reach_the_task(out, monkeypatch):
    tasks = []

    def run_all(task, names, seeds, path):
        tasks.append((task, names, seeds, path))
        return {"results": []}

    monkeypatch.setattr(compare, "run_all", run_all)
    options = {
        "--model": "simple_cnn",
        "--score": "loss_and_contrast",
        "--controller": "top_k",
        "--precision": "bf16",
        "--seeds": "3, 4",
    }
    run(out, *(part for option in options.items() for part in option))
    run(out)
    (task, names, seeds, path), (preset, *_) = tasks
    assert (task.model, task.epochs) == ("simple_cnn", 0.2)
    assert task.gate == {
        "target_rate": 0.1,
        "score": "loss_and_contrast",
        "controller": "top_k",
    }
    assert task.config.precision == "bf16"
    assert names == ["dense", "batched gate", "random", "dense, equal FLOPs"]
    assert (seeds, path) == ([3, 4], out)
    assert preset.model == arms.PRESETS["digits"]["model"]
    assert preset.config.lr == arms.PRESETS["digits"]["config"]["lr"]


def test_a_score_may_be_a_weighted_sum(out):
    score = "loss+.5*el2n"
    assert run(out, "--score", score, "--epochs", "0.1", names="batched gate") == 0
    report = compare.load(out)
    assert report["settings"]["gate"]["score"] == score


def test_batches_can_be_timed_afterwards(out):
    names = "dense; sample by sample, per sample"
    assert run(out, "--time", "2", "--epochs", "0.1", names=names) == 0
    report = compare.load(out)
    assert [row["arm"] for row in report["batches"]] == names.split("; ")
    assert {row["rounds"] for row in report["batches"]} == {2}
    assert len(report["results"]) == 2


def test_what_cannot_be_is_refused_in_one_line_before_any_arm_is_trained(out, capsys):
    fixed = ["--dataset", "digits", "--out", out, "--epochs", "0.2"]
    for options, sentence in (
        (["--epochs", "0"], "budget epochs is 0.0"),
        (["--epochs", "nan"], "budget epochs is nan"),
        (["--lr", "0"], "lr is 0.0: give a learning rate above 0"),
        (["--lr", "nan"], "lr is nan: give a learning rate above 0"),
        (["--target-rate", "0"], "target_rate is 0.0, but a rate is a share"),
        (["--target-rate", "1.5"], "target_rate is 1.5, but a rate is a share"),
        (["--threads", "0"], "--threads is 0: give 1 or more"),
    ):
        assert refused(capsys, "compare", ARMS, *fixed, *options).startswith(sentence)
    for names, sentence in (
        ("dense; sparse", "unknown arm 'sparse': choose one of dense"),
        ("dense; dense, equal FLOPs", "arm 'dense, equal FLOPs' needs a result of 'batched gate'"),
        ("", "unknown arm ''"),
        ("dense;", "unknown arm ''"),
    ):
        assert refused(capsys, "compare", names, *fixed).startswith(sentence)
    assert not out.exists()


def test_arguments_that_it_does_not_know_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dense = ["compare", "dense", "--out", "x"]
    for arguments, sentence in (
        ([], "required: COMMAND"),
        (["train"], "invalid choice: 'train'"),
        (["compare", "dense"], "required: --out"),
        ([*dense, "--dataset", "mnist"], "invalid choice: 'mnist'"),
        ([*dense, "--model", "resnet"], "invalid choice: 'resnet'"),
        ([*dense, "--precision", "fp8"], "invalid choice: 'fp8'"),
        ([*dense, "--momentum", "0.9"], "unrecognized arguments"),
        ([*dense, "--seeds", "0,,1"], "'0,,1': give whole numbers"),
        ([*dense, "--score", "lose"], "unknown score 'lose': choose one of"),
        ([*dense, "--score", "loss - contrast"], "score 'loss - contrast' is not a weighted sum"),
        ([*dense, "--score", "0*loss"], "got the weights [0.0]"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            main(arguments)
        assert exit_info.value.code == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_other_settings_do_not_go_into_the_same_file(out, capsys):
    run(out, names="dense")
    before = out.read_bytes()
    capsys.readouterr()
    same = ["compare", "random", "--dataset", "digits", "--out", out, "--epochs", "0.2"]
    assert "made with another config" in refused(capsys, *same, "--lr", "0.5")
    assert out.read_bytes() == before


def test_absent_data_are_refused(out, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("ASTKIT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        main(["compare", "dense", "--out", str(out), "--root", str(tmp_path)])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("astkit: ")
    assert str(tmp_path) in error


def test_help_names_the_arms(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["compare", "--help"])
    assert exit_info.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(arm in text for arm in arms.ARMS)
