"""Fills the tables of README and docs from committed results: `python -m benchmarks.readme`.

Each table is between ``<!-- NAME -->`` and ``<!-- end -->``. A result that was measured from a
checkout with local changes is refused, unless it is one of `CHANGED`.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from statistics import mean
from typing import Any

import nbformat
import pandas as pd
from PIL import Image

from astkit import files
from astkit.comparison.statistics import by_arm, gaps
from astkit.comparison.verdict import amount
from astkit.runs import export, runner
from astkit.stamp import describe
from astkit.trainers.evaluation import wilson_interval
from benchmarks import distributed as bytes_added
from benchmarks import figures, natural, natural_tables, optimal_rate, origin, quick, tasks
from benchmarks import suspects as wrong_labels
from benchmarks.bench import HERE, RESULTS, ROOT, markdown
from benchmarks.board import board_costs
from benchmarks.example import example, on_bikes
from benchmarks.gpu_tables import (
    gpu_compiled,
    gpu_gains,
    gpu_graphs,
    gpu_ratios,
    gpu_steps,
    joules,
    joules_picture,
)

LARGE = ("large lattice, contrast", "large bypass, contrast")
SHOWN = ("lattice", "bypass", *LARGE, "negative control")
"""Conditions in README, in its words."""
NOTEBOOKS = {
    "00": "How is a gate built, and which samples does it select?",
    "01": "What does a gate cost and save against dense training?",
    "02": "Which controller holds the rate, and does it matter?",
    "03": "How much does each speed setting help?",
    "04": "Does an energy-flow lattice learn, and faster at once?",
    "05": "Does a logic automaton learn, and is a batch faster?",
    "06": "Where does choosing samples pay?",
    "07": "Does it gain anything on your model and data?",
    "08": "Which data shall I train on?",
}
THUMBNAIL = 320  # pixels
PARTS = {
    "00": (0.092, 0.14, 0.6, 0.86),
    "01": (0.095, 0.2, 0.5, 0.78),
    "02": (0.07, 0.07, 0.98, 0.565),
    "03": (0.21, 0.12, 0.5, 0.52),
    "04": (0.08, 0.06, 0.77, 0.86),
    "05": (0.195, 0.13, 0.655, 0.415),
    "06": (0.27, 0.07, 0.91, 0.82),
    "07": (0.13, 0.18, 0.63, 0.73),
    "08": (0.08, 0.19, 1, 0.82),
}
"""The part of a notebook's cover that is its thumbnail: where there is no text."""
CHANGED = (
    "01_cifar10_simple_cnn.json",
    "gpu.json",
    "gpu_compiled.json",
    "gpu_graphs.json",
    "gpu_origin.json",
)
"""Results measured with local changes, which the stamps below their tables say."""

STAMP = re.compile(
    r"^(.*?)((?:Commits: [^.]*\. )?(?:[\w ]+: )?astkit \S+ \(source .*)$", re.MULTILINE
)
"""The line below a table that says when and with what it was measured."""

Report = dict[str, Any]


def shown(rows: dict[str, Any], axis: str, stamp: Report) -> str:
    """A table with a row for each entry of ``rows``, and the stamp below it."""
    return f"{markdown(pd.DataFrame(rows).T.rename_axis(axis))}\n\n{describe(stamp)}"


def read(path: Path) -> Report:
    """The result at ``path``; ``ValueError`` for local changes in one that is not `CHANGED`."""
    report: Report = json.loads(path.read_text())
    for stamp in _stamps(report):
        if stamp["dirty"] and path.name not in CHANGED:
            raise ValueError(
                f"{path.name} was measured at commit {str(stamp['commit'])[:8]} with changes:"
                " measure it again from a checkout without local changes"
            )
    return report


def _stamps(content: Report) -> Iterator[Report]:
    for value in content.values():
        if isinstance(value, dict):
            if "commit" in value and "dirty" in value:
                yield value
            else:
                yield from _stamps(value)


def notebooks() -> str:
    """A sentence and a picture of each notebook."""
    rows = {
        f"[{number}]({_notebook(number).relative_to(ROOT)})": {
            "picture": f"![{number}](docs/static/{number}.png)",
            "its question": sentence,
        }
        for number, sentence in NOTEBOOKS.items()
    }
    return markdown(pd.DataFrame(rows).T.rename_axis("notebook"))


