"""The picture of README: ``python -m benchmarks.hero``, from committed results.

Rows by this rule: the natural shifts by time, one a source, on later rows, in their order; then, in
a panel of its own, the conditions of `MADE`. None is left out. All gains are in percent of the
error, that of a classifier being its share of wrong answers. Light and dark, 7.6 inches wide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from astkit.files import read_json
from benchmarks import bench, natural_training, shares

FOLDER = bench.ROOT / "docs" / "static"
MADE = (
    ("table: older rows follow another law", "table: older rows follow another law"),
    ("four of five texts are irrelevant", "texts: four of five irrelevant"),
    ("long tail, balanced target (Fashion-MNIST", "images: long tail"),
    ("half of the images are of another domain (Fashion-MNIST", "images: half of another domain"),
    ("40 % wrong labels (Fashion-MNIST", "images: 40 % wrong labels"),
    ("clean (Fashion-MNIST", "images: clean"),
)
LIGHT = {"ink": "#1a1a1a", "soft": "#666666", "gain": "#117733", "bar": "#c5dccb"}
DARK = {"ink": "#e6edf3", "soft": "#9da7b3", "gain": "#56d364", "bar": "#1f4429"}


class Row(NamedTuple):
    """A kind of data: gain of `aim` with its interval, and that of both, in % of the error."""

    name: str
    gain: tuple[float, float, float]
    both: float

    @property
    def words(self) -> str:
        """The gain, as "+24 %"."""
        digits = 0 if abs(self.gain[0]) >= 10 else 1
        return f"{self.gain[0]:+.{digits}f} %".replace("-0.0", "0.0").replace("+0.0", "0.0")


def rows() -> list[Row]:
    """From natural_training.json and 06_shares.json."""
    gains = natural_training.gains(read_json(natural_training.RESULTS)["entries"])
    lines = {each["shift"]: each for each in gains if each["later"]}
    found = []
    for name, words in natural_training.SOURCES.items():
        if lines[name]["unit"] != "%":
            raise ValueError(f"{name}: gains are in {lines[name]['unit']}, not in % of the error")
        found.append(Row(words, tuple(lines[name]["aim"]), lines[name]["both"][0]))
    content = read_json(shares.SHARES)
    table = [*content["rows"], *content["aim_on_target"]]
    for begin, words in MADE:
        mine = {row["policy"]: row for row in table if row["condition"].startswith(begin)}
        aim, both = mine.get(shares.AIM_ON_TARGET, mine["aim"]), mine["dense+target"]
        # one point of accuracy, in percent of the share of wrong answers
        scale = 1.0 if aim["unit"] == "%" else 1 / (1 - aim["dense"])
        gain = [scale * aim[name] for name in ("gain", "gain_low", "gain_high")]
        gain[2] = min(gain[2], 100.0)  # no error falls by more
        found.append(Row(words, (gain[0], gain[1], gain[2]), scale * both["gain"]))
    return found


def title(shown: list[Row]) -> str:
    """What the picture says, counted."""
    real, made = shown[: -len(MADE)], shown[-len(MADE) :]
    of_real, of_made = (sum(each.gain[1] > 0 for each in rows) for rows in (real, made))
    losses = sum(each.gain[2] < 0 for each in shown)
    return (
        f"aim gains in {of_real} of {len(real)} real tables and {of_made} of {len(made)} made"
        f" cases;\n{losses or 'no'} significant {'loss' if losses < 2 else 'losses'}"
    )


def picture(shown: list[Row], colours: dict[str, str]) -> Figure:
    """Gains as dots with intervals: a panel for the natural shifts, and one for made cases."""
    natural = len(shown) - len(MADE)
    parts = {
        "real tables: old rows, recent rows, later test rows": shown[:natural],
        "data made unlike the target on purpose": shown[natural:],
    }
    figure = Figure(figsize=(7.6, 2.1 + 0.27 * len(shown)), layout="constrained")
    figure.get_layout_engine().set(hspace=0.06)
    axes = figure.subplots(2, height_ratios=[len(part) + 0.5 for part in parts.values()])
    for axis, (name, part) in zip(axes, parts.items(), strict=True):
        _panel(axis, part, colours)
        look: Any = {"transform": axis.transAxes, "color": colours["soft"], "size": 9}
        axis.text(0, 1.03, name, style="italic", **look)
    marks = [
        Line2D([], [], color=colours["gain"], marker="o", label="aim, 95 % interval of 5 runs"),
        Line2D([], [], color=colours["ink"], marker="|", ls="none", ms=13, label="both"),
    ]
    look = {"frameon": False, "fontsize": 9, "labelcolor": colours["ink"]}
    axes[0].legend(handles=marks, loc="lower right", **look)
    axes[1].set_xlabel(
        "error lower than dense training's at equal FLOPs, %", fontsize=9, color=colours["soft"]
    )
    figure.suptitle(
        title(shown), x=0.01, ha="left", fontsize=12, fontweight="bold", color=colours["ink"]
    )
    return figure


def _panel(axis: Axes, part: list[Row], colours: dict[str, str]) -> None:
    """A row for each kind of data."""
    for place, row in enumerate(part):
        mean, low, high = row.gain
        sure = low > 0
        colour = colours["gain"] if sure else colours["soft"]
        axis.barh(place, mean, height=0.34, color=colours["bar"] if sure else "none")
        axis.plot([low, high], [place, place], color=colour, linewidth=1.6)
        axis.plot(mean, place, "o", color=colour, markersize=6)
        axis.plot(row.both, place, "|", color=colours["ink"], markersize=13, markeredgewidth=1.4)
        look: Any = {"va": "center", "size": 9, "transform": axis.get_yaxis_transform()}
        axis.text(-0.01, place, row.name, ha="right", color=colours["ink"], **look)
        weight = "bold" if sure else "normal"
        axis.text(1.01, place, row.words, color=colour, weight=weight, **look)
    axis.axvline(0, color=colours["ink"], linewidth=1)
    axis.set_ylim(len(part) - 0.4, -0.6)
    axis.set_yticks([])
    axis.tick_params(colors=colours["soft"], labelsize=8)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(colours["soft"])


def main() -> None:
    """Write the picture for light and for dark pages."""
    shown = rows()
    for name, colours in (("hero", LIGHT), ("hero_dark", DARK)):
        with rc_context({"font.size": 9}):
            picture(shown, colours).savefig(FOLDER / f"{name}.png", dpi=200, transparent=True)
    for each in shown:
        print(each.name, each.words)


if __name__ == "__main__":
    main()
