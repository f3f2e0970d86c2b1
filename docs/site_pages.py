"""Pages of the site that are made from the code, the committed results and the notebooks."""

from __future__ import annotations

import ast
import base64
import copy
import importlib
import inspect
import io
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image

from astkit.comparison import report as comparison_page
from astkit.comparison import verdict
from astkit.comparison.statistics import DENSE
from astkit.files import read_json
from astkit.names import PUBLIC, REGISTRIES, resolve
from astkit.widgets import LiveBoard
from astkit.widgets.style import animation
from tests.benchmarks import policies as policies_page
from tests.benchmarks.bench import markdown, one_line, summary
from tests.benchmarks.gain import parsed

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
THUMBNAIL = (800, 320)  # pixels at most
IMAGES = ("image/png", "image/gif")
HOUSE: tuple[dict[str, str], ...] = (
    {"cli": "commands"},
    {"runs": "notebooks, sweeps, one file for Kaggle"},
    {"comparison": "say whether selecting pays"},
    {
        "tasks": "models and data",
        "systems": "two systems",
        "integrations": "others' loops",
    },
    {"widgets": "plots, live steering"},
    {"trainers": "run the passes"},
    {"aim": "train for a target"},
    {
        "gating": "decide what is trained on",
        "profiling": "count what it costs",
    },
    {"datasets": "bring the batches"},
    {"ground": "names, files, random numbers, models"},
)
"""Parts of the package and their jobs; each imports from rows below its own only."""
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
CARD = {
    "Source": "source",
    "Cost of skipped samples": "cost",
    "Bias": "bias",
    "When not": "avoid",
}


def write(folder: Path) -> None:
    """Write all pages below ``folder``; unchanged files keep their dates, others are removed."""
    pages: dict[str, bytes] = {
        f"reference/{name}.md": text.encode()
        for name, text in reference().items()
    }
    pages |= {
        f"policies/{name}.md": text.encode()
        for name, text in policies().items()
    }
    pages |= {**gallery(), "house.html": house().encode()}
    for path in folder.rglob("*.*"):
        if path.relative_to(folder).as_posix() not in pages:
            path.unlink()
    for name, content in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


def names() -> dict[str, list[tuple[str, str, Any]]]:
    """By section: name, path under which it is documented, object.

    Each object has one path: ``astkit.X``, else that of its package, else that of its module.
    """
    root = importlib.import_module("astkit")
    paths: dict[tuple[int, str], str] = {}
    sections: dict[str, list[tuple[str, str, Any]]] = {}

    def add(section: str, name: str, path: str, found: Any) -> None:
        shown = paths.setdefault(
            (id(found), path.rpartition(".")[2]), path
        )  # aliases have their own
        sections.setdefault(section, []).append((name, shown, found))

    for name in sorted(PUBLIC):
        add("astkit", name, f"astkit.{name}", getattr(root, name))
    for package in PACKAGES:
        module = importlib.import_module(f"astkit.{package}")
        for name in sorted(set(exported(package)) - PUBLIC.keys()):
            add(
                f"astkit.{package}",
                name,
                f"astkit.{package}.{name}",
                getattr(module, name),
            )
    for kind, table in REGISTRIES.items():
        for name in sorted(table):
            add(
                f"by name: {kind}",
                name,
                table[name].replace(":", "."),
                resolve(kind, name),
            )
    return sections


def exported(package: str) -> list[str]:
    """The names that a part of astkit exports: those of its ``__init__``, without modules.

    Of a part that is a single module, the names that it defines.
    """
    module = importlib.import_module(f"astkit.{package}")
    held = {
        name: getattr(module, name) for name in dir(module) if name[0] != "_"
    }
    if not hasattr(module, "__path__"):
        held = {
            name: each
            for name, each in held.items()
            if _defined_in(each) == module.__name__
        }
    return sorted(
        name for name, each in held.items() if not inspect.ismodule(each)
    )


def _defined_in(found: Any) -> str:
    return str(getattr(found, "__module__", ""))


def alias(package: str, name: str) -> str:
    """The text below an assignment to ``name`` in a module of ``package``, on one line."""
    for path in (ROOT / "astkit" / package).glob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, below in pairwise(body):
            named = (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == name
            )
            if named and isinstance(below, ast.Expr):
                return one_line(ast.literal_eval(below.value))
    return ""


def line(found: Any) -> str:
    """The first sentence of a docstring; an example below it does not show."""
    return summary(found).replace("::", ".")


def entry(path: str, found: Any) -> str:
    """The directive that documents ``found``, for a Markdown page."""
    kind = (
        "class" if inspect.isclass(found) else "data"
    )  # an alias of a type is callable
    kind = "function" if inspect.isroutine(found) else kind
    return f"```{{eval-rst}}\n.. auto{kind}:: {path}\n```\n"


def reference() -> dict[str, str]:
    """A page for each section: a table of its names, then their docstrings.

    Policies are documented on their own pages.
    """
    written = {path for _, path, _ in names()["by name: policy"]}
    pages = {
        "index": "# Reference\n\nEvery public name, by package and by the name it goes by.\n"
    }
    for section, found in names().items():
        package = section.removeprefix("astkit.")
        rows = [
            f"| {{py:obj}}`{name} <{path}>` | {line(item) or alias(package, name)} |"
            for name, path, item in found
        ]
        module = (
            importlib.import_module(section)
            if section.startswith("astkit")
            else None
        )
        about = (
            [inspect.cleandoc(module.__doc__ or "").split("\n")[0], ""]
            if module
            else []
        )
        lines = [
            f"# {section}",
            "",
            *about,
            "| name | what it is |",
            "| --- | --- |",
            *rows,
            "",
        ]
        for _, path, item in found:
            if path not in written:
                written.add(path)
                lines.append(entry(path, item))
        pages[section.replace("by name: ", "name_").replace(".", "_")] = (
            "\n".join(lines)
        )
    pages["index"] += toctree(*list(pages)[1:])
    return pages


