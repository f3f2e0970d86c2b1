"""The result of `astkit.compare`: verdicts, tables and a figure, as HTML or JSON.

``entries`` are those of `astkit.comparison.statistics`, ``verdicts`` those of `verdict.judge`, and
``metric`` is the name of the entries' ``value``. Tables need pandas.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load
from torch import Tensor

from astkit.aim.forecast import Forecast
from astkit.comparison.samples import Samples, Suspects, explorer, image_tag, together
from astkit.comparison.statistics import (
    ALONE,
    BOTH,
    COSTS,
    DENSE,
    Entry,
    Interval,
    by_arm,
    cost_ratio,
    cost_share,
    is_finite,
    mean_interval,
    pairs,
)
from astkit.comparison.trees import USE_TREES
from astkit.comparison.verdict import NONE_BETTER, Verdict, in_unit, judge, leading, unit
from astkit.files import plain_values, read_json, write_atomic, write_json

if TYPE_CHECKING:
    import pandas as pd

    from astkit.widgets.explore import Explorer
    from astkit.widgets.style import Picture

NAME = "comparison.json"
NEEDED = {"policy", "seed", "value", "flops", "seconds", "rate", "curve", "visits"}  # of an entry
SCHEMA = 6
"""Version of `Comparison.to_json`; it is raised when a key changes its meaning or goes."""
KEPT: tuple[str, ...] = (
    "metric",
    "higher",
    "smallest_gain",
    "given_forecast",
    "baseline",
    "notes",
    "settings",
)
KEPT += ("stamp", "entries", "old_rows")
BEST = ("best_step", "best_flops")  # of a method that keeps its best validation point
MEANS = ("value", *COSTS, "joules", "trained", "scored", "rate", *BEST)
ON_TARGET = {BOTH: "both", ALONE: "the target alone"}
MANY = 30  # more seeds than are proposed
ITS_DECISION = r"^forecast: (cannot tell, )?|:? ?train on the old rows:? ?"
"""What a forecast's sentence has beside its reason, where it keeps the old rows."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>
<div class="astkit-comparison" style="font-family: sans-serif; margin: 1em">
{body}
</div></body></html>
"""
_NONE = "–"


class Comparison:
    """Result of `compare`; in a notebook it displays the verdicts, the table and the figure.

    Example::

        report = compare(make_model, train, validation, test, policies=["aim"])
        print(report.verdict)
        report.to_html("report.html")

    Attributes:
        entries: one mapping per method and seed: ``policy`` ("dense", "random at 0.3", or the label
            of a policy), ``seed``, ``value`` of the metric on the test data, ``seconds`` of
            training, ``joules`` (or ``None``, with ``joules_reason``), ``flops`` (``None`` if they
            cannot be counted), ``trained`` and ``scored`` (samples), ``rate`` (share trained on),
            ``curve``: lists ``[FLOPs, seconds, validation value]``, ``stamp``: where it was
            trained, and ``visits``, a file name.
        metric, higher: name of ``value``, and whether a higher one is better.
        forecast: which data to train on, told before any training; without weights. ``None`` if no
            policy asks, and of a file of an earlier version.
        given_forecast: policies whose rows it chose, for all seeds.
        baseline: sentences on an untuned or short baseline, shown before the verdicts.
        notes: sentences on what was left out, could not be measured, or has to be known.
        settings: what the runs share; ``stamp``: environment of the latest call.
        smallest_gain: gains below it are called none; see `verdict.judge`.
        old_rows: number of rows before those of a target; ``None`` without a target.
        train: the training data; ``None`` for a loaded comparison.
    """

    def __init__(self, contents: Mapping[str, Any], folder: Path, train: Any = None) -> None:
        self.entries: list[dict[str, Any]] = list(contents["entries"])
        self.metric: str = contents["metric"]
        self.higher: bool = contents["higher"]
        self.notes: list[str] = list(contents.get("notes", []))
        self.baseline: list[str] = list(contents.get("baseline", []))
        forecast = contents.get("forecast") or {}
        known = "decision" in forecast  # else of an earlier version
        self.forecast = Forecast.from_json(forecast) if known else None
        self.given_forecast = list(contents.get("given_forecast", []))
        self.settings = dict(contents.get("settings", {}))
        self.stamp = dict(contents.get("stamp", {}))
        self.smallest_gain: float | None = contents.get("smallest_gain")
        self.old_rows: int | None = contents.get("old_rows")
        self.train = train
        self._folder = folder  # of the arrays

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """A comparison from a file written by `save`, or from the folder ``out`` of `compare`.

        Raises ``ValueError`` for another file, or one without its folder of arrays, and
        ``FileNotFoundError`` for a missing one.
        """
        path = Path(path).expanduser()
        path = path / NAME if path.is_dir() else path
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist: give a file that `save` wrote")
        contents = read_json(path)
        if not contents.get("entries"):
            raise ValueError(f"{path} is no comparison: it has no entries")
        if lacking := {name for entry in contents["entries"] for name in NEEDED - entry.keys()}:
            raise ValueError(f"{path} is no comparison: its entries lack {', '.join(lacking)}")
        folder = path.with_name(f"{path.stem}_visits")
        if not all((folder / Path(entry["visits"]).name).exists() for entry in contents["entries"]):
            raise ValueError(
                f"{folder}, which holds the test rows of {path.name}, is not complete: copy the"
                " file and this folder together"
            )
        try:
            return cls(contents, folder)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged ({str(error)!r:.200}): delete it, or restore a copy"
            ) from error

    def save(self, path: str | Path) -> Path:
        """Write everything to a JSON file, and the arrays to a folder beside it."""
        path = Path(path).expanduser()
        folder = path.with_name(f"{path.stem}_visits")
        if folder != self._folder and self._folder.exists():
            shutil.copytree(self._folder, folder, dirs_exist_ok=True)
        return write_json(path, self.to_json())

    # --- what was found ---

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """One verdict per policy."""
        return self._judged()

    @cached_property
    def controls(self) -> list[Verdict]:
        """The same for each control beside dense training."""
        return self._judged(controls=True)

    def _judged(self, controls: bool = False) -> list[Verdict]:
        return judge(
            self.entries,
            self.metric,
            self.higher,
            rows=self.test_rows,
            smallest_gain=self.smallest_gain,
            controls=controls,
            given_forecast=self.given_forecast,
            since=self._why_not,
        )

    @property
    def _why_not(self) -> str:
        """Why a policy that asks the forecast chose no rows."""
        if self.forecast is None:
            return "the model sees no difference between the old rows and the target"
        said = re.sub(ITS_DECISION, "", self.forecast.sentence.split("; ")[0])
        return said.replace("they are", "the old rows are", 1)

    @property
    def verdict(self) -> str:
        """The sentences of all verdicts, and what to do next; a line each."""
        sentences = [*(each.sentence for each in self.verdicts), self.next_step]
        return "\n".join(f"{sentence}." for sentence in sentences)

    @property
    def next_step(self) -> str:
        """What to do with the answer, in one sentence."""
        if self.baseline:  # of another baseline the answer may be another
            said, _, remedy = self.baseline[0].rpartition("; ")
            return f"Next: {remedy}, since {said.partition(':')[0]}"
        if any(USE_TREES in note for note in self.notes):
            return "Next: use boosted trees, by astkit.forecast(...).fit()"
        lead = leading(self.verdicts)
        if lead is not None and lead.better:
            return f"Next: train with {lead.policy}, by Trainer(policy=...) or in your own loop"
        told = [each for each in self.verdicts if each.outcome == "cannot tell yet"]
        more = [each.n + each.more_seeds for each in told if 0 < each.more_seeds <= MANY]
        if more:
            return f"Next: pass seeds={min(more)}; with out= a call adds to what an earlier one ran"
        return "Next: train on all rows, as no gain is shown"

    @property
    def gains(self) -> list[str]:
        """What training on rows of a target gains."""
        return [
            f"training on {ON_TARGET[each.policy]}: {self.metric} {each.amount(each.difference)}"
            for each in self.controls
            if each.policy in ON_TARGET and each.gains
        ]

    @property
    def before(self) -> list[str]:
        """What rows of a target gain, the forecast, and what has to be known of the baseline."""
        expected = [] if self.forecast is None else [self.forecast.sentence]
        return [*self.gains, *expected, *self.baseline]

    def table(self) -> pd.DataFrame:
        """One row per method: number of seeds, and means over them; joules if they were measured.

        Seeds without a finite value are left out, and counted as ``failed`` if there are any.
        """
        import pandas as pd

        rows = {}
        for name, arm in by_arm(self.entries).items():
            runs = [run for run in arm.values() if is_finite(run["value"])]
            means = {key: mean_interval(run.get(key) for run in runs).mean for key in MEANS}
            rows[name] = {"n": len(runs), "failed": len(arm) - len(runs), **means}
        frame = pd.DataFrame(rows).T.rename_axis("policy").astype({"n": int, "failed": int})
        unknown = [name for name in ("failed", "joules") if not frame[name].any()]
        unknown += [name for name in BEST if frame[name].isna().all()]
        return frame.drop(columns=unknown).rename(columns={"value": self.metric})

    def test_rows(self, entry: Entry) -> Tensor | None:
        """Results of a run on the test rows, see `verdict.judge`; ``None`` if they are unknown.

        Or if each reading of the test data may give other rows, which cannot be paired.
        """
        if not self.settings.get("test_order", True):
            return None
        return self._arrays(entry).get("test")

    def visits(self, policy: str, seed: int) -> dict[str, Tensor]:
        """What one run trained on: ``trained`` and ``losses`` ``[8, rows]``, ``predicted``.

        See `astkit.comparison.training.RunRecord`. Raises ``ValueError`` for a run that does not
        exist.
        """
        for entry in self.entries:
            if (entry["policy"], entry["seed"]) == (policy, seed):
                return self._arrays(entry)
        known_runs = sorted({(entry["policy"], entry["seed"]) for entry in self.entries})
        raise ValueError(f"no run of {policy!r} with seed {seed}: choose one of {known_runs}")

    def _arrays(self, entry: Entry) -> dict[str, Tensor]:
        path = self._folder / Path(entry["visits"]).name
        return load(path.read_bytes()) if path.exists() else {}  # names may be no UTF-8

    def samples(
        self, policy: str, *, show: Callable[[int], Any] | None = None, target: bool = False
    ) -> Samples:
        """Which samples a method trained on, over all finite seeds; ``show``: see `Samples`.

        ``target``: whether rows of a target are ranked among the others.
        Raises ``ValueError`` for a method that was not trained, and for data without row numbers.
        """
        runs = [entry for entry in self.entries if entry["policy"] == policy]
        good = [entry for entry in runs if is_finite(entry["value"])]  # others have diverged
        seeds = [entry["seed"] for entry in good or runs] or [0]
        records = together([self.visits(policy, seed) for seed in seeds])
        if bool(records["losses"].isnan().all()):
            raise ValueError(
                "train was loaded in its own way, so nothing is known by row: pass a map-style data"
                " set, or a plain DataLoader"
            )
        ranked = None if target else self.old_rows
        return Samples(**records, data=self.train, show=show, name=policy, ranked=ranked)

    def suspects(self, k: int = 50, policy: str = DENSE, target: bool = False) -> Suspects:
        """The ``k`` rows that most likely have a wrong label; see `Suspects`.

        ``target``: whether rows of a target may be among them.
        """
        return self.samples(policy, target=target).suspects(k)

    def explore(self, most: int = 600, target: bool = False) -> Explorer:
        """A widget: choose a method, a class and a group, see samples, their losses and visits.

        ``.save("explore.html")`` writes a page of the same that needs no kernel; see `explorer`.
        ``target``: whether rows of a target are shown too.
        """
        policies = dict.fromkeys(entry["policy"] for entry in self.entries)
        chosen = {policy: self.samples(policy, target=target) for policy in policies}
        if not target:  # all its rows are left out
            chosen = {policy: each for policy, each in chosen.items() if policy != ALONE}
        return explorer(chosen, most)

    # --- how it is shown ---

    def plot(self) -> Picture:
        """A dot for each run in the metric's unit, means, and what the verdicts say beside them.

        ``ValueError`` if no method has a finite value beside dense training.
        """
        if not self.differs:
            raise ValueError("no method has a finite value beside dense training: see table()")
        return self.draw()

    def draw(self, names: Sequence[str] = ()) -> Picture:
        """The figure of `plot`; with ``names``, all methods, while runs are to come.

        Differences, which hold at the end, are left out then.
        """
        from astkit.widgets import comparison_plots

        scale = unit(self.metric)[0]
        known = [run for run in self.entries if is_finite(run["value"])]
        runs = [{**run, "arm": run["policy"], "value": run["value"] * scale} for run in known]
        beside: dict[str, dict[str, Any]] = {}
        for each in () if names else [*self.controls, *self.verdicts]:
            ends = [(each.dense + end) * scale for end in each.difference[1:3]]
            beside[each.policy] = {"gap": each.amount(each.difference), "ends": ends}
            if each in self.verdicts:
                beside[each.policy] |= {"words": each.shown, "bold": bool(each.better)}
        quantity = f"{self.metric} (%)" if scale > 1 else self.metric
        figure = comparison_plots.values_by_method(runs, beside, quantity, self.higher, names)
        message, below = (f"Runs so far: {len(known)}", " ") if names else headline(self)
        figure.headline(message)
        figure.axes[0].set_title(below, loc="left", size=9)
        return figure

    def curves(self) -> Picture:
        """Validation values by FLOPs and by time, as shares of dense training; where known."""
        from astkit.widgets import comparison_plots

        dense = by_arm(self.entries)[DENSE]
        curves = []
        for run in self.entries:
            whole, known = dense[run["seed"]], {"arm": run["policy"], "seed": run["seed"]}
            for flops, seconds, value in run["curve"] if is_finite(run["value"]) else ():
                costs = {"FLOPs": cost_share(flops, whole["flops"])}
                costs["time"] = cost_share(seconds, whole["seconds"])
                curves += [{**known, **costs, "value": value}] * is_finite(value)
        return comparison_plots.values_by_cost(curves, self.metric)

    @property
    def differs(self) -> bool:
        """Whether any difference to dense training is known."""
        return any(each.n for each in [*self.controls, *self.verdicts])

    def __repr__(self) -> str:
        said = [*self.before, "", self.verdict, "", self.table().to_string(), *self.notes]
        return "\n".join(said)

    def to_html(self, path: str | Path) -> Path:
        """Write a page with verdicts, the table and the figure; it needs no other files."""
        return write_atomic(path, self._repr_html_())

    def _repr_html_(self) -> str:
        lead = leading(self.verdicts)
        answer = NONE_BETTER if lead is None else lead.short
        sentences = [each.sentence for each in self.verdicts]
        said = "".join(f"<li>{escape(each)}.</li>" for each in [*sentences, self.next_step])
        before = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.before)
        parts = [f"<h1>{escape(answer)}</h1>"]
        if self.differs:
            figure = self.plot()
            parts.append(f"<p>{image_tag(escape(figure.described()), figure)}</p>")
        table = results(self.entries, self.verdicts, self.metric, self.controls)
        known = table.loc[:, (table != _NONE).any()]
        parts += [f"<ul>{said}</ul>", before, f"<p>{escape(legend(self.verdicts))}</p>"]
        parts.append(known.to_html(index=False, justify="left"))
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        return _PAGE.format(title=escape(answer), body="\n".join(parts))

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays as plain values, as `save` writes it; unknown is ``None``.

        Keys: ``schema`` (`SCHEMA`), the attributes of this class, ``legend`` (what intervals and
        outcomes cover), and ``verdicts``, one for each policy: ``sentence``, ``better`` (true,
        false or null), and all attributes of `astkit.comparison.verdict.Verdict`; an interval has
        ``mean``, ``low``, ``high`` and ``n``, in the metric's unit.
        """
        verdicts = [
            {"sentence": each.sentence, "better": each.better, **vars(each)}
            | {k: v._asdict() for k, v in vars(each).items() if isinstance(v, Interval)}
            for each in self.verdicts
        ]
        kept = {name: getattr(self, name) for name in KEPT}
        forecast = None if self.forecast is None else self.forecast.to_json()
        said = {"forecast": forecast, "legend": legend(self.verdicts), "verdicts": verdicts}
        return plain_values({"schema": SCHEMA, **kept, **said})


