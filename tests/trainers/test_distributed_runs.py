"""Runs in several processes: resumed, sharded, killed, with a user's loaders, and refused."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from astkit import Budget, Checkpoints, Gate, SampleStep, TrainConfig, Trainer
from astkit import distributed as several
from astkit.gating import LogIntegral, OriginPI, QuantileEMA, as_policy
from astkit.trainers import Learner
from tests.trainers.worlds import (
    Ended,
    built,
    flat,
    in_world,
    joined,
    looped,
    network,
    numbers,
    trained,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "distributed.md"


def stopped(folder: Path, policy: Any, steps: int, options: dict[str, Any]) -> list[list[int]]:
    """Rows of a run that is stopped after ``steps`` batches, with a checkpoint there."""
    trainer = built(policy, checkpoints=Checkpoints(folder, every=steps), **options)
    for record in trainer.steps():
        if record.step == steps:
            break
    return trainer.step.rows


def resumed(folder: Path, policy: Any, options: dict[str, Any]) -> dict[str, Any]:
    return trained(policy, {**options, "checkpoints": folder, "resume": True})


@pytest.mark.full
@pytest.mark.parametrize(
    ("worlds", "policy", "steps"),
    [
        ((3, 1), "auto", 7),
        ((1, 3), "auto", 8),  # 8 batches are two epochs
        ((2, 3), "auto", 6),
        ((3, 1), "infobatch", 8),
        ((2, 3), "infobatch", 7),
        ((1, 3), "cached_loss", 3),
        ((3, 3), "cached_loss", 4),
        ((3, 1), None, 6),
    ],
)
def test_a_run_resumes_in_another_number_of_processes(
    worlds: tuple[int, int], policy: str | None, steps: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"epochs": 5, "validation": numbers(50, seed=1)}
    (whole,) = in_world(1, trained, policy, options)
    before = in_world(worlds[0], stopped, tmp_path, policy, steps, options)
    after = in_world(worlds[1], resumed, tmp_path, policy, options)
    first = [joined(rows) for rows in zip(*before, strict=True)]
    then = [joined(rows) for rows in zip(*(each["rows"] for each in after), strict=True)]
    assert first[:steps] + then == whole["rows"]
    for each in after:
        assert (each["weights"] - whole["weights"]).abs().max() < 1e-9
        counts = each["ledger"]["samples"]
        padded = counts.pop("padded")  # repeated rows, where a batch has fewer than processes
        assert counts.items() <= whole["ledger"]["samples"].items()
        assert padded or each["ledger"]["flops"] == whole["ledger"]["flops"]


@pytest.mark.full
def test_accumulated_gradients_are_kept_in_another_number_of_processes(tmp_path: Path) -> None:
    options = {"epochs": 3, "config": TrainConfig(accumulation_steps=3, micro_batch=5)}
    (whole,) = in_world(1, trained, "infobatch", options)
    in_world(2, stopped, tmp_path, "infobatch", 5, options)
    for each in in_world(3, resumed, tmp_path, "infobatch", options):
        assert (each["weights"] - whole["weights"]).abs().max() < 1e-9


@pytest.mark.full
def test_a_loop_of_the_users_own_resumes_between_epochs() -> None:
    for policy, world in (("auto", 2), ("cached_loss", 3), ("kakurenbo", 3)):
        (whole,) = in_world(1, looped, as_policy(policy))
        half = in_world(world, looped, as_policy(policy), 2)
        again = in_world(1, looped, as_policy(policy), 1, _plain(half[0]["state"]))
        assert (again[0]["weights"] - whole["weights"]).abs().max() < 1e-9
        for each in in_world(world, looped, as_policy(policy)):
            assert (each["weights"] - whole["weights"]).abs().max() < 1e-9
            assert abs(world * each["length"] - whole["length"]) < 4 * world  # rounds


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    names = {name.removeprefix("module."): value for name, value in state["model"].items()}
    return {**state, "model": names}


def thresholds(controller: Any, negative: bool) -> list[Any]:
    """A gate's thresholds on scores whose distribution differs between the processes."""
    gate, found = Gate(0.3, controller=controller, fallback=0), []
    for step in range(200):
        random = torch.Generator().manual_seed(step)
        scores = torch.rand(48, generator=random) * torch.linspace(0.2, 3, 48) * 0.98**step
        scores = scores - 0.1 * negative * (step > 20)
        part = several.share(48)
        chosen = gate.select(scores[part])
        found.append((gate.controller.state_dict(), (chosen.index + part.start).tolist()))
    return found


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("negative", [False, True])
def test_thresholds_are_equal_to_the_bit_and_those_of_one_process(
    world: int, negative: bool
) -> None:
    made = (LogIntegral(0.3), LogIntegral(0.3, gain="auto"), QuantileEMA(0.3), OriginPI(0.3))
    for controller in made:
        (one,) = in_world(1, thresholds, copy.deepcopy(controller), negative)
        many = in_world(world, thresholds, copy.deepcopy(controller), negative)
        for step, (state, rows) in enumerate(one):
            states = [each[step][0] for each in many]
            assert states == [states[0]] * world
            known = {name: value for name, value in state.items() if value is not None}
            assert {name: states[0][name] for name in known} == pytest.approx(known, rel=1e-9)
            padding = {rank * 48 // world for rank in range(world)}  # where none is selected
            assert set(joined(each[step][1] for each in many)) | padding == {*rows} | padding


def idle(rank: int) -> tuple[Any, ...]:
    """Training in which no row of process ``rank`` reaches the threshold after the first step."""

    def score(outputs: Any, targets: Any, inputs: Any) -> Any:
        return 5.0 * (several.rank() != rank) + 0.01 * inputs[:, 0].abs()

    gate = Gate(0.5, score=score, fallback=0)
    trainer = built(gate, budget=Budget(steps=20), epochs=None)
    begin = time.monotonic()
    trainer.run()
    rows = [int((weight > 0).sum()) for weight, *_ in trainer.step.seen]
    return rows, flat(trainer.model), time.monotonic() - begin, trainer.ledger.samples


@pytest.mark.full
def test_a_process_whose_rows_are_never_selected_takes_part() -> None:
    (used, weights, _, counts), (unused, same, seconds, _) = in_world(2, idle, 1, timeout=30)
    assert torch.equal(weights, same)
    assert seconds < 30
    assert sum(unused[1:]) == 0 < min(used)
    assert counts.trained == sum(used) + sum(unused)
    assert counts.padded == unused.count(0)


def killed(at: int, kind: str) -> None:
    trainer = built("infobatch" if kind == "trainer" else None, epochs=50)
    for record in trainer.steps():
        if several.rank() == 1 and record.step == at:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
def test_the_others_end_with_one_sentence_when_a_process_is_killed() -> None:
    begin = time.monotonic()
    with pytest.raises(Ended) as caught:
        in_world(3, killed, 5, "trainer", timeout=30)
    assert time.monotonic() - begin < 30
    first, gone, last = caught.value.answers
    assert gone is None
    for rank, answer in ((0, first), (2, last)):
        assert answer.splitlines()[0].startswith(
            f"LostProcessError: process {rank} of 3 stopped, because another one ended"
        )
        assert "resume=True" in answer.splitlines()[0]


def in_shards() -> nn.Module:
    """The network, with ``fully_shard`` applied where there are several processes."""
    from torch.distributed.fsdp import fully_shard

    model = network(wrapped=False)
    if dist.is_initialized():
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    return model


def sharded(options: dict[str, Any]) -> dict[str, Any]:
    model = in_shards()
    stop = options.pop("stop", None)
    trainer = built(model=model, **options)
    for _ in islice((r for r in trainer.steps() if r.phase == "train"), stop):
        pass
    weights = several.whole(dict(trainer.model.named_parameters()))
    return {
        "weights": torch.cat([w.detach().flatten() for w in weights.values()]),
        "ledger": trainer.ledger.state_dict(),
    }


@pytest.mark.full
@pytest.mark.parametrize("policy", ["infobatch", Gate(0.4, fallback=0)])
def test_fully_shard_works_unchanged(policy: Any, tmp_path: Path) -> None:
    options = {"epochs": 4, "validation": numbers(50, seed=1), "policy": policy}
    (one,) = in_world(1, sharded, options)
    for each in in_world(2, sharded, options):
        assert (each["weights"] - one["weights"]).abs().max() < 1e-9
        for count in ("scored", "trained", "unloaded", "evaluated"):
            assert each["ledger"]["samples"][count] == one["ledger"]["samples"][count]
        padded = each["ledger"]["samples"]["padded"]
        if not padded:
            assert each["ledger"]["flops"] == one["ledger"]["flops"]
    in_world(2, sharded, {**options, "checkpoints": tmp_path, "stop": 8})
    for each in in_world(2, sharded, {**options, "checkpoints": tmp_path, "resume": True}):
        assert (each["weights"] - one["weights"]).abs().max() < 1e-9


def with_loader(uneven: bool) -> Any:
    data = numbers(96)
    sampler = DistributedSampler(data, shuffle=not uneven)
    if uneven and several.rank():
        sampler = list(sampler)[:-9]  # type: ignore[assignment]
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    trainer = Trainer(network(), loader, data, policy=Gate(0.5), epochs=2)
    trainer.run()
    return flat(trainer.model), trainer.ledger.samples, sampler.epoch


@pytest.mark.full
def test_a_dataloader_yields_the_share_of_its_process() -> None:
    (weights, counts, epoch), (same, *_) = in_world(2, with_loader, False)
    assert torch.equal(weights, same)
    assert (counts.scored, epoch) == (192, 1)
    with pytest.raises(Ended, match="1 of 2 processes have a batch 5 in epoch 0") as caught:
        in_world(2, with_loader, True)
    assert all(answer.startswith("RuntimeError: 1 of 2") for answer in caught.value.answers)


def in_windows() -> list[Any]:
    """Gradients of windows of two batches, with and without views of DDP's buckets."""
    data, found = numbers(96), []
    for view in (False, True):
        model = nn.parallel.DistributedDataParallel(
            network(wrapped=False), gradient_as_bucket_view=view
        )
        learner = Learner(model, TrainConfig(accumulation_steps=9))
        for batch in range(4):
            if batch == 2:
                learner.updates.clear()
            with suppress(RuntimeError), learner.updates.attempt():
                learner.gradients(*data[3 * batch : 3 * batch + 2])
                raise RuntimeError  # such an attempt leaves no trace
            learner.gradients(*data[10 * batch : 10 * batch + 10])
            found.append([p.grad.clone() for p in model.parameters()])
    return found


def test_gradients_that_are_views_of_buckets_accumulate_as_others_do() -> None:
    for found in in_world(2, in_windows):
        torch.testing.assert_close(found[4:], found[:4], rtol=0, atol=1e-12)


def diverged(folder: Path, case: str) -> str:
    """What a process is told that resumes another state than process 0."""
    first = several.rank() == 0
    options: dict[str, Any] = {"checkpoints": folder / ("shared" if first else "own")}
    if case == "folders":  # process 0 alone writes checkpoints
        stopped(folder / "shared", None, 4, {})
    elif case == "missing" and not first:
        options = {}
    elif case == "settings":
        options["config"] = TrainConfig(seed=several.rank())
    try:
        built(None, resume=case == "folders", **options)
        return "nothing was refused"
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("folders", "process 1 does not resume the same checkpoint as process 0: give all"),
        ("missing", "process 1 and process 0 do not both have checkpoints: pass the folder"),
        ("settings", "process 1 has other settings than process 0"),
    ],
)
def test_processes_that_would_start_differently_are_refused(
    case: str, sentence: str, tmp_path: Path
) -> None:
    found = in_world(2, diverged, tmp_path, case)
    assert found[0] == found[1]
    assert sentence in found[0]