def badges() -> dict[str, str]:
    """The badges of README as SVG pictures by file name, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {"python": project["requires-python"].strip(">=") + "+", "licence": project["license"]}
    return {f"{name}.svg": _badge(name, value) for name, value in said.items()}


def _badge(name: str, value: str) -> str:
    left, right = (7 * len(text) + 12 for text in (name, value))  # pixels
    shapes = [
        f'<rect width="{left + right}" height="20" rx="3" fill="#117733"/>',
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444444"/>',
    ]
    for start, width, text in ((0, left, name), (left, right, value)):
        place = f'x="{start + width / 2:g}" y="14" textLength="{width - 12}"'
        shapes.append(f"<text {place}>{text}</text>")
    head = f'xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img"'
    style = 'fill="#ffffff" font-family="sans-serif" font-size="12" text-anchor="middle"'
    body = "\n".join(shapes)
    return f"<svg {head}>\n<title>{name}: {value}</title>\n<g {style}>\n{body}\n</g>\n</svg>\n"


def _notebook(number: str) -> Path:
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return path


def thumbnail(number: str) -> bytes:
    """Part of the cover of a notebook, `THUMBNAIL` pixels wide, as a PNG."""
    cells = json.loads(_notebook(number).read_text())["cells"]
    cell = next(cell for cell in cells if "runs.notebook()" in "".join(cell["source"]))
    shown = (output.get("data", {}) for output in cell["outputs"])
    picture = next("".join(data["image/png"]) for data in shown if "image/png" in data)
    image = Image.open(BytesIO(base64.b64decode(picture))).convert("RGB")
    ends = (round(share * side) for share, side in zip(PARTS[number], 2 * image.size, strict=True))
    part = image.crop(tuple(ends))
    part = part.resize((THUMBNAIL, round(part.height * THUMBNAIL / part.width)))
    target = BytesIO()
    part.quantize(64, dither=Image.Dither.NONE).save(target, "png", optimize=True)
    return target.getvalue()


@cache
def exports() -> str:
    """Cells and size of each notebook's export; a size in docs stays while it is 10 kB off at most.

    The package's size changes with every commit.
    """
    written = re.findall(
        r"\| \[(\d+)\].*? \| \d+ \| (\d+) \|", (ROOT / "docs/notebooks.md").read_text()
    )
    rows = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        plan = runner.read_notebook(path)
        text = nbformat.writes(export.build_notebook(plan, {}))
        size, before = len(text) / 1e3, int(dict(written).get(path.name[:2], -100))
        files = re.findall(r"astkit-\w{8}/files/\w+/([\w.]+)", text)
        needs = export.find_needs(plan, {})
        files += [*needs.files, *needs.data]
        rows[f"[{path.name[:2]}](../notebooks/{path.name})"] = {
            "cells": len(json.loads(text)["cells"]),
            "kB": before if abs(size - before) <= 10 else 10 * round(size / 10),
            "takes along": ", ".join(files) or "–",
            "data": "CIFAR-10" if "dataset" in plan.defaults else "–",
        }
    return markdown(pd.DataFrame(rows).T.rename_axis("notebook"))


def digits() -> str:
    """The arms of notebook 01 on the embedded digits."""
    report = read(RESULTS / "01_digits.json")
    table = _arms(report["results"], report["settings"]["test_rows"])
    return f"{markdown(table)}\n\n{describe(report['stamp'])}"


def cifar10() -> str:
    """The run with the original's settings, and its controls, without their uneven seconds."""
    report = read(RESULTS / "01_cifar10_simple_cnn.json")
    table = _arms(report["results"], 10_000).drop(columns="seconds / dense")
    return f"{markdown(table)}\n\n{describe(report['stamp'])}"


def _arms(results: list[Report], test_rows: int) -> pd.DataFrame:
    """Means over seeds, as text; costs as a share of dense training in the same comparison."""
    arms = pd.DataFrame(results).groupby("arm", sort=False)
    columns = ["test_accuracy", "rate", "samples_trained", "flops", "seconds"]
    means, accuracy = arms[columns].mean(), arms["test_accuracy"].mean()
    equal = " at equal FLOPs"
    control = [f"dense{equal}" if arm.endswith(equal) else "dense" for arm in means.index]
    share = means[["flops", "seconds"]] / means.loc[control, ["flops", "seconds"]].to_numpy()
    shown = {
        "n": arms.size().astype(str),
        "test accuracy": accuracy.map("{:.2%}".format),
        "spread": arms["test_accuracy"].std().map(_percent),
        "test split ±": accuracy.map(lambda each: f"{split_error(each, test_rows):.2%}"),
        "rate": means["rate"].map(_percent),
        "samples trained": means["samples_trained"].map("{:,.0f}".format),
        "FLOPs / dense": share["flops"].map("{:.2f}".format),
        "seconds / dense": share["seconds"].map("{:.2f}".format),
    }
    return pd.DataFrame(shown)


