"""The picture of README: ``python -m benchmarks.hero``, from committed results.

Rows by this rule: the natural shifts by time, one a source, on later rows, in their order; then the
conditions of `MADE`. None is left out. Light and dark, 7.6 inches wide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

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
    """A kind of data: gain of `aim` with its interval, and that of both, in ``unit``."""

    name: str
    gain: tuple[float, float, float]
    both: float
    unit: str

    @property
    def words(self) -> str:
        """The gain, as "+24 %" or "+1.6 points"."""
        unit = "%" if self.unit == "%" else "points"
        digits = 0 if self.unit == "%" and abs(self.gain[0]) >= 10 else 1
        return f"{self.gain[0]:+.{digits}f} {unit}".replace("-0.0", "0.0").replace("+0.0", "0.0")


def rows() -> list[Row]:
    """From natural_training.json and 06_shares.json."""
    gains = natural_training.gains(read_json(natural_training.RESULTS)["entries"])
    lines = {each["shift"]: each for each in gains if each["later"]}
    found = [
        Row(words, tuple(lines[name]["aim"]), lines[name]["both"][0], lines[name]["unit"])
        for name, words in natural_training.SOURCES.items()
    ]
    content = read_json(shares.SHARES)
    table = [*content["rows"], *content["aim_on_target"]]
    for begin, words in MADE:
        mine = {row["policy"]: row for row in table if row["condition"].startswith(begin)}
        aim, both = mine.get(shares.AIM_ON_TARGET, mine["aim"]), mine["dense+target"]
        gain = (aim["gain"], aim["gain_low"], aim["gain_high"])
        found.append(Row(words, gain, both["gain"], aim["unit"]))
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
    """Gains as dots with intervals, the natural shifts first."""
    figure = Figure(figsize=(7.6, 1.2 + 0.27 * len(shown)), layout="constrained")
    axes = figure.subplots()
    natural = len(shown) - len(MADE)
    for number, row in enumerate(shown):
        place = number + 0.6 * (number >= natural)
        mean, low, high = row.gain
        sure = low > 0
        colour = colours["gain"] if sure else colours["soft"]
        axes.barh(place, mean, height=0.34, color=colours["bar"] if sure else "none")
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
        axes.plot(mean, place, "o", color=colour, markersize=6)
        axes.plot(row.both, place, "|", color=colours["ink"], markersize=13)
        look: Any = {"va": "center", "size": 9, "transform": axes.get_yaxis_transform()}
        axes.text(-0.01, place, row.name, ha="right", color=colours["ink"], **look)
        weight = "bold" if sure else "normal"
        axes.text(1.01, place, row.words, color=colour, weight=weight, **look)
    axes.axvline(0, color=colours["ink"], linewidth=1)
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.tick_params(colors=colours["soft"], labelsize=8)
    axes.set_xlabel(
        "gain over dense training at equal FLOPs: error lower by %, or points of accuracy\n"
        "● aim, 95 % interval of 5 runs    | both    upper rows: real tables, later in time",
        fontsize=8,
        color=colours["soft"],
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colours["soft"])
    figure.suptitle(
        title(shown), x=0.01, ha="left", fontsize=12, fontweight="bold", color=colours["ink"]
    )
    return figure


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