def headline(report: Comparison) -> tuple[str, str]:
    """What the figure shows, and a line below it: of the best policy, or of the only one."""
    from astkit.widgets.comparison_plots import in_digits

    lead = leading(report.verdicts)
    if lead is None:
        return NONE_BETTER, ""
    arms, sign = by_arm(report.entries), 1 if lead.higher else -1
    both = pairs(arms[lead.policy], arms[DENSE])
    won = sum(sign * (run["value"] - other["value"]) > 0 for run, other in both)
    below = f"better than dense training in {won} of {len(both)} seeds, {lead.cost}"
    scale = unit(lead.metric)[0]
    means = [scale * mean for mean in (lead.dense, lead.dense + lead.difference.mean)]
    dense, value = (in_digits(mean, means) + " %" * (scale > 1) for mean in means)
    if lead.better:
        return f"{lead.policy} brings the {lead.metric} from {dense} to {value}", below
    return f"{lead.policy}: {lead.words}: {lead.metric} {value}, dense training {dense}", below


def legend(verdicts: Sequence[Verdict]) -> str:
    """What intervals and outcomes cover, in a few sentences."""
    if not verdicts:
        return ""
    rows = all(each.test_rows for each in verdicts)
    over = "seeds and test rows" if rows else "seeds only, so they hold for these test rows alone"
    said = f"Differences are paired by seed, with single 95 % intervals over {over}."
    if any(not each.higher for each in verdicts):
        said += " Those of a loss are in percent of dense training's."
    if any(each.blocks is not None for each in verdicts):
        said += " Neighbouring test rows depend on each other, so that intervals are over blocks of"
        said += f" them: they are worth about {min(each.worth for each in verdicts):.0f}"
        said += " independent rows."
    compared = verdicts[0].compared
    if compared > 1:
        said += f" Outcomes are corrected for the {compared} policies compared (Holm): at most a"
        said += " 5 % chance of any wrong sign."
    return f"{said} Numbers of further seeds are for a probability of 0.8."