def split_error(accuracy: float, rows: int) -> float:
    """Half width of Wilson's 95 % interval of an ``accuracy`` on ``rows`` test samples."""
    low, high = wilson_interval(round(accuracy * rows), rows)
    return (high - low) / 2


def _percent(share: float) -> str:
    return "–" if pd.isna(share) else f"{share:.2%}"


def package() -> str:
    """The original's package beside the kit."""
    report = read(RESULTS / "origin.json")
    return f"{markdown(origin.table(report['rows']))}\n\n{describe(report['stamp'])}"


def benchmarks() -> str:
    """Interleaved ratios of what batching, planning and resident data gain."""
    return _ratios(read(HERE / "results.json"))


def speed() -> str:
    """Seconds of a step over those of raw loops."""
    report = read(HERE / "speed.json")
    libraries = ", ".join(f"{name} {version}" for name, version in report["peers"].items())
    return f"{_ratios(report)} · {libraries}"


def gpu_earlier() -> str:
    """Ratios of calls that took turns on a GPU, and joules of a batch, of an earlier commit."""
    report = read(HERE / "gpu_origin.json")
    parts, stated = report["parts"], {"bound": None}
    ratios = {
        f"simple_cnn, {way}: fp32 / bf16, compiled": ratio
        for way, ratio in parts["half_and_compiled"]["fp32_over_fast"].items()
    }
    ratios["simplified_vit: sample by sample / gate"] = parts["by_sample"]["ratio"]
    more = [{"name": name, **ratio, **stated} for name, ratio in ratios.items()]
    said = []
    for name in [name for name in parts if name.startswith("joules")]:
        part, each = parts[name], []
        for way, taken in part["joules_a_batch"].items():
            seconds = part["readings"][way]["window_s"] / part["steps"][way]
            each.append(f"{way} {taken:.2f} J and {1000 * seconds:.1f} ms")
        said.append(f"- a batch of {name.removeprefix('joules, ')}: {', '.join(each)}")
    table = _ratios({**report, "figures": parts["overhead"]["figures"] + more})
    return "\n".join([*said, "", table])


def _ratios(report: Report) -> str:
    rows = [
        {
            "ratio": figure["name"],
            "median": f"{figure['median']:.3g}",
            "95 % interval": f"[{figure['low']:.3g}, {figure['high']:.3g}]",
            "n": figure["n"],
            "bound": "stated"
            if figure["bound"] is None
            else f"{figure['sense']} {figure['bound']:g}",
        }
        for figure in report["figures"]
    ]
    return f"{markdown(pd.DataFrame(rows).set_index('ratio'))}\n\n{describe(report['stamp'])}"


def scores() -> str:
    """What each score costs beyond the loss, on two networks."""
    report = read(HERE / "score_costs.json")
    rows: dict[str, dict[str, str]] = {}
    for cost in report["figures"]:
        time = cost["seconds"]
        rows.setdefault(cost["score"], {}).update(
            {
                "extra FLOPs / forward": f"{cost['extra_flops'] / cost['forward_flops']:.3g}",
                f"seconds / loss, {cost['network']}": (
                    f"{time['median']:.3f} [{time['low']:.3f}, {time['high']:.3f}]"
                ),
            }
        )
    return shown(rows, "score", report["stamp"])


def lattice() -> str:
    """Retrieval of the lattice, its baselines and its bypass; notebook 04 shows all arms."""
    report = read(RESULTS / "lattice_learning.json")
    rows = {name: _learned([found]) for name, found in report["baselines"].items()}
    rows |= {name: _learned(report["arms"][name]["rows"], "val_") for name in SHOWN}
    first = next(iter(report["arms"].values()))
    return shown(rows, "from a paragraph to the next one", first["stamp"])


def _learned(runs: list[dict[str, float]], prefix: str = "") -> dict[str, str]:
    shown = {"n": str(len(runs)) if prefix else "", "steps": str(runs[0].get("steps", ""))}
    for metric in ("mrr", "cosine", "top1"):
        values = [run[f"{prefix}{metric}"] for run in runs]
        span = f" ({min(values):.3f}-{max(values):.3f})" if len(values) > 1 else ""
        shown[metric] = f"{mean(values):.3f}{span}"
    return shown


