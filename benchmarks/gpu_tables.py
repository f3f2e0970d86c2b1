"""Tables of what was measured on a GPU: steps by network and batch size, marks, graphs, joules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from astkit.files import read_json
from astkit.stamp import describe
from astkit.widgets.style import HATCHES, PAPER, Picture, line, picture, styled
from benchmarks.bench import BATCH, HERE, RESULTS, markdown
from benchmarks.gpu import GATE_RATE, RATIOS, SIZES

Report = dict[str, Any]
STEPS = RESULTS / "gpu.json"
COMPILED = HERE / "gpu_compiled.json"
GRAPHS = HERE / "gpu_graphs.json"
FAST = "gate, fast / dense, fast"
LEAST_REPLAYED = 0.9


class Mark(NamedTuple):
    """A figure, the bound that it should keep, and why it may not."""

    name: str
    value: float
    sense: str
    bound: float
    reason: str = ""

    @property
    def kept(self) -> bool:
        return self.value <= self.bound if self.sense == "at most" else self.value >= self.bound


def cases(parts: Report) -> Iterator[tuple[str, int, Report]]:
    """Network, rows of a batch and its part; networks in the order of `SIZES`, large ones first."""
    networks = list(dict.fromkeys(name for name, _ in SIZES))
    for name, size in sorted(SIZES, key=lambda each: (networks.index(each[0]), -each[1])):
        part = parts.get(f"steps, {name}, {size}", {})
        if "seconds" in part:
            yield name, size, part


def marks(parts: Report) -> list[Mark]:
    """What a step and a batch should take."""
    found = []
    least = min(part["seconds"]["gate, fast"] for _, _, part in cases(parts))
    for name, size, part in cases(parts):
        ratio = {key: each["median"] for key, each in part["ratios"].items()}
        idle = part["busy"]["dense"] < 0.5
        launched = (
            f"The GPU computes in {part['busy']['dense']:.0%} of such a step; in the rest it waits"
            " for Python."
        )
        between = (
            "Rows are chosen between two graphs, by kernels that are launched one by one: no gate's"
            f" step takes less than {1e3 * least:.1f} ms."
        )
        case = f"{name}, {size}: "
        found += [
            Mark(f"{case}dense / raw", ratio["dense / raw"], "at most", 1.15, launched),
            Mark(
                f"{case}dense / dense, fast",
                ratio["dense / dense, fast"],
                "at least",
                3.0 if idle else 1.0,
            ),
            Mark(case + FAST, ratio[FAST], "at most", 0.8 if size == BATCH else 0.55, between),
        ]
        for way, share in part["replayed"].items():
            why = str(part["reasons"][way] or "")
            found.append(Mark(f"{case}{way}, replayed", share, "at least", LEAST_REPLAYED, why))
    for name, joules in joules_of(parts).items():
        saved = joules["gate"] / joules["dense"]
        found.append(Mark(f"{name}: joules, {FAST}", saved, "at most", 0.55))
    return found


def joules_of(parts: Report) -> dict[str, dict[str, float]]:
    """Joules of a batch, dense and with the gate, by network and batch size."""
    return {
        name.removeprefix("joules, "): part["joules_a_batch"]
        for name, part in parts.items()
        if name.startswith("joules") and "joules_a_batch" in part
    }


def gpu_steps() -> str:
    """Milliseconds of a step of each arm, the GPU's share of it, and the share replayed."""
    report, rows = read_json(STEPS), {}
    for name, size, part in cases(report["parts"]):
        row = {f"{way}, ms": f"{1e3 * s:.3g}" for way, s in part["seconds"].items()}
        row |= {f"{way}: GPU computes": f"{each:.0%}" for way, each in part["busy"].items()}
        row |= {f"{way}: replayed": f"{each:.1%}" for way, each in part["replayed"].items()}
        rows[f"{name}, {size}"] = row
    return _table(rows, "network, rows of a batch")


def gpu_ratios() -> str:
    """Ratios of the arms, which took turns, and the marks that they keep or miss."""
    report, rows = read_json(STEPS), {}
    parts = report["parts"]
    for name, size, part in cases(parts):
        found = {
            f"{above} / {below}": part["ratios"][f"{above} / {below}"] for above, below in RATIOS
        }
        rows[f"{name}, {size}"] = {
            key: f"{each['median']:.3g} [{each['low']:.3g}, {each['high']:.3g}]"
            for key, each in found.items()
        }
    windows = next(iter(cases(parts)))[2]["ratios"][FAST]["n"]
    checked = marks(parts)
    missed = [mark for mark in checked if not mark.kept]
    measured = {(name, size) for name, size, _ in cases(parts)}
    left = [f"{name} at {size}" for name, size in SIZES if (name, size) not in measured]
    said = [
        f"- {each.name} is {each.value:.3g}; the mark is {each.sense} {each.bound:g}. {each.reason}"
        for each in missed
    ]
    kept = f"Of {len(checked)} marks for medians {len(checked) - len(missed)} are kept; missed:"
    rest = f"Not measured: {', '.join(left)}. " if left else ""
    joules = [
        f"- a batch of {name}: dense {each['dense']:.2f} J, gate {each['gate']:.2f} J, both fast"
        for name, each in joules_of(parts).items()
    ]
    table = _table(rows, f"network, rows of a batch; medians of {windows} windows")
    stamp = f"{rest}{describe(report['stamp'])}"
    return "\n".join([table, "", *joules, "", kept, "", *said, "", stamp])