def results(
    entries: Sequence[Entry],
    verdicts: Sequence[Verdict],
    metric: str,
    controls: Sequence[Verdict] = (),
) -> pd.DataFrame:
    """One row per method, controls included, as text: means over seeds, and intervals.

    Seeds without a finite value are left out; the number of seeds is then "4 of 5". "trained on" is
    the share of the samples.
    """
    import pandas as pd

    arms, rows = by_arm(entries), []
    judged = {each.policy: each for each in verdicts}
    beside = {each.policy: each for each in controls if each.policy in ON_TARGET} | judged
    for name, arm in arms.items():
        runs = [run for run in arm.values() if is_finite(run["value"])]
        verdict, to_dense = judged.get(name), beside.get(name)
        some = f"{len(runs)} of " * (len(runs) < len(arm))
        value, rate = (mean_interval(run[key] for run in runs).mean for key in ("value", "rate"))
        row = {
            "policy": name,
            "seeds": f"{some}{len(arm)}",
            metric: in_unit(value, metric) if runs else _NONE,
            "against dense": to_dense.amount(to_dense.difference) if to_dense else _NONE,
            "against random": verdict.amount(verdict.to_random) if verdict else _NONE,
            "trained on": _text(rate, ".2f"),
        }
        for key, cost in COSTS.items():
            row[f"{cost} / dense"] = cost_ratio(arm, arms.get(DENSE, {}), key).text(".2f")
        rows.append(row)
    return pd.DataFrame(rows).fillna(_NONE)


def _text(value: float, spec: str) -> str:
    return _NONE if math.isnan(value) else format(value, spec)
