"""Pages of the site that are made from the code, the committed results and the notebooks."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import reference_pages
from PIL import Image

from astkit.comparison import report as comparison_page
from astkit.comparison import verdict
from astkit.comparison.statistics import DENSE
from astkit.files import read_json
from astkit.names import REGISTRIES, resolve
from benchmarks import policies as policies_page
from benchmarks import policy_tables
from benchmarks.bench import markdown
from benchmarks.gain import parsed

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
PAGE = "/docs/policies.md"
GAINS = """Gains at equal FLOPs with 95 % intervals, and as a share of what an oracle
gains, which knows the rows that are right and relevant:"""
NOT_MEASURED = (
    "Not measured yet: `python -m benchmarks.policies` measures it.\n"
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
        for name, text in reference_pages.pages().items()
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


def policies() -> dict[str, str]:
    """A page for each policy: its card, what was measured, its class."""
    entries = list(read_json(policies_page.ENTRIES).values())
    gains = policy_tables.gains()
    claims = policies_page.claims(entries)
    paths = {each.found: each.path for each in reference_pages.names()}
    pages = {}
    for name in REGISTRIES["policy"]:
        kind = resolve("policy", name)
        card = {
            head: getattr(kind.card, field) for head, field in CARD.items()
        }
        if name in claims.index:
            published = claims.loc[name]
            card["Published"] = f"{published['claim']}; on {published['on']}"
        lines = [f"# {name}", "", reference_pages.line(kind), ""]
        lines += [f'By name: `Trainer(..., policy="{name}")`.', ""]
        lines += [f":{head}: {text}" for head, text in card.items()]
        shown = [*gained(name, gains), *compared(name, entries)]
        lines += ["", "## Measured", "", *(shown or [NOT_MEASURED])]
        lines += ["## Class", "", reference_pages.entry(paths[kind], kind)]
        pages[name] = "\n".join(lines)
    head = "# Each policy\n\nRule, source, cost, results and class.\n\n"
    rules = policies_page.cards()[["rule"]].rename(
        index="[{0}]({0}.md)".format
    )
    table = markdown(rules) + "\n"
    return {"index": head + table + reference_pages.toctree(*pages), **pages}


def gained(name: str, gains: pd.DataFrame) -> Iterator[str]:
    """The gains of policy ``name`` by kind of data."""
    own = gains[gains["policy"] == name]
    if own.empty:
        return
    rows = {
        row["condition"]: {
            "over dense training": policy_tables.gain_text(row),
            "share of the possible": policy_tables.share_text(row),
        }
        for row in own.to_dict("records")
    }
    table = pd.DataFrame(rows).T.rename_axis("kind of data")
    yield f"{GAINS}\n\n{markdown(table)}\n"
    yield f"Beside other methods: [Policies]({PAGE}#gains-by-kind-of-data).\n"


def compared(name: str, entries: list[policies_page.Entry]) -> Iterator[str]:
    """The accuracies of policy ``name`` and of its controls, and the verdicts."""
    labels = {
        policies_page.label(each)
        for each in entries
        if parsed(each["policy"])[0] == name
    }
    if labels:
        yield f"On CIFAR-10; how, and beside others: [Policies]({PAGE}).\n"
    for task, runs in policies_page.tasks(entries).items():
        if not any(run["policy"] in labels for run in runs):
            continue
        verdicts = verdict.judge(runs)
        metric = policies_page.heading_metric(task)
        table = comparison_page.results(runs, verdicts, metric)
        table = table.drop(
            columns=["against random", "trained on", "time / dense"]
        )
        table = table.set_index("policy")
        controls = (DENSE, "random")
        kept = [
            p for p in table.index if p in labels or p.startswith(controls)
        ]
        yield f"### {task}\n\n{markdown(table.loc[kept])}\n"
        yield from (
            f"{each.sentence}.\n" for each in verdicts if each.policy in labels
        )


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