def toctree(*entries: str) -> str:
    return "\n".join(["", "```{toctree}", *entries, "```", ""])


def policies() -> dict[str, str]:
    """A page for each policy: its card, what was measured, its class."""
    entries = list(read_json(policies_page.ENTRIES).values())
    claims = policies_page.claims(entries)
    pages = {}
    for name, path, kind in names()["by name: policy"]:
        card = [
            (head, getattr(kind.card, field)) for head, field in CARD.items()
        ]
        if name in claims.index:
            card.append(
                (
                    "Published",
                    f"{claims.loc[name, 'claim']}; on {claims.loc[name, 'on']}",
                )
            )
        lines = [
            f"# {name}",
            "",
            line(kind),
            "",
            f'By name: `Trainer(..., policy="{name}")`.',
            "",
        ]
        lines += [f":{head}: {text}" for head, text in card]
        lines += ["", "## Measured", "", *measured(name, entries)]
        lines += ["## Class", "", entry(path, kind)]
        pages[name] = "\n".join(lines)
    head = "# One page a policy\n\nRule, source, cost, results and class of each.\n"
    return {"index": head + toctree(*pages), **pages}


def measured(name: str, entries: list[policies_page.Entry]) -> Iterator[str]:
    """The rows of policy ``name`` and of its controls in docs/policies.md, and the verdicts."""
    own = [e for e in entries if parsed(e["policy"])[0] == name]
    tasks = policies_page.tasks(entries) if own else {}
    found = False
    for task, runs in tasks.items():
        labels = {policies_page.label(e) for e in own}
        if not any(run["policy"] in labels for run in runs):
            continue
        found = True
        verdicts = verdict.judge(runs)
        table = comparison_page.results(
            runs, verdicts, policies_page.heading_metric(task)
        )
        table = table.drop(
            columns=["against random", "trained on", "time / dense"]
        )
        table = table.set_index("policy")
        kept = [
            p
            for p in table.index
            if p in labels or p.startswith((DENSE, "random"))
        ]
        yield f"### {task}\n\n{markdown(table.loc[kept])}\n"
        yield from (
            f"{each.sentence}.\n" for each in verdicts if each.policy in labels
        )
    if found:
        yield (
            "Conditions, and all policies beside each other: [Policies](../../policies.md). Written"
            " by `python -m tests.benchmarks.policies` into"
            " [06_policies.json](../../../notebooks/results/06_policies.json).\n"
        )
    else:
        yield "Not measured yet: `python -m tests.benchmarks.policies` measures it.\n"


def figures() -> Iterator[tuple[Path, str, list[bytes]]]:
    """Path, heading and pictures of every notebook, and of every page of docs with a picture."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].strip("# ")
        outputs = [
            out.get("data", {})
            for cell in cells
            for out in cell.get("outputs", [])
        ]
        codes = [
            data[kind] for data in outputs for kind in data if kind in IMAGES
        ]
        yield (
            path,
            f"{path.name[:2]} · {title}",
            [base64.b64decode("".join(c)) for c in codes],
        )
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"!\[[^]\n]*\]\((\S+)\)", text)
        if names:
            yield (
                path,
                text.splitlines()[0].strip("# "),
                [(path.parent / name).read_bytes() for name in names],
            )


def gallery() -> dict[str, bytes]:
    """A page with all figures of notebooks and docs as thumbnails, and the thumbnails."""
    files: dict[str, bytes] = {}
    lines = [
        "# All pictures",
        "",
        "Those of the notebooks' committed runs and of the guides.",
        "",
    ]
    for path, heading, pictures in figures():
        file = path.relative_to(ROOT).as_posix()
        kind = "notebook" if path.suffix == ".ipynb" else "page"
        lines += [f"## {heading}", "", f"[Read the {kind}](/{file})", ""]
        for number, picture in enumerate(pictures, 1):
            name = f"thumbnails/{path.stem}_{number}.png"
            files[name] = thumbnail(picture)
            lines += [":::{container} thumbnails"] if number == 1 else []
            lines.append(
                f"[![figure {number} of {path.stem}]({name})](/{file})"
            )
        lines += [":::", ""] if pictures else []
    return {**files, "gallery.md": "\n".join(lines).encode()}


def film(board: LiveBoard, frames: int = 12, fps: int = 2) -> bytes:
    """A recorded run as an animated PNG: the board after equal shares of its steps."""
    last = max(
        (step for points in board.series.values() for step, _ in points),
        default=0,
    )
    pictures = []
    for number in range(1, frames + 1):
        step, part = last * number / frames, copy.copy(board)
        part.series = {
            k: [p for p in points if p[0] <= step]
            for k, points in board.series.items()
        }
        part.events = [event for event in board.events if event[0] <= step]
        part.cloud = [batch for batch in board.cloud if batch[0] <= step]
        pictures.append(part.picture())
    return animation(pictures, fps, dpi=64)


def thumbnail(picture: bytes) -> bytes:
    """The first frame of ``picture`` as PNG, with at most `THUMBNAIL` pixels."""
    image, out = Image.open(io.BytesIO(picture)), io.BytesIO()
    image.thumbnail(THUMBNAIL)
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def house() -> str:
    """`HOUSE` as rows of boxes, in the colours of the page."""
    rows = [
        "".join(
            f"<div><b>{name}</b><br>{job}</div>" for name, job in row.items()
        )
        for row in HOUSE
    ]
    shown = "<p>↓</p>".join(f"<div>{row}</div>" for row in rows)
    return f'<figure class="house">{shown}</figure>'
