"""Several processes train as one does: gradients, plans, counts, resumed runs, and what fails."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from astkit import (
    Budget,
    CachedLoss,
    Checkpoints,
    Gate,
    SampleBySampleTrainer,
    TrainConfig,
    Trainer,
)
from astkit import distributed as several
from tests.gating.policies.cells import GradNormIS, Rho, SelectiveBackprop
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
PLANNING = ("auto", "cached_loss", "infobatch", "random", "weighted")
GIVEN: dict[str, Any] = {"random": {"rate": 0.5}, "weighted": {"weights": torch.arange(96)}}
MORE = ((None, 6), ("auto", 7), ("infobatch", 8))  # 8 batches are two epochs
CHOOSING = (GradNormIS(), Rho(torch.zeros(96)), SelectiveBackprop(whole=0))


def everything() -> tuple[Any, ...]:
    """One short run of each kind, for the fast test."""
    planned = trained(CachedLoss(0.5), {"validation": numbers(50, seed=1)})
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
def test_gradients_are_those_of_one_process_on_the_same_rows(world, dtype, policy):
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
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("policy", PLANNING)
def test_a_planning_policy_makes_the_same_plans_in_any_number_of_processes(world, policy):
    options = {"name": policy, **GIVEN.get(policy, {})}
    settings = {"epochs": 2, "validation": numbers(50, seed=1)}
    (one,) = in_world(1, trained, options, settings)
    many = in_world(world, trained, options, settings)
    shared = [rows[: len(rows) // world * world] for rows in one["rows"]]
    assert [joined(rows) for rows in zip(*(e["rows"] for e in many), strict=True)] == shared
    for each in many:
        if shared == one["rows"]:  # else some were left out
            assert (each["weights"] - one["weights"]).abs().max() < 1e-9
            assert each["validated"] == pytest.approx(one["validated"], rel=1e-6)


@pytest.mark.parametrize("policy", [None, "infobatch"])
def test_rows_that_do_not_divide_are_left_out_of_an_epoch(policy: str | None) -> None:
    options = {"data": numbers(97), "epochs": 1, "validation": numbers(1, seed=1)}
    (one,) = in_world(1, trained, policy, options)
    many = in_world(3, trained, policy, options)
    whole = joined(one["rows"])
    together = [joined(rows) for rows in zip(*(each["rows"] for each in many), strict=True)]
    assert joined(together) == whole[: len(whole) // 3 * 3]
    assert len({len(rows) for each in many for rows in each["rows"]}) == 1
    for each in many:
        assert torch.equal(each["weights"], many[0]["weights"])
        assert each["validated"] == many[0]["validated"]


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
    ("policy", "steps"),
    [("cached_loss", 4), *(pytest.param(*case, marks=pytest.mark.full) for case in MORE)],
)
def test_a_run_resumes_in_as_many_processes(policy: str | None, steps: int, tmp_path: Path) -> None:
    config = TrainConfig(accumulation_steps=3, micro_batch=5)
    options: dict[str, Any] = {"epochs": 3, "validation": numbers(50, seed=1), "config": config}
    whole = in_world(2, trained, policy, options)
    before = in_world(2, stopped, tmp_path, policy, steps, options)
    after = in_world(2, resumed, tmp_path, policy, options)
    for each, first, then in zip(whole, before, after, strict=True):
        assert first[:steps] + then["rows"] == each["rows"]
        assert torch.equal(then["weights"], each["weights"])
        for part in ("samples", "flops", "flops_dense"):
            assert then["ledger"][part] == each["ledger"][part]
    with pytest.raises(Ended, match="processes was 2 and is 1"):
        in_world(1, resumed, tmp_path, policy, options)


@pytest.mark.full
def test_a_loop_with_fully_shard_trains_as_one_process_does() -> None:
    (one,) = in_world(1, looped, CachedLoss(0.5))
    for weights in in_world(2, looped, CachedLoss(0.5), in_shards):
        assert (weights - one).abs().max() < 1e-9


def in_shards() -> nn.Module:
    """The network, with ``fully_shard`` applied."""
    from torch.distributed.fsdp import fully_shard

    model = network(wrapped=False)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


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
    odd = TrainConfig(batch_size=25)
    cases = [
        lambda: Trainer(plain, data, epochs=1),
        lambda: Trainer(network(), own, epochs=1),
        lambda: Trainer(network(), data, own, epochs=1).evaluate(spread),
        lambda: SampleBySampleTrainer(network(), data, policy=Gate(0.5), epochs=1),
        lambda: steered.steer("rate", 0.2),
        lambda: Trainer(network(), data, epochs=1, config=odd),
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
        "batch_size is 25, which 2 processes cannot share evenly: give 24 or 26",
    )
    found = in_world(2, refused)
    assert found[0] == found[1]
    for sentence, part in zip(found[0], expected, strict=True):
        assert part in sentence


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
    for processes in ("2", "2"):  # the second resumes the completed run
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc_per_node={processes}", "train.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == shown[1]
    assert float(shown[0].split()[0]) > 0.3
