"""Arms run in turn, each result kept at once, mistakes told before anything is trained."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from astkit.datasets import Splits, load
from astkit.gating import LogIntegral
from astkit.runs import arms, compare
from astkit.trainers import Budget, TrainConfig

DIGITS = load("digits")[0]
TASK = arms.Task(
    Splits(DIGITS.subset(range(64)), DIGITS.subset(range(64, 80)), DIGITS.subset(range(80, 96))),
    "digits_cnn",
    epochs=1,
    batch_size=16,
    gate={"target_rate": 0.3},
    config=TrainConfig(lr=1e-2),
    device="cpu",
)
THREE = ["dense", "batched gate", "dense, equal FLOPs"]


@pytest.fixture
def runs(monkeypatch):
    """In the place of training: a list of what would have been trained, with its budget."""
    calls = []

    def run(task, arm, seed, budget=None, observers=(), folder=None):
        calls.append((arm, seed, budget))
        return {"arm": arm, "seed": seed, "flops": 100.0 + seed, "seconds": 1.0, "steps": []}

    monkeypatch.setattr(arms, "run", run)
    return calls


def silent(text):
    pass


def test_arms_take_turns_within_a_seed_and_get_the_budget_of_their_own_seed(runs):
    report = compare.run_all(TASK, THREE, [3, 5], announce=silent)
    assert runs == [
        ("dense", 3, None),
        ("batched gate", 3, None),
        ("dense, equal FLOPs", 3, Budget(flops=103.0)),
        ("dense", 5, None),
        ("batched gate", 5, None),
        ("dense, equal FLOPs", 5, Budget(flops=105.0)),
    ]
    assert [(r["arm"], r["seed"]) for r in report["results"]] == [call[:2] for call in runs]


def test_the_file_is_whole_after_every_arm(runs, tmp_path):
    path, held = tmp_path / "new" / "report.json", []

    def announce(text):
        held.append((text, len(compare.load(path)["results"])))

    report = compare.run_all(TASK, THREE, [0], path=path, announce=announce)
    assert held == [("seed 0: dense", 0), ("seed 0: batched gate", 1), (f"seed 0: {THREE[2]}", 2)]
    written = json.loads(path.read_text())
    assert written["results"] == report["results"]
    assert written["settings"] == json.loads(json.dumps(TASK.settings()))
    assert {"torch", "cpu", "threads", "source", "time"} <= written["stamp"].keys()
    names = sorted(entry.name for entry in path.parent.iterdir())
    assert names == [".report.json.lock", "report.json"]
    assert compare.load(tmp_path / "none.json") == {"results": []}


def test_what_is_there_is_not_run_again(runs, tmp_path):
    path = tmp_path / "report.json"
    compare.run_all(TASK, THREE[:2], [0], path=path, announce=silent)
    before = path.read_bytes()
    compare.run_all(TASK, THREE[:2], [0], path=path, announce=silent)
    assert len(runs) == 2
    assert path.read_bytes() == before
    # one arm and one seed more: only what is missing, with the kept gate's budget
    report = compare.run_all(TASK, THREE, [0, 1], path=path, announce=silent)
    assert [call[:2] for call in runs[2:]] == [(THREE[2], 0), *((arm, 1) for arm in THREE)]
    assert runs[2][2] == Budget(flops=100.0)
    assert len(report["results"]) == len(compare.load(path)["results"]) == 6


def test_what_was_done_survives_a_failure(monkeypatch, runs, tmp_path):
    path, fake = tmp_path / "report.json", arms.run

    def failing(task, arm, *rest):
        if arm == "random":
            raise FloatingPointError("the training loss became nan")
        return fake(task, arm, *rest)

    monkeypatch.setattr(arms, "run", failing)
    with pytest.raises(FloatingPointError):
        compare.run_all(TASK, ["dense", "random", "batched gate"], [0], path=path, announce=silent)
    assert [result["arm"] for result in compare.load(path)["results"]] == ["dense"]
    monkeypatch.setattr(arms, "run", fake)
    report = compare.run_all(TASK, ["dense", "random"], [0], path=path, announce=silent)
    assert [result["arm"] for result in report["results"]] == ["dense", "random"]


def test_an_interrupted_arm_resumes(monkeypatch, tmp_path):
    task, run = replace(TASK, epochs=4), arms.run
    names = ["dense", "batched gate"]
    whole = compare.run_all(task, names, [0], path=tmp_path / "whole.json", announce=silent)

    class Interrupt:
        def log(self, step, *, phase, **metrics):
            if metrics["progress"] > 0.6:
                raise KeyboardInterrupt

        def close(self):
            pass

    def interrupted(task, arm, seed, budget, observers, folder):
        return run(task, arm, seed, budget, [Interrupt()], folder)

    monkeypatch.setattr(arms, "run", interrupted)
    monkeypatch.setattr(arms, "CHECKPOINT_SECONDS", 0.0)
    path = tmp_path / "parts.json"
    with pytest.raises(KeyboardInterrupt):
        compare.run_all(task, names, [0], path=path, announce=silent)
    assert list((tmp_path / "parts" / "dense_s0" / "ckpt").iterdir())
    steps = []
    monkeypatch.setattr(arms, "run", lambda *args: steps.append(args[1]) or run(*args))
    report = compare.run_all(task, names, [0], path=path, announce=silent)
    assert steps == names
    for ours, theirs in zip(report["results"], whole["results"], strict=True):
        for name in ("arm", "test_accuracy", "flops", "samples_trained", "training_steps"):
            assert ours[name] == theirs[name]
        assert len(ours["steps"]) == len(theirs["steps"]) == ours["training_steps"]
        assert [e["val_loss"] for e in ours["epochs"]] == [e["val_loss"] for e in theirs["epochs"]]
    assert not list(tmp_path.rglob("ckpt"))
    assert len(list(tmp_path.rglob("metrics.jsonl"))) == 4


def test_a_mistake_is_told_before_anything_is_trained(runs, tmp_path):
    path, by_sample = tmp_path / "report.json", "sample by sample, per sample"
    for names, changes, sentence in (
        (["dense", "sparse"], {}, "unknown arm 'sparse'"),
        (["dense", "dense, equal FLOPs"], {}, "needs a result of 'batched gate' first"),
        (["dense, equal seconds", "batched gate"], {}, "needs a result of 'batched gate' first"),
        (["dense", "batched gate"], {"gate": {"target_rate": 2}}, "target_rate is 2"),
        (["dense", "batched gate"], {"gate": {"score": "luck"}}, "unknown score 'luck'"),
        (["dense", by_sample], {"gate": {"controller": "top_k"}}, "TopK needs a whole batch"),
        (["dense"], {"epochs": 0}, "budget epochs is 0"),
        (["dense"], {"model": "resnet"}, "unknown model 'resnet'"),
        (["dense"], {"gate": {"controller": LogIntegral(0.1)}}, "score and controller by name"),
    ):
        with pytest.raises(ValueError, match=sentence):
            compare.run_all(replace(TASK, **changes), names, [0], path=path, announce=silent)
    assert runs == []
    assert not path.exists()


def test_an_arm_may_wait_for_the_gate_of_each_seed(runs, tmp_path):
    path = tmp_path / "report.json"
    compare.run_all(TASK, ["batched gate"], [0], path=path, announce=silent)
    with pytest.raises(ValueError, match="needs a result of 'batched gate' first"):
        compare.run_all(TASK, ["dense, equal FLOPs"], [0, 1], path=path, announce=silent)
    compare.run_all(TASK, ["dense, equal FLOPs"], [0], path=path, announce=silent)
    assert [call[0] for call in runs] == ["batched gate", "dense, equal FLOPs"]


def test_results_of_other_settings_are_not_mixed(runs, tmp_path):
    path = tmp_path / "report.json"
    compare.run_all(TASK, ["dense"], [0], path=path, announce=silent)
    before = path.read_bytes()
    for changes, named in (
        ({"epochs": 3}, "epochs"),
        ({"batch_size": 8, "gate": {"target_rate": 0.2}}, "batch_size, gate"),
        ({"config": TrainConfig(lr=1e-3)}, "config"),
    ):
        with pytest.raises(ValueError, match=f"made with another {named}, so.*another file"):
            compare.run_all(replace(TASK, **changes), ["random"], [0], path=path, announce=silent)
    assert len(runs) == 1
    assert path.read_bytes() == before


def test_a_file_that_is_no_report_is_refused_and_kept(runs, tmp_path):
    path = tmp_path / "report.json"
    whole = {"arm": "dense", "seed": 0, "flops": 1.0, "seconds": 1.0}
    for content in (
        *("", "no JSON", "[]", "{}", '{"results": 3}', '{"results": [3]}', '{"results": [{}]}'),
        *(json.dumps({"results": [{**whole, key: []}]}) for key in whole),
        json.dumps({"results": [whole], "settings": [1]}),
        "[" * 100_000,
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"report\.json (is damaged|is not a report)"):
            compare.run_all(TASK, ["dense"], [0], path=path, announce=silent)
        assert path.read_text() == content
    assert runs == []


def test_a_file_belongs_to_one_comparison_at_a_time(runs, tmp_path):
    path, refused = tmp_path / "report.json", []

    def announce(text):
        with pytest.raises(ValueError, match=r"report\.json is in use by another process"):
            compare.run_all(TASK, ["random"], [0], path=path, announce=silent)
        refused.append(text)

    compare.run_all(TASK, ["dense"], [0], path=path, announce=announce)
    compare.run_all(TASK, ["random"], [0], path=path, announce=silent)
    assert len(refused) == 1
    assert [result["arm"] for result in compare.load(path)["results"]] == ["dense", "random"]


def test_what_is_no_regular_file_is_refused_before_anything_is_trained(runs, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        with pytest.raises(ValueError, match="not a regular file, so it is not overwritten"):
            compare.run_all(TASK, ["dense"], [0], path=path, announce=silent)
    assert runs == []
    assert not (tmp_path / "elsewhere").exists()


def test_results_are_found_by_arm_and_seed():
    results = [{"arm": arm, "seed": seed} for seed in (0, 1) for arm in ("dense", "random")]
    assert compare.find(results, "random", 1) is results[3]
    assert compare.find(results, "random", 2) is None
    assert compare.find([], "random", 0) is None


def test_progress_is_shown_unless_arms_are_announced(capsys):
    compare.run_all(TASK, ["random"], [0])
    shown = capsys.readouterr()
    assert shown.out.startswith("random, seed 0: epoch 1, loss ")
    announced = []
    compare.run_all(TASK, ["random"], [0], announce=announced.append)
    quiet = capsys.readouterr()
    assert announced == ["seed 0: random"]
    assert (quiet.out, quiet.err) == ("", "")


@pytest.mark.parametrize("controller", ["log_integral", "origin_pi"])
def test_batches_of_all_arms_are_timed_in_turn(controller):
    task = replace(TASK, gate={"target_rate": 0.25, "controller": controller})
    rows = compare.time_batches(task, list(arms.ARMS), rounds=3)
    assert [row["arm"] for row in rows] == list(arms.ARMS)
    assert all(row["rounds"] == 3 for row in rows)
    assert task.gate["controller"] == controller
