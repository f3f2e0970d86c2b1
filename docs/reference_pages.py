"""The reference: a page for each public name, grouped by use; what the guides use most is first."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.ext.autodoc.mock import mock

from astkit.names import PUBLIC, REGISTRIES, resolve
from benchmarks.bench import one_line, summary

ROOT = Path(__file__).resolve().parents[1]
USES = {
    "comparison": "Compare",
    "aim": "Train for a target",
    "trainers": "Train",
    "gating": "Choose rows",
    "datasets": "Data",
    "widgets": "Watch and steer",
    "profiling": "Count what it costs",
    "tasks": "Tasks to begin with",
    "models": "Models",
    "integrations": "Other libraries' loops",
    "distributed": "Several processes",
    "runs": "Notebooks and their records",
    "system": "Processors",
    "compat": "The original's classes",
    "systems": "Lattice and automaton",
}
"""Parts of the package in the order in which a reader needs them, and what they are for."""
PACKAGES = (
    "gating",
    "trainers",
    "profiling",
    "datasets",
    "widgets",
    "compat",
    "systems",
    "systems.lattice",
    "systems.automaton",
    "runs",
)
"""Parts that export names of their own, beside those of ``astkit``."""
TYPES = (
    "comparison.samples.Samples",
    "comparison.samples.Suspects",
    "comparison.statistics.Interval",
    "comparison.statistics.ratio_interval",
    "comparison.training.RunRecord",
    "comparison.verdict.Verdict",
    "datasets.batch.as_batch",
    "datasets.batch.call",
    "datasets.foreign.Indexed",
    "datasets.mapped.MappedImages",
    "datasets.sources.Bikes",
    "datasets.table_encoder.TableEncoder",
    "datasets.table_label.Label",
    "datasets.table_parts.divide_table",
    "datasets.table_reader.TableRows",
    "datasets.table_reader.read_table",
    "gating.controllers.ScaleFree",
    "gating.epoch.PolicySampler",
    "gating.policies.last_loss.LastLoss",
    "integrations.huggingface.PolicyTrainer",
    "integrations.huggingface.causal_losses",
    "profiling.energy.EnergyCounter",
    "profiling.timing.Ratio",
    "systems.lattice.model.FlowStats",
    "systems.lattice.model.Flows",
    "systems.lattice.model.LatticeOutput",
    "tasks.task",
    "trainers.history.History",
    "trainers.history.StepRecord",
    "widgets.style.Picture",
)
"""What the public names return, extend or mention: imported from the modules that define them."""
OPTIONAL = ("transformers",)
"""Libraries that are not needed to build the site."""
MODULES = (
    "datasets.batch",
    "datasets.loader",
    "distributed",
    "system",
    "systems.automaton.tasks",
    "tasks",
    "tasks.images",
)
"""Modules that texts mention."""


ORPHAN = "---\norphan: true\n---\n"
"""The sidebar lists no single names: with them a build takes twice as long."""


class Name(NamedTuple):
    """A public name: where it is documented, what it is, the part of the package it belongs to."""

    name: str
    path: str
    found: Any
    part: str


def names() -> list[Name]:
    """Every public name; those of registries under the names that settings take.

    Each object has one path: ``astkit.X``, else that of its package, else that of its module.
    """
    absent = [name for name in OPTIONAL if find_spec(name) is None]
    with mock(absent):
        return _names()


def _names() -> list[Name]:
    paths: dict[tuple[int, str], str] = {}
    found = []

    def add(name: str, path: str, place: str) -> None:
        each = pkgutil.resolve_name(path)
        own = (id(each), path.rpartition(".")[2])  # aliases have their own
        part = place.split(".")[1]
        found.append(Name(name, paths.setdefault(own, path), each, part))

    for name, module in PUBLIC.items():
        add(name, f"astkit.{name}", f"{module}.{name}")
    for package in PACKAGES:
        for name in sorted({*exported(package)} - PUBLIC.keys()):
            path = f"astkit.{package}.{name}"
            add(name, path, path)
    for table in REGISTRIES.values():
        for name, place in table.items():
            path = place.replace(":", ".")
            add(name, path, path)
    for place in TYPES:
        path = f"astkit.{place}"
        add(path.rpartition(".")[2], path, path)
    return found


def exported(package: str) -> list[str]:
    """The names that a part of astkit exports: those of its ``__init__``, without modules.

    Of a part that is a single module, the names that it defines.
    """
    module = importlib.import_module(f"astkit.{package}")
    held = {name: getattr(module, name) for name in dir(module)}
    if not hasattr(module, "__path__"):
        own = module.__name__
        held = {
            name: each
            for name, each in held.items()
            if getattr(each, "__module__", "") == own
        }
    return sorted(
        name
        for name, each in held.items()
        if name[0] != "_" and not inspect.ismodule(each)
    )


def alias(package: str, name: str) -> str:
    """The text below an assignment to ``name`` in a module of ``package``, on one line."""
    for path in (ROOT / "astkit" / package).glob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, below in pairwise(body):
            if not isinstance(node, ast.Assign):
                continue
            named = ast.unparse(node.targets[0]) == name
            if named and isinstance(below, ast.Expr):
                return one_line(ast.literal_eval(below.value))
    return ""


def line(found: Any) -> str:
    """The first sentence of a docstring; an example below it does not show."""
    return summary(found).replace("::", ".")


def entry(path: str, found: Any) -> str:
    """The directive that documents ``found``, for a Markdown page."""
    kind = "class" if inspect.isclass(found) else "data"  # an alias of a type
    kind = "function" if inspect.isroutine(found) else kind
    return f"```{{eval-rst}}\n.. auto{kind}:: {path}\n```\n"


def guides() -> dict[str, str]:
    """Path and Python code of README and of every guide."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {path: path.read_text("utf-8") for path in pages}
    return {
        f"/{path.relative_to(ROOT).as_posix()}": "\n".join(
            re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        )
        for path, text in texts.items()
    }


