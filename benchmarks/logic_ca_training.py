"""Does the automaton learn? `python -m benchmarks.logic_ca_training --task life` writes JSON.

Trains a task to its end, seed by seed, and then reads what the hard automaton can do: on fixed
samples, on larger grids for longer, after damage; `life_paper` and `_soft` are controls. Seeds that
the file holds are not run again. The task "gated" compares the gate with its controls on the Game
of Life.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import torch

from astkit import RandomSubset, rng
from astkit.files import read_json, write_json
from astkit.gating import Gate
from astkit.stamp import describe, stamp
from astkit.systems.automaton.automaton import PAPERS_FIRST_LOGIT, LogicCA
from astkit.systems.automaton.circuit import PackedCircuit, from_automaton
from astkit.systems.automaton.tasks import (
    AutomatonTask,
    checkerboard,
    checkerboard_async,
    checkerboard_small,
    damage,
    game_of_life,
    life_step,
)
from astkit.systems.automaton.training import AutomatonTrainer, evaluate
from astkit.trainers import Budget
from benchmarks import bench

RESULTS = bench.RESULTS / "logic_ca_training.json"
SEEDS = [0, 1, 2]
LARGE, LARGE_STEPS = 128, 100  # of Life
SCALE = 4


LIFE = game_of_life()
# decay pulls all gates towards a mixture of the sixteen, with which the soft automaton can come to
# be right where the hard one is not
PAPER = replace(LIFE.config, first_logit=PAPERS_FIRST_LOGIT)
BOARDS = (checkerboard(), checkerboard_async(), checkerboard_small())
TASKS = {
    "life": LIFE,
    "life_paper": LIFE.scaled(name="life_paper", config=PAPER, weight_decay=0.01),
    **{task.name: task for task in BOARDS},
    # all gates soft in training, as the paper has it
    **{f"{task.name}_soft": task.scaled(hard_share=0.0) for task in BOARDS},
}
KEPT = ("step", "seconds", "val_loss", "val_hard_loss", "val_wrong", "val_accuracy")


def gated(seed: int, rate: float, iterations: int) -> list[dict[str, Any]]:
    """Life trained densely, by a gate, densely with the gate's FLOPs, and on random subsets."""
    passes = Budget(epochs=(iterations - 0.5) / len(LIFE.source()))
    arms: dict[str, Any] = {
        "dense": {},
        "gate": {"policy": Gate(rate, seed=seed)},
        "dense, equal FLOPs": {},
        "random": {"policy": RandomSubset(rate, seed)},
    }
    rows: list[dict[str, Any]] = []
    for name, options in arms.items():
        budget = Budget(flops=rows[1]["flops"]) if "equal" in name else passes
        trainer = AutomatonTrainer(LIFE, seed=seed, budget=budget, schedule="cosine", **options)
        last, ledger = trainer.run().epochs[-1], trainer.ledger
        rows.append(
            {
                "arm": name,
                "seed": seed,
                **{key: last[f"val_{key}"] for key in ("wrong", "accuracy", "loss")},
                "steps": last["step"],
                "flops": ledger.flops.total,
                "seconds": ledger.seconds["training"],
                **{f"samples_{key}": count for key, count in asdict(ledger.samples).items()},
            }
        )
    return rows


def train(
    task: AutomatonTask, seed: int, iterations: int | None, until_learnt: bool
) -> dict[str, Any]:
    """One run, its metrics after each pass, and what the hard automaton can do in the end."""
    trainer = AutomatonTrainer(task, seed=seed, iterations=iterations)
    for record in trainer.steps():
        if record.phase == "epoch":
            print(task.name, seed, record.step, record.metrics["val_wrong"], flush=True)
            if until_learnt and record.metrics["val_wrong"] == 0:
                break
    epochs, model = trainer.history.epochs, trainer.automaton
    return {
        "seed": seed,
        "iterations": trainer.step,
        "device": str(trainer.device),
        "first_without_error": next((e["step"] for e in epochs if e["val_wrong"] == 0), None),
        "seconds": dict(trainer.ledger.seconds),
        "final": evaluate(model, task),
        "fresh": evaluate(model, task, task.evaluation("fresh")),
        "epochs": [{key: epoch[key] for key in KEPT} for epoch in epochs],
        "after": after_life(model) if task.kind == "life" else after_board(model, task),
    }


def after_life(model: LogicCA) -> dict[str, Any]:
    """Cells in which the hard automaton and true Life differ, over all steps of a large grid."""
    shape = (1, 1, LARGE, LARGE)
    grid = torch.randint(2, shape, generator=rng.generator(0, "life")).float()
    wrong, true = 0, grid
    for state in PackedCircuit(from_automaton(model)).trajectory(grid, LARGE_STEPS)[1:]:
        true = life_step(true)
        wrong += int((state != true.bool()).sum())
    return {"side": LARGE, "steps": LARGE_STEPS, "mismatches": wrong, "alive": int(true.sum())}


def after_board(model: LogicCA, task: AutomatonTask) -> dict[str, Any]:
    """Accuracy on a grid four times larger for four times longer, and after damage half way."""
    side, steps = in_phase(SCALE * task.height, task), SCALE * task.steps
    wide = task.scaled(height=side, width=side, steps=steps, held_out=4)
    batch = wide.evaluation()
    masks, alive = wide.masks(batch.index, 0, -2), damage(side, side, steps, held=steps // 2)
    packed = PackedCircuit(from_automaton(model))
    last = packed.rollout(batch.x, steps, masks, alive=alive)
    healed = float((last[:, 0] == batch.y.bool()).float().mean())
    accuracy = evaluate(model, wide)["accuracy"]
    return {"side": side, "steps": steps, "accuracy": accuracy, "healed": healed}


def in_phase(side: int, task: AutomatonTask) -> int:
    """The next side on which a board ends as that of the training does.

    Squares repeat every four cells. A rule that builds them from the right or lower border, which
    training cannot tell from the left or upper one, is the inverse of the target on other sides.
    """
    return side + (task.height - side) % 4


def main(arguments: list[str] | None = None) -> None:
    """Train what the file does not hold yet; each run is written when it is over.

    ``--iterations``: other than the task's; ``--until-learnt``: stop when no cell is wrong;
    ``--rate``: of the gate.
    """
    asked = bench.options(
        main.__doc__,
        RESULTS,
        arguments,
        task="life",
        seeds=SEEDS,
        iterations=int,
        until_learnt=False,
        rate=0.25,
    )
    report = read_json(asked.out)
    part = report.setdefault(asked.task, {"runs": []})
    part["stamp"] = stamp()
    done = {run["seed"] for run in part["runs"]}
    for seed in (seed for seed in asked.seeds if seed not in done):
        start = time.perf_counter()
        if asked.task == "gated":
            iterations = asked.iterations or TASKS["life"].iterations
            rows = gated(seed, asked.rate, iterations)
            run = {"seed": seed, "rate": asked.rate, "iterations": iterations, "arms": rows}
        else:
            run = train(TASKS[asked.task], seed, asked.iterations, asked.until_learnt)
        part["runs"].append({**run, "wall_seconds": time.perf_counter() - start})
        write_json(asked.out, report)
    print(describe(part["stamp"]))


if __name__ == "__main__":
    main()
