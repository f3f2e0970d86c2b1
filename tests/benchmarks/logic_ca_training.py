"""Does the automaton learn? `python -m tests.benchmarks.logic_ca_training --task life` writes JSON.

Trains a task to its end, seed by seed, and then reads what the hard automaton can do: on fixed
samples, on larger grids for longer, after damage. A run that was cut off goes on from its
checkpoints when the same command is given again; seeds that the file holds are not run again.
The task "gated" compares the gate with its controls on the Game of Life.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astkit import rng
from astkit.files import write_atomic
from astkit.gating import Gate, RandomSubset
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.circuit import from_automaton
from astkit.logic_ca.evaluation import evaluate
from astkit.logic_ca.gates import PAPERS_FIRST_LOGIT
from astkit.logic_ca.packed import PackedCircuit
from astkit.logic_ca.tasks import (
    Task,
    checkerboard,
    checkerboard_async,
    checkerboard_small,
    checkerboard_target,
    damage,
    fire_masks,
    game_of_life,
    life_step,
)
from astkit.logic_ca.training import SETTINGS, logic_trainer
from astkit.stamp import describe, stamp
from astkit.trainers import Budget, Checkpoints

RESULTS = Path(__file__).with_name("logic_ca_training.json")
SEEDS = (0, 1, 2)
LARGE, LARGE_STEPS = 128, 100  # of Life
SCALE = 4
STORM, STORM_STEPS, PIECE = 64, 4000, 100
STORM_RATE = 0.6


def random_damage(height: int, width: int, steps: int, seed: int, size: int = 10) -> Tensor:
    """As `damage`, with a new random square of ``size`` x ``size`` cells in every step."""
    numbers = torch.arange(steps)
    tops = rng.uniform(numbers, seed, "damage", "row") * (height - size + 1)
    lefts = rng.uniform(numbers, seed, "damage", "column") * (width - size + 1)
    alive = torch.ones(steps, 1, 1, height, width, dtype=torch.bool)
    for t, (top, left) in enumerate(zip(tops.int().tolist(), lefts.int().tolist(), strict=True)):
        alive[t, :, :, top : top + size, left : left + size] = False
    return alive


def game_of_life_paper() -> Task:
    """Life with the paper's first logit and weight decay, as a control.

    Decay pulls all gates towards a mixture of the sixteen, and with mixtures the soft automaton can
    come to be right where the hard one is not.
    """
    config = replace(game_of_life().config, first_logit=PAPERS_FIRST_LOGIT)
    return game_of_life().scaled(name="life_paper", config=config, weight_decay=0.01)


def soft(task: Task) -> Task:
    """A checkerboard with all gates soft in training, as the paper has it: a control."""
    return task.scaled(name=f"{task.name}_soft", hard_share=0.0)


TASKS = {
    task.name: task
    for task in (
        game_of_life(),
        game_of_life_paper(),
        checkerboard(),
        soft(checkerboard()),
        checkerboard_async(),
        checkerboard_small(),
        soft(checkerboard_small()),
    )
}


def gated(seed: int, rate: float, iterations: int, device: str) -> list[dict[str, Any]]:
    """Life trained densely, by a gate, densely with the gate's FLOPs, and on random subsets."""
    task = game_of_life()
    passes = Budget(epochs=(iterations - 0.5) / len(task.source()))
    arms: dict[str, Any] = {
        "dense": {},
        "gate": {"policy": Gate(rate, seed=seed)},
        "dense, equal FLOPs": {},
        "random": {"policy": RandomSubset(rate, seed)},
    }
    rows: list[dict[str, Any]] = []
    for name, options in arms.items():
        budget = Budget(flops=rows[1]["flops"]) if "equal" in name else passes
        settings = replace(SETTINGS, schedule="cosine")
        work = logic_trainer(
            task, seed=seed, budget=budget, settings=settings, device=device, **options
        )
        epochs, ledger = work.run().epochs, work.ledger
        solved = [epoch["step"] for epoch in epochs if epoch["val_wrong"] == 0]
        rows.append(
            {
                "arm": name,
                "seed": seed,
                **{key: epochs[-1][f"val_{key}"] for key in ("wrong", "accuracy", "loss")},
                "solved": solved[0] if solved else None,
                "steps": epochs[-1]["step"],
                "flops": ledger.flops.total,
                "seconds": ledger.seconds["training"],
                **{f"samples_{key}": count for key, count in asdict(ledger.samples).items()},
            }
        )
    return rows


