"""Several processes train as one does: gradients, plans, counts, resumed runs, and what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from astkit import (
    Budget,
    CachedLoss,
    Checkpoints,
    Gate,
    InfoBatch,
    Rho,
    SampleBySampleTrainer,
    TrainConfig,
    Trainer,
)
from astkit import distributed as several
from tests.trainers.worlds import (
    CRITERION,
    Ended,
    asked,
    built,
    flat,
    gated,
    in_world,
    joined,
    looped,
    network,
    numbers,
    trained,
)

ROOT = Path(__file__).parents[2]
PLANNING = ("auto", "cached_loss", "infobatch", "seta", "random", "weighted")
GIVEN: dict[str, Any] = {"random": {"rate": 0.4}, "weighted": {"weights": torch.arange(96)}}
CHOOSING = ("gradnorm_is", Rho(torch.zeros(96)), "selective_backprop")


def everything() -> tuple[Any, ...]:
    """One short run of each kind, for the fast test."""
    planned = trained(InfoBatch(), {"validation": numbers(50, seed=1)})
    after = trained(Gate(0.3, fallback=0), {"dtype": torch.float64, "epochs": 1})
    return planned, after, looped(CachedLoss(0.5)), gated(Gate(0.3, fallback=0), 8), asked()


def gradient(found: list[dict[str, Any]], step: int, dtype: torch.dtype) -> Tensor:
    """Weights after one step of one process on the rows that all processes selected."""
    model, data = network(dtype, wrapped=False), numbers(96, dtype)
    loss, total = torch.zeros((), dtype=dtype), 0.0
    for each in found:
        rows, (weight, normaliser, _) = torch.tensor(each["rows"][step]), each["seen"][step]
        x, y = data[rows]
        loss = loss + (CRITERION(model(x), y) * weight.to(dtype)).sum()
        total += normaliser
    (loss / total).backward()
    return torch.cat([(p.detach() - p.grad).flatten() for p in model.parameters()])


def test_two_processes_train_as_one_does() -> None:
    (plan, gate, loop, loose, features), *rest = in_world(1, everything)
    assert not rest
    found = in_world(2, everything)
    for planned, after, own, light, asked_for in found:
        assert (planned["weights"] - plan["weights"]).abs().max() < 1e-12
        assert planned["validated"] == pytest.approx(plan["validated"], rel=1e-6)
        for part in ("samples", "flops", "flops_dense"):
            assert planned["ledger"][part] == plan["ledger"][part]
        assert torch.equal(planned["policy"]["losses"], found[0][0]["policy"]["losses"])
        assert torch.allclose(planned["policy"]["losses"], plan["policy"]["losses"])
        assert [s[2] for s in after["seen"]] == [s[2] for s in gate["seen"]]
        assert (after["weights"] - gate["weights"]).abs().max() < 1e-12
        assert (own - loop).abs().max() < 1e-12
        assert light == loose
        torch.testing.assert_close(asked_for, features)
    for step, rows in enumerate(plan["rows"]):
        assert joined(planned["rows"][step] for planned, *_ in found) == rows


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("policy", [None, Gate(0.2), *CHOOSING])
def test_gradients_are_those_of_one_process_on_the_same_rows(
    world: int, dtype: torch.dtype, policy: Any
) -> None:
    if policy == "selective_backprop":
        policy = {"name": policy, "start": 0, "end": 1}
    config = TrainConfig(clip_norm=None, schedule="constant")
    options = {"dtype": dtype, "budget": Budget(steps=1), "epochs": None, "config": config}
    found = in_world(world, trained, policy, options)
    expected = gradient(found, 0, dtype)
    scale = max(1.0, float(expected.abs().max()))
    for each in found:
        assert each["spent"] == 1
        error = (each["weights"] - expected).abs().max()
        assert error < scale * (1e-6 if dtype == torch.float32 else 1e-12)
    rows = joined(each["rows"][0] for each in found)
    assert policy is not None or len(rows) == len(set(rows)) == 24


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("policy", PLANNING)
def test_a_planning_policy_makes_the_same_plans_in_any_number_of_processes(
    world: int, policy: str
) -> None:
    options = {"name": policy, **GIVEN.get(policy, {})}
    # 24 rows in 5 processes are unequal shares; of fewer than 5 rows, some are repeated
    settings = {"epochs": 4, "validation": numbers(50, seed=1)}
    (one,) = in_world(1, trained, options, settings)
    many = in_world(world, trained, options, settings)
    for each in many:
        assert (each["weights"] - one["weights"]).abs().max() < 1e-9
        assert each["validated"] == pytest.approx(one["validated"], rel=1e-6)
    for step, rows in enumerate(one["rows"]):
        together = joined(each["rows"][step] for each in many)
        assert together == rows or (len(rows) < world and set(together) == set(rows))


# --- resumed


def stopped(folder: Path, policy: Any, steps: int, options: dict[str, Any]) -> list[list[int]]:
    """Rows of a run that is stopped after ``steps`` batches, with a checkpoint there."""
    trainer = built(policy, checkpoints=Checkpoints(folder, every=steps), **options)
    for record in trainer.steps():
        if record.step == steps:
            break
    return trainer.rows


def resumed(folder: Path, policy: Any, options: dict[str, Any]) -> dict[str, Any]:
    return trained(policy, {**options, "checkpoints": folder, "resume": True})


@pytest.mark.parametrize(
    ("worlds", "policy", "steps"),
    [
        ((2, 1), "infobatch", 7),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in [
                ((3, 1), "auto", 7),
                ((1, 3), "auto", 8),  # 8 batches are two epochs
                ((2, 3), "infobatch", 7),
                ((3, 3), "cached_loss", 4),
                ((3, 1), None, 6),
            ]
        ),
    ],
)
def test_a_run_resumes_in_another_number_of_processes(
    worlds: tuple[int, int], policy: str | None, steps: int, tmp_path: Path
) -> None:
    config = TrainConfig(accumulation_steps=3, micro_batch=5)
    options: dict[str, Any] = {"epochs": 4, "validation": numbers(50, seed=1), "config": config}
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
    stop = options.pop("stop", None)
    trainer = built(model=in_shards(), **options)
    for _ in islice((r for r in trainer.steps() if r.phase == "train"), stop):
        pass
    weights = several.whole(dict(trainer.model.named_parameters()))
    return {
        "weights": torch.cat([w.detach().flatten() for w in weights.values()]),
        "samples": trainer.ledger.samples,
    }


@pytest.mark.parametrize(
    "policy", [Gate(0.4, fallback=0), pytest.param("infobatch", marks=pytest.mark.full)]
)
def test_fully_shard_trains_and_resumes(policy: Any, tmp_path: Path) -> None:
    options = {"epochs": 3, "validation": numbers(50, seed=1), "policy": policy}
    (one,) = in_world(1, sharded, options)
    in_world(2, sharded, {**options, "checkpoints": tmp_path, "stop": 7})
    for each in in_world(2, sharded, {**options, "checkpoints": tmp_path, "resume": True}):
        assert (each["weights"] - one["weights"]).abs().max() < 1e-9
        for count in ("scored", "trained", "unloaded", "evaluated"):
            assert getattr(each["samples"], count) == getattr(one["samples"], count)


# --- what fails


def idle(rank: int) -> tuple[Any, ...]:
    """Training in which no row of process ``rank`` reaches the threshold after the first step."""

    def score(outputs: Any, targets: Any, inputs: Any) -> Any:
        return 5.0 * (several.rank() != rank) + 0.01 * inputs[:, 0].abs()

    trainer = built(Gate(0.5, score=score, fallback=0), budget=Budget(steps=20), epochs=None)
    trainer.run()
    rows = [int((result.selection.weight > 0).sum()) for result in trainer.results]
    return rows, flat(trainer.model), trainer.ledger.samples


@pytest.mark.full
def test_a_process_whose_rows_are_never_selected_takes_part() -> None:
    (used, weights, counts), (unused, same, _) = in_world(2, idle, 1, timeout=30)
    assert torch.equal(weights, same)
    assert sum(unused[1:]) == 0 < min(used)
    assert counts.trained == sum(used) + sum(unused)
    assert counts.padded == unused.count(0)


def with_loader(uneven: bool) -> Any:
    data = numbers(96)
    sampler: Any = DistributedSampler(data, shuffle=not uneven)
    if uneven and several.rank():
        sampler = list(sampler)[:-9]
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    trainer = Trainer(network(), loader, data, policy=Gate(0.5), epochs=2)
    trainer.run()
    return flat(trainer.model), trainer.ledger.samples, sampler.epoch


@pytest.mark.full
def test_a_dataloader_yields_the_share_of_its_process() -> None:
    (weights, counts, epoch), (same, *_) = in_world(2, with_loader, False)
    assert torch.equal(weights, same)
    assert (counts.scored, epoch) == (192, 1)
    with pytest.raises(Ended, match="1 of 2 processes have a batch 5 in epoch 0"):
        in_world(2, with_loader, True)


def diverged(folder: Path, case: str) -> str:
    """What a process is told that resumes another state than process 0."""
    first = several.rank() == 0
    options: dict[str, Any] = {"checkpoints": folder / ("shared" if first else "own")}
    if case == "folders":  # process 0 alone writes checkpoints
        stopped(folder / "shared", None, 4, {})
    else:
        options["config"] = TrainConfig(seed=several.rank())
    try:
        built(None, resume=case == "folders", **options)
        return "nothing was refused"
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("case", ["folders", "settings"])
def test_processes_that_would_start_differently_are_refused(case: str, tmp_path: Path) -> None:
    found = in_world(2, diverged, tmp_path, case)
    assert found[0] == found[1]
    assert "process 1 has other settings than process 0, or resumes another" in found[0]


def refused() -> list[str]:
    """The sentences about what is not possible in several processes."""
    data, plain = numbers(), network(wrapped=False)
    own = DataLoader(data, batch_size=8)
    spread = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    steered = Trainer(network(), data, policy=Gate(0.5), epochs=1)
    shards, small = in_shards(), TrainConfig(micro_batch=2)
    cases = [
        lambda: Trainer(plain, data, epochs=1),
        lambda: Trainer(network(), own, epochs=1),
        lambda: Trainer(network(), data, own, epochs=1).evaluate(spread),
        lambda: SampleBySampleTrainer(network(), data, policy=Gate(0.5), epochs=1),
        lambda: steered.steer("rate", 0.2),
        lambda: Trainer(shards, data, epochs=1, config=small),
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
        "2 processes cannot train sample by sample",
        "rate cannot be changed while 2 processes train",
        "a model with fully_shard needs equally many passes",
    )
    found = in_world(2, refused)
    assert found[0] == found[1]
    for sentence, part in zip(found[0], expected, strict=True):
        assert part in sentence


# --- the page


def script() -> str:
    """The script of docs/distributed.md."""
    page = (ROOT / "docs" / "distributed.md").read_text()
    return page.partition("```python\n")[2].partition("```")[0]


@pytest.mark.full
def test_the_script_of_the_page_runs_with_torchrun(tmp_path: Path) -> None:
    assert len(script().splitlines()) <= 30
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