def gpu_gains() -> str:
    """What fast settings and a gate gain, in two sentences."""
    parts = read_json(STEPS)["parts"]

    def span(key: str, large: bool) -> str:
        found = [
            part["ratios"][key]["median"]
            for _, size, part in cases(parts)
            if (size > BATCH) == large
        ]
        return f"{min(found):.2g} to {max(found):.2g}"

    dense = "dense / dense, fast"
    return (
        f"- Dense fast steps are {span(dense, True)} times as fast as plain ones with batches of"
        f" 512 and 2048, {span(dense, False)} times with {BATCH}.\n"
        f"- A gate at a rate of {GATE_RATE:g} takes {span(FAST, True)} of a dense step's time with"
        f" 512 and 2048, and {span(FAST, False)} with {BATCH}, both fast."
    )


def gpu_compiled() -> str:
    """Steps with ``torch.compile`` in place of graphs."""
    compiled, graphs, rows = read_json(COMPILED), read_json(STEPS)["parts"], {}
    for name, size, part in cases(compiled["parts"]):
        recorded = graphs[f"steps, {name}, {size}"]["seconds"]
        rows[f"{name}, {size}"] = {
            f"{way.removesuffix(', fast')}, {kind}, ms": f"{1e3 * seconds[way]:.3g}"
            for way in ("dense, fast", "gate, fast")
            for kind, seconds in (("compile", part["seconds"]), ("graphs", recorded))
        }
    table = _table(rows, "network, rows of a batch")
    return f"{table}\n\nWith compile: {describe(compiled['stamp'])}"


def gpu_graphs() -> str:
    """Weights after recorded steps beside those after usual ones; waits and NaN."""
    report, rows = read_json(GRAPHS), {}
    parts = report["parts"]
    for name, part in parts.items():
        if name.startswith("equal, "):
            rows[name.removeprefix("equal, ")] = {
                "recorded and not": f"{part['difference']:.2g}",
                "recorded and usual": f"{part['from usual steps']:.2g}",
                "usual, twice": f"{part['usual steps twice']:.2g}",
                "replayed": f"{part['share']:.1%}",
            }
    waits = [part for name, part in parts.items() if name.startswith("waits")]
    broken = [part for name, part in parts.items() if name.startswith("NaN")]
    said = (
        f"The host waited {sum(part['waits'] for part in waits)} times in {len(waits)} times"
        f" {waits[0]['steps']} replayed steps. After a NaN the weights were unchanged, and the next"
        f" report raised, in {sum(part['kept'] for part in broken)} of {len(broken)} cases."
    )
    table = _table(rows, "largest difference of weights, of the largest weight")
    return f"{table}\n\n{said}\n\n{describe(report['stamp'])}"


def joules() -> str:
    """What a gate saves, in words and as a picture with its alternative text."""
    report = read_json(STEPS)
    said = [
        f"{name} dense {each['dense']:.2f} J, gate {each['gate']:.2f} J"
        f" ({each['gate'] / each['dense'] - 1:+.0%})"
        for name, each in joules_of(report["parts"]).items()
    ]
    return f"![Joules of a batch: {'; '.join(said)}](static/joules.png)"


@styled
def joules_picture() -> Picture:
    """Joules of a batch, a pair of bars for each network."""
    found = joules_of(read_json(STEPS)["parts"])
    figure = picture(width=7.0, height=2.6)
    axis = figure.axes[0]
    for place, way in enumerate(("dense", "gate")):
        look: dict[str, Any] = {
            "color": line(way)["color"],
            "hatch": HATCHES[place],
            "edgecolor": PAPER,
        }
        label = way if way == "dense" else f"gate, rate {GATE_RATE:g}"
        values = [each[way] for each in found.values()]
        places = np.arange(len(found)) + 0.4 * place
        axis.barh(places, values, height=0.38, label=label, **look)
        for value, at in zip(values, places, strict=True):
            axis.text(value, at, f"  {value:.2f}", va="center", size=9)
    shares = [each["gate"] / each["dense"] for each in found.values()]
    axis.set_yticks(np.arange(len(found)) + 0.2, [f"{name} rows" for name in found])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)
    axis.set(
        title=f"a gate takes {min(shares):.2f} to {max(shares):.2f} of dense training's joules"
    )
    axis.set_xlabel("joules of a batch")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _table(rows: dict[str, Any], axis: str) -> str:
    return markdown(pd.DataFrame(rows).T.rename_axis(axis))