def train(task: Task, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run, from where its checkpoints are if it was cut off; its metrics after each pass."""
    folder = options.runs / f"{task.name}_{seed}"
    checkpoints = Checkpoints(folder, every=task.every, pause=30)
    trainer = logic_trainer(
        task,
        seed=seed,
        iterations=options.iterations,
        recompute=options.recompute,
        device=options.device,
        checkpoints=checkpoints,
        resume=True,
    )
    said = 0
    for _ in trainer.steps():
        epochs = trainer.history.epochs
        if len(epochs) == said:
            continue
        said, last = len(epochs), epochs[-1]
        print(task.name, seed, last["step"], last["val_loss"], last["val_wrong"], flush=True)
        if options.until_learnt and last["val_wrong"] == 0:
            break
    epochs = trainer.history.epochs
    solved = [epoch for epoch in epochs if epoch["val_wrong"] == 0]
    model = trainer.model
    assert isinstance(model, LogicCA)
    return {
        "seed": seed,
        "iterations": trainer.position.step,
        "device": str(trainer.device),
        "threads": torch.get_num_threads(),
        "wiring": model.wiring_hash,
        "first_without_error": solved[0]["step"] if solved else None,
        "seconds_to_it": solved[0]["seconds"] if solved else None,
        "seconds": dict(trainer.ledger.seconds),
        "phases": dict(trainer.ledger.phases),
        "final": evaluate(model, task),
        "fresh": evaluate(model, task, task.evaluation("fresh")),
        "active_gates": active_gates(model),
        "epochs": [{k: e[k] for k in _KEPT} for e in epochs],
        "after": after_life(model) if task.kind == "life" else after_board(model, task),
    }


_KEPT = ("step", "seconds", "val_loss", "val_hard_loss", "val_wrong", "val_accuracy")


def active_gates(model: LogicCA) -> int:
    """Gates whose likeliest operation is neither "A" nor "B"."""
    chosen = torch.cat([p.argmax(-1).flatten() for p in model.parameters()])
    return int(((chosen != 3) & (chosen != 5)).sum())


def after_life(model: LogicCA) -> dict[str, Any]:
    """Cells in which the hard automaton and true Life differ, over all steps of a large grid."""
    shape = (1, 1, LARGE, LARGE)
    grid = torch.randint(2, shape, generator=rng.generator(0, "life")).float()
    wrong, true = 0, grid
    for state in PackedCircuit(from_automaton(model)).trajectory(grid, LARGE_STEPS)[1:]:
        true = life_step(true)
        wrong += int((state != true.bool()).sum())
    return {"side": LARGE, "steps": LARGE_STEPS, "mismatches": wrong, "alive": int(true.sum())}


def after_board(model: LogicCA, task: Task, storm_steps: int = STORM_STEPS) -> dict[str, Any]:
    """Accuracy on a grid four times larger for four times longer, healing, and a storm."""
    side, steps = in_phase(SCALE * task.height, task), SCALE * task.steps
    wide = task.scaled(height=side, width=side, steps=steps, held_out=4)
    found = evaluate(model, wide)
    damaged = {
        name: accuracy_after(model, wide, damage(side, side, steps, held))
        for name, held in (("healed", steps // 2), ("held", steps))
    }
    return {
        "side": side,
        "steps": steps,
        "accuracy": found["accuracy"],
        **damaged,
        "storm": storm(model, task, storm_steps),
    }


def in_phase(side: int, task: Task) -> int:
    """The next side on which a board ends as that of the training does.

    Squares repeat every four cells. A rule that builds them from the right or lower border, which
    training cannot tell from the left or upper one, is the inverse of the target on other sides.
    """
    return side + (task.height - side) % 4


def accuracy_after(model: LogicCA, task: Task, alive: Tensor) -> float:
    """Share of right cells at the end of a hard rollout in which cells die."""
    batch = task.evaluation()
    masks = task.masks(batch.index, 0, -2)
    packed = PackedCircuit(from_automaton(model))
    last = packed.rollout(batch.x, task.steps, masks, alive=alive)
    return float((last[:, 0] == batch.y.bool()).float().mean())


def storm(model: LogicCA, task: Task, steps: int) -> dict[str, float]:
    """Share of wrong cells, mean of all steps, while each kills another square of 10x10 cells.

    Cells fire at 60 % whatever the automaton was trained with.
    """
    side, packed = in_phase(STORM, task), PackedCircuit(from_automaton(model))
    target = checkerboard_target(side, side).bool()
    shape = (1, task.config.channels, side, side)
    state = torch.randint(2, shape, generator=rng.generator(0, "storm")).float()
    wrong = []
    for piece in range(steps // PIECE):
        masks = fire_masks(STORM_RATE, PIECE, [0], side, side, seed=0, iteration=piece)
        alive = random_damage(side, side, PIECE, seed=piece)
        states = packed.trajectory(state, PIECE, masks, alive=alive)[1:]
        wrong += (states[:, 0, 0] != target).float().mean((1, 2)).tolist()
        state = states[-1]
    return {
        "side": side,
        "steps": len(wrong),
        "wrong_share": sum(wrong) / len(wrong),
        "last_wrong_share": wrong[-1],
    }


def main(arguments: list[str] | None = None) -> None:
    """Train what the file does not hold yet; each run is written when it is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=[*TASKS, "gated"], default="life")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--iterations", type=int, help="those of the task by default")
    parser.add_argument("--until-learnt", action="store_true", help="stop when no cell is wrong")
    parser.add_argument("--recompute", type=int, help="steps between two states that are kept")
    parser.add_argument("--rate", type=float, default=0.25, help="of the gate")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/logic_ca"), help="checkpoints")
    options = parser.parse_args(arguments)
    report = json.loads(options.out.read_text()) if options.out.exists() else {}
    part = report.setdefault(options.task, {"runs": []})
    part["stamp"] = stamp()
    done = {run["seed"] for run in part["runs"]}
    for seed in (seed for seed in options.seeds if seed not in done):
        start = time.perf_counter()
        if options.task == "gated":
            iterations = options.iterations or TASKS["life"].iterations
            rows = gated(seed, options.rate, iterations, options.device)
            run = {"seed": seed, "rate": options.rate, "iterations": iterations, "arms": rows}
        else:
            run = train(TASKS[options.task], seed, options)
        part["runs"].append({**run, "wall_seconds": time.perf_counter() - start})
        write_atomic(options.out, json.dumps(report, indent=1) + "\n")
    print(describe(part["stamp"]))


if __name__ == "__main__":
    main()