def logic_ca() -> str:
    """Hard automata at the end of a training, a run per seed."""
    report = read(RESULTS / "logic_ca_training.json")
    rows = {}
    for name, part in report.items():
        runs = [run for run in part["runs"] if "final" in run]
        if not runs:
            continue
        solved = [run["first_without_error"] for run in runs]
        large, healed = zip(*(_on_larger_grids(run["after"]) for run in runs), strict=True)
        rows[name] = {
            "n": str(len(runs)),
            "updates": str(runs[0]["iterations"]),
            "cells right, hard": ", ".join(f"{run['final']['accuracy']:.2%}" for run in runs),
            "first all right, update": ", ".join("–" if at is None else str(at) for at in solved),
            "larger grid": ", ".join(large),
            "after damage": ", ".join(filter(None, healed)),
            "training, s": ", ".join(f"{run['seconds']['training']:.0f}" for run in runs),
            "commit": str(part["stamp"]["commit"])[:8],
        }
    table = pd.DataFrame(rows).T.rename_axis("task, seed by seed")
    first = next(iter(report))
    return f"{markdown(table)}\n\n{first}: {describe(report[first]['stamp'])}"


def _on_larger_grids(after: dict[str, float]) -> tuple[str, str]:
    """Share of cells that are right, of Life over all steps; of a board also after damage."""
    if "mismatches" in after:
        return f"{1 - after['mismatches'] / (after['steps'] * after['side'] ** 2):.2%}", ""
    return f"{after['accuracy']:.2%}", f"{after['healed']:.2%}"


def claims() -> str:
    """Every published figure beside what was measured, and the results that it comes from.

    Unlike the other tables it shows results measured with local changes, and says so.
    """
    table = figures.table()
    for run in filter(None, table["run"].unique()):
        dirty = any(stamp["dirty"] for stamp in _stamps(json.loads((ROOT / run).read_text())))
        link = f"[{Path(run).stem}](../{run}){' (with changes)' * dirty}"
        table["run"] = table["run"].replace(run, link)
    return markdown(table)


def distributed() -> str:
    """Bytes that selection adds per step and process: counted, and by formula."""
    report, rows = read(HERE / "distributed.json"), {}
    for found in report["figures"]:
        row = rows.setdefault(found["policy"], {})
        row[f"sent, N = {found['world']}"] = f"{found['counted']['sent']:,.0f}"
        row[f"received, N = {found['world']}"] = (
            f"{found['counted']['received']:,.0f} (formula {found['formula']['received']:,.0f})"
        )
    for name, row in rows.items():
        for world in (8, 64, 1024):
            received = bytes_added.formula(name, bytes_added.TYPICAL, world, 100)[1]
            row[f"received by formula, N = {world:,}"] = f"{received:,.0f}"
    return shown(rows, "bytes a step", report["stamp"])


def beyond_images() -> str:
    """The policies on the tasks beyond images; the verdicts that tell something as a list."""
    report = read(HERE / "tasks.json")
    parts = {name: report[name] for name in tasks.NAMES if name in report}
    said = [
        f"- {name}, {each.sentence}."
        for name, part in parts.items()
        for each in tasks.verdicts(part)
        if each.outcome != "cannot tell yet"
    ]
    return "\n\n".join([markdown(tasks.table(parts)), "\n".join(said), _commits(parts)])


def tokens() -> str:
    """Token selection by the excess over a reference model."""
    part = {"tokens": read(HERE / "tasks.json")["tokens"]}
    return f"{markdown(tasks.table(part, costs=True))}\n\n{_commits(part)}"


def learned() -> str:
    """Learned significance beside cached losses, and what planning costs."""
    part = read(HERE / "tasks.json")["learned"]
    arms = by_arm(part["entries"])
    gap = gaps(arms["learned"], arms["cached_loss"]).estimate().interval()
    cpu, table = part["planning"], tasks.table({"learned": part}, costs=True)
    said = (
        f"learned against cached_loss: {amount(gap, part['metric'])},"
        f" n = {gap.n}. Planning an epoch of {cpu['rows']:,} samples takes"
        f" {1000 * cpu['learned']:.0f} ms of CPU time, with cached_loss"
        f" {1000 * cpu['cached_loss']:.0f} ms (medians, n = {cpu['n']}, one thread)."
    )
    return f"{markdown(table)}\n\n{_commits({'learned': part})}\n\n{said}"