def pages() -> dict[str, str]:
    """The pages of the reference by name; policies have pages of their own."""
    code = guides()
    elsewhere = {resolve("policy", name) for name in REGISTRIES["policy"]}
    parts: dict[str, dict[str, Name]] = {part: {} for part in USES}
    for each in names():
        parts[each.part].setdefault(each.path, each)

    def order(each: Name) -> tuple[bool, int, str]:
        own = each.path.rpartition(".")[2]
        count = len(re.findall(rf"\b{own}\b", "\n".join(code.values())))
        return each.path.count(".") > 1, -count, own

    written: dict[str, str] = {}
    index = ["# Reference", ""]
    for part, held in parts.items():
        found = sorted(held.values(), key=order)
        first = [each for each in found if each.path.count(".") == 1]
        index += [f"## [{USES[part]}]({part}.md)", "", *table(first)]
        index += [
            "",
            inline([each for each in found if each not in first]),
            "",
        ]
        own = [each for each in found if each.found not in elsewhere]
        modules = [name for name in MODULES if name.split(".")[0] == part]
        lines = [f"# {USES[part]}", "", *about(part), *table(found), ""]
        lines += [module(f"astkit.{name}") for name in modules]
        written[part] = "\n".join(lines)
        written |= {each.path: page(each, code) for each in own}
    written["names"] = by_name()
    index.append(toctree(*USES, "names"))
    return {"index": "\n".join(index), **written}


def about(part: str) -> list[str]:
    """The first sentence of a part of the package."""
    doc = importlib.import_module(f"astkit.{part}").__doc__ or ""
    return [inspect.cleandoc(doc).split("\n")[0], ""]


def table(found: list[Name]) -> list[str]:
    """A row for each name: a link, and the first sentence."""
    rows = []
    for each in found:
        own = each.path.rpartition(".")[2]
        said = line(each.found) or alias(each.part, own)
        rows.append(f"| {{py:obj}}`{own} <{each.path}>` | {said} |")
    return ["| name | what it is |", "| --- | --- |", *rows] if rows else []


def inline(found: list[Name]) -> str:
    """Links in one paragraph."""
    return " · ".join(
        f"{{py:obj}}`{each.path.rpartition('.')[2]} <{each.path}>`"
        for each in found
    )


def page(each: Name, code: dict[str, str]) -> str:
    """The page of a name: how it is imported, its docstring, the guides that use it."""
    module, _, own = each.path.rpartition(".")
    lines = [
        ORPHAN,
        f"# {own}",
        "",
        "```python",
        f"from {module} import {own}",
    ]
    lines += ["```", "", entry(each.path, each.found)]
    used = [
        path for path, text in code.items() if re.search(rf"\b{own}\b", text)
    ]
    links = ", ".join(f"[]({path})" for path in used if "README" not in path)
    lines += [f"Used in: {links}\n"] if links else []
    lines.append(f"Part of: [{USES[each.part]}]({each.part}.md)\n")
    return "\n".join(lines)


def module(path: str) -> str:
    """The docstring of a module."""
    return f"```{{eval-rst}}\n.. automodule:: {path}\n   :no-members:\n```\n"


def by_name() -> str:
    """What settings and commands take by name."""
    lines = ["# Names that settings take", ""]
    paths = {id(each.found): each.path for each in names()}
    for kind, registry in REGISTRIES.items():
        lines += [f"## {kind}", "", "| name | object | what it is |"]
        lines += ["| --- | --- | --- |"]
        for name in registry:
            found = resolve(kind, name)
            link = f"{{py:obj}}`{name} <{paths[id(found)]}>`"
            own = paths[id(found)].rpartition(".")[2]
            lines.append(f"| {link} | `{own}` | {line(found)} |")
        lines.append("")
    return "\n".join(lines)


def toctree(*entries: str) -> str:
    """A table of contents that the sidebar shows."""
    head = ["", "```{toctree}", ":hidden:", ""]
    return "\n".join([*head, *entries, "```", ""])
