"""Pages of the site that are made from the code and the committed results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import reference_pages

from astkit.comparison import report as comparison_page
from astkit.comparison import verdict
from astkit.comparison.statistics import DENSE
from astkit.files import read_json
from astkit.names import REGISTRIES, resolve
from benchmarks import policies as policies_page
from benchmarks import policy_tables
from benchmarks.bench import markdown
from benchmarks.gain import parsed

ROOT_PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
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
    pages = {
        f"{kind}/{name}.md": text
        for kind, made in (
            ("reference", reference_pages.pages()),
            ("policies", policies()),
        )
        for name, text in made.items()
    }
    for path in folder.rglob("*.*"):
        if path.relative_to(folder).as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8")


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