def optimal() -> str:
    """Cost to reach an accuracy by keep fraction, and the fit of the cost model."""
    report = read(HERE / "optimal_rate.json")
    return f"{markdown(optimal_rate.table(report))}\n\n{_commits(report)}"


def _commits(parts: Report) -> str:
    commits = sorted({str(part["stamp"]["commit"])[:8] for part in parts.values()})
    return f"Commits: {', '.join(commits)}. {describe(list(parts.values())[-1]['stamp'])}"


def quick_runs() -> str:
    """CPU seconds of each notebook with preset "quick"."""
    report = read(quick.RESULTS)
    rows = {}
    for number, row in sorted(report["notebooks"].items()):
        user, system, both = quick.median(row)
        link = f"[{number}](../{_notebook(number).relative_to(ROOT)})"
        rows[link] = {"user, s": f"{user:.1f}", "system, s": f"{system:.1f}", "both": f"{both:.1f}"}
        rows[link]["n"] = str(len(row["runs"]))
    return shown(rows, "notebook", report["stamp"])


def suspects() -> str:
    """Wrong labels found, in words."""
    return wrong_labels.sentence(read(HERE / "suspects.json")["rows"])


def suspects_found() -> str:
    """Wrong labels found by one training, and by cleanlab's cross-validation."""
    report = read(HERE / "suspects.json")
    commits = ", ".join(sorted({row["commit"][:8] for row in report["rows"]}))
    found = markdown(wrong_labels.table(report["rows"]))
    return f"{found}\n\nCommits: {commits}. {describe(report['stamp'])}"


def record() -> str:
    """How often forecasts on natural shifts were right."""
    entries = read(natural.RESULTS)["entries"]
    total, sure, right, wrong = natural.record(entries).iloc[:, :4].sum().astype(int)
    shifts = len({each["shift"] for each in entries})
    return (
        f"The record, on {shifts} natural shifts of real tables: {natural.SPLITS} splits of each"
        f" gave {total} forecasts, one for a decision. {sure} have an interval without 0. The sign"
        f" of {right} of these is right; {wrong} of the others are significantly wrong."
    )


FILES: dict[str, tuple[Callable[[], str], ...]] = {
    "README.md": (on_bikes, record, notebooks),
    "docs/which_data.md": (natural_tables.finding,),
    "docs/compare.md": (example, suspects),
    "docs/training.md": (gpu_gains, joules),
    "docs/notebooks.md": (exports,),
    "docs/measured.md": (
        digits,
        cifar10,
        package,
        benchmarks,
        speed,
        gpu_steps,
        gpu_ratios,
        gpu_compiled,
        gpu_graphs,
        gpu_earlier,
        scores,
        claims,
        suspects_found,
        beyond_images,
        tokens,
        learned,
        optimal,
        lattice,
        logic_ca,
        distributed,
        board_costs,
        quick_runs,
    ),
}


def _folded(line: re.Match[str]) -> str:
    """The stamp of a table, to be opened by a click; what stands before it stays."""
    before = f"{line[1].strip()}\n\n" * bool(line[1])
    return f"{before}<details><summary>Measured with</summary>\n\n{line[2]}\n\n</details>"


def fill(name: str, text: str) -> str:
    """The ``text`` of a file with its tables made anew from their results."""
    for make in FILES[name]:
        pattern = rf"<!-- {make.__name__} -->.*?<!-- end -->"
        found = re.findall(pattern, text, re.DOTALL)
        if len(found) != 1:
            raise ValueError(
                f"{name} has {len(found)} places for {make.__name__!r}: mark exactly one"
            )
        shown = STAMP.sub(_folded, make())
        block = f"<!-- {make.__name__} -->\n{shown}\n<!-- end -->"
        text = text.replace(found[0], block)
    return text


if __name__ == "__main__":
    for number in NOTEBOOKS:
        files.write_atomic(ROOT / "docs" / "static" / f"{number}.png", thumbnail(number))
    for name, picture in badges().items():
        files.write_atomic(ROOT / "docs" / "static" / name, picture)
    files.write_atomic(ROOT / "docs" / "static" / "joules.png", joules_picture().png())
    for name in FILES:
        files.write_atomic(ROOT / name, fill(name, (ROOT / name).read_text()))
