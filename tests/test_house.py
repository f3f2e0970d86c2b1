"""The package's shape: few attributes an object, no circle of imports, no way back, short steps."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from astkit import Table, Trainer, joined
from astkit.trainers import Checkpoints
from astkit.widgets import LiveBoard, Run
from benchmarks.calls import before_first_batch, counted
from tests import build, smaller

ROOT = Path(__file__).parents[1] / "astkit"
TREES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.rglob("*.py"))}
MOST = 16  # attributes that an object holds
BACK = {
    "forward": "a subclass may compute outputs in its own way, see `Scored`",
    "count_flops": "a subclass may say what its model costs, see `Costs.add`",
    "_count_pass": "a scoring pass is counted where it is made, see `Scored.score`",
    "scorable": "batches whose features a plan asks for, see `ModelFeatures`",
}
"""Methods of `Trainer` that are given to objects below it, and why."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_object_holds_more_than_a_reader_keeps_in_mind() -> None:
    run = build.gated()
    run.run()
    work = run.optimisation
    parts = [run, run.train_data, run.history, work, work.passes, work.rates]
    parts += [run.batches, run.batches.epoch, run.validator, run.ledger, run.reports, run.costs]
    parts += [run.policy, run.steering, run.policy.controller]
    parts += [LiveBoard(), Checkpoints("anywhere"), Run(run)]
    held = {type(each).__name__: len(vars(each)) for each in parts}
    assert {name: count for name, count in held.items() if count > MOST} == {}


@pytest.mark.parametrize(
    ("policy", "files", "calls"), [(None, 10, 100), ({"name": "gate", "rate": 0.25}, 14, 180)]
)
def test_a_step_goes_through_few_files_and_calls(policy: Any, files: int, calls: int) -> None:
    total, visited, _ = counted(policy)
    assert len(visited) <= files
    assert total <= calls


@pytest.mark.parametrize("data", ["table", "arrays", "arrays with validation rows"])
def test_aim_goes_through_few_files_to_the_first_batch(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller.trees(monkeypatch, judges=2, rounds=2, bins=4)
    monkeypatch.setattr("astkit.aim.differ.DRAWS", 400)  # enough to find what differs
    old, target = build.numbers(200, flipped=0.6), build.numbers(60, seed=1)
    options: dict[str, Any] = {"criterion": lambda outputs, y: ((outputs - y) ** 2).mean(1)}
    if data == "table":
        frames = [pd.DataFrame(torch.hstack(part.tensors).numpy()) for part in (old, target)]
        old = Table(frames[0].rename(columns=str), "4")
        target = Table(frames[1].rename(columns=str), like=old)
        options = old.objective
    model = old.model() if data == "table" else nn.Linear(4, 1)
    parts = (old, target) if "validation" in data else (joined(old, target),)
    walked = before_first_batch(Trainer(model, *parts, policy="aim", epochs=1, **options))
    assert len([file for file in walked if file.startswith("aim/")]) <= 7
    assert len(walked) <= 32


def test_an_assertion_only_asserts() -> None:
    """``python -O`` leaves it out, so that nothing may be computed by it, such as a property."""
    bare = [
        f"{module_of(path)}: {ast.unparse(node)}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Attribute)
    ]
    assert bare == []


def imports_of(tree: ast.Module) -> set[str]:
    """Modules of astkit that are imported when this one is, or for type checkers."""
    found = set()
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("astkit"):
            found |= {f"{node.module}.{each.name}" for each in node.names} | {node.module}
        elif isinstance(node, ast.If):
            waiting += [*node.body, *node.orelse]
    return found


def test_modules_import_each_other_in_no_circle() -> None:
    modules = {module_of(path): tree for path, tree in TREES.items()}
    # a package's own list of names is no module that its parts need
    packages = {module_of(path) for path in TREES if path.name == "__init__.py"}
    graph = {
        name: {each for each in imports_of(tree) if each in modules and each not in packages}
        for name, tree in modules.items()
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_what_may_call_back_into_a_trainer_is_listed() -> None:
    text = (ROOT / "trainers" / "trainer.py").read_text("utf-8")
    tree = TREES[ROOT / "trainers" / "trainer.py"]
    (trainer,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    methods = {
        node.name
        for node in trainer.body
        if isinstance(node, ast.FunctionDef)
        and not any(ast.unparse(each) == "property" for each in node.decorator_list)
    }
    given = set()
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        for value in [*call.args, *(each.value for each in call.keywords)]:
            own = isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self"
            if own and value.attr in methods and ast.unparse(call.func) != "leaving.callback":
                given.add(value.attr)
    assert given == BACK.keys()
    assert re.search(r"\bself\.\w+\.\w+\._\w+", text) is None  # nor does it reach into others