def refused() -> list[str]:
    """The sentences about what is not possible in several processes."""
    data, plain = numbers(), network(wrapped=False)
    own = DataLoader(data, batch_size=8)
    spread = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    steered = Trainer(network(), data, policy=Gate(0.5), epochs=1)
    copying = ("rho", "el2n_static", "proxy_topk")
    cases = [
        lambda: Trainer(plain, data, epochs=1),
        lambda: Trainer(network(), own, epochs=1),
        lambda: Trainer(network(), data, own, epochs=1).evaluate(spread),
        lambda: Trainer(network(), data, epochs=1, config=TrainConfig(precision="auto")),
        lambda: Trainer(
            network(), data, policy=Gate(0.5), epochs=1, config=TrainConfig(switch_off=True)
        ),
        lambda: Trainer(network(), data, step=SampleStep(Gate(0.5)), epochs=1),
        lambda: steered.steer("target_rate", 0.2),
        *(partial(Trainer, in_shards(), data, policy=policy, epochs=1) for policy in copying),
    ]
    found = []
    for case in cases:
        try:
            case()
            found.append("nothing was refused")
        except ValueError as error:
            found.append(str(error))
    return found


def test_what_processes_would_do_differently_is_refused() -> None:
    expected = (
        "pass DistributedDataParallel",
        "train on the same rows of the DataLoader: pass the data set instead",
        "the validation data have a DistributedSampler",
        'precision "auto" cannot be used in 2 processes',
        "switch_off cannot be used",
        "SampleStep cannot be used",
        "target_rate cannot be changed while 2 processes train",
        "Rho copies the model, which fully_shard prevents",
        "StaticEL2N copies the model, which fully_shard prevents",
        "ProxyTopK copies the model, which fully_shard prevents",
    )
    found = in_world(2, refused)
    assert found[0] == found[1]
    for sentence, part in zip(found[0], expected, strict=True):
        assert part in sentence


def script() -> str:
    """The script of docs/distributed.md."""
    return PAGE.read_text().partition("```python\n")[2].partition("```")[0]


def test_the_script_of_the_page_is_short() -> None:
    assert script().startswith("# train.py")
    assert len(script().splitlines()) <= 30


@pytest.mark.full
def test_the_script_of_the_page_runs_with_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    shown = []
    for processes in ("2", "1"):  # the second resumes the completed run
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc_per_node={processes}", "train.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == shown[1]
    assert float(shown[0].split()[0]) > 0.3
