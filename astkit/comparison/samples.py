"""Which samples a run trains on, and which of them may have a wrong label.

Computed from what a run records of each of its N training rows, in equal parts of the budget:
``trained``, int ``[parts, N]``: how often the row was trained on; ``losses``, float ``[parts, N]``:
its mean loss, NaN in a part without one; and, where known, ``predicted``, int ``[N]``: the class
predicted last, -1 for none. Tables need pandas, images matplotlib.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from astkit import rng
from astkit.checks import check_count
from astkit.comparison.suspects import excess_loss, highest_first
from astkit.datasets.facts import class_labels, underlying
from astkit.datasets.loader import old_rows
from astkit.datasets.table import Table
from astkit.files import plain_values, write_atomic

if TYPE_CHECKING:
    import pandas as pd

    from astkit.widgets.explore import Explorer
    from astkit.widgets.style import Picture

FEATURES = 12  # values of a table row that are displayed
ACROSS = 10  # images in a line of suspects
TEXT = 600  # characters of a text in an explorer


class Samples:
    """The samples that a run trained on; notebooks display images, table rows or texts.

    Args:
        trained, losses: see above.
        data: map-style data set of the N rows, or a loader of it; ``None`` displays row numbers.
        predicted: see above.
        show: returns what is displayed for a row: an image, a text, or the values of a table row
            (a mapping or a vector); by default the inputs in ``data[row]``.
        name: name of the policy, for titles.
        ranked: the first rows, which are grouped and suspected, as those before a target's; by
            default all.

    Attributes:
        total: int64 ``[N]``: how often each row was trained on.
        loss: float ``[N]``: its loss above that of the average row in the same part of the budget,
            mean over the parts; NaN for rows without a loss.
        labels: int64 ``[N]``, class numbers; ``None`` if ``data`` have none.
    """

    def __init__(
        self,
        trained: Tensor,
        losses: Tensor,
        data: Any = None,
        *,
        predicted: Tensor | None = None,
        show: Callable[[int], Any] | None = None,
        name: str = "this run",
        ranked: int | None = None,
    ) -> None:
        self.trained, self.losses, self.name = trained, losses, name
        self.ranked = len(trained[0]) if ranked is None else ranked
        # the rows of a DataLoader are numbered in its data set, whichever it loads
        whole, rows, _ = underlying(data.dataset if isinstance(data, DataLoader) else data)
        names: Any = getattr(whole, "classes", None)
        self.classes: list[Any] | None = None
        if hasattr(names, "__len__") and not isinstance(names, Mapping | str):
            self.classes = list(names)
        self.data = whole if rows is None else Subset(whole, rows.tolist())
        self.labels = class_labels(self.data)
        some = predicted is not None and bool((predicted >= 0).any())  # none without classes
        self.predicted = predicted if some else None
        self.total = trained.long().sum(0)
        self.loss = excess_loss(losses)
        self.show = show or (lambda row: None if self.data is None else _inputs(self.data[row]))
        if show is None and isinstance(whole, Table):
            self.show = lambda row: whole.cells(row if rows is None else int(rows[row]))

    @property
    def groups(self) -> dict[str, Tensor]:
        """Rows of each group, int64, the most typical first; a row may be in several groups.

        If all rows were trained on equally often, none is selected most or least.
        """
        order, total = highest_first(self.loss[: self.ranked]), self.total[: self.ranked]
        order = order[total[order].argsort(descending=True, stable=True)]
        some = order[: int(total.count_nonzero())] if total.max() > total.min() else order[:0]
        return {
            "most selected": some,
            "least selected": some.flip(0),
            "never selected": (total == 0).nonzero().squeeze(1),
        }

    def suspects(self, k: int = 50) -> Suspects:
        """The ``k`` rows that are most likely to have a wrong label, see `Suspects`."""
        return Suspects(self, k)

    def class_shares(self) -> pd.DataFrame:
        """Share of each class in all rows, and in those trained on in each part of the budget.

        Raises ``ValueError`` without class labels.
        """
        import pandas as pd

        if self.labels is None:
            raise ValueError("the data have no class labels: give them an attribute labels")
        real = self.labels >= 0  # others are ignored
        rows = torch.cat([torch.ones(1, len(self.total)), self.trained]).double()[:, real]
        counts = torch.zeros(len(rows), int(self.labels.max()) + 1, dtype=torch.float64)
        shares = counts.index_add_(1, self.labels[real], rows) / rows.sum(1, keepdim=True)
        index = ["all rows", *(f"part {part}" for part in range(1, len(rows)))]
        names = [self.class_name(label) for label in range(shares.shape[1])]
        return pd.DataFrame(shares.numpy(), index, names)

    def table(self, n: int = 5) -> pd.DataFrame:
        """The first ``n`` rows of each group: how often trained on, loss, label, contents."""
        import pandas as pd

        groups = self.groups
        frames = [self.frame(rows[:n].tolist()).assign(group=name) for name, rows in groups.items()]
        return pd.concat(frames).set_index(["group", "row"])

    def frame(self, rows: Sequence[int]) -> pd.DataFrame:
        """What is known of these rows, and their contents unless they are images."""
        import pandas as pd

        numbers = pd.Series(rows, dtype="int64")  # of no rows too
        known: dict[str, Any] = {
            "row": numbers,
            "trained": self.total[rows],
            "loss": self.loss[rows],
        }
        for name, classes in (("label", self.labels), ("predicted", self.predicted)):
            if classes is not None:
                known[name] = [self.class_name(each) for each in classes[rows].tolist()]
        frame = pd.DataFrame(known, index=range(len(rows)))
        contents = pd.DataFrame([_contents(self.show(row)) for row in rows], index=frame.index)
        return frame.join(contents[contents.columns.difference(frame.columns, sort=False)])

    def picture(self, n: int = 10) -> Picture:
        """Images of the first ``n`` rows of each group, with label and number of visits.

        Raises ``ValueError`` unless the data or ``show`` return images.
        """
        some = {group: rows[:n] for group, rows in self.groups.items()}
        title = f"{self.name}: label and how often trained on"
        return self.images(some, lambda row: f", {int(self.total[row])}x", title)

    def images(
        self, lines: Mapping[str, Tensor], words: Callable[[int], str], title: str
    ) -> Picture:
        """Named lines of images, each with its label and further ``words`` on its row."""
        from astkit.widgets.plots import image_rows

        captions = {
            name: [f"{self.label(row)}{words(row)}" for row in rows.tolist()]
            for name, rows in lines.items()
        }
        images = {name: [self.show(row) for row in rows.tolist()] for name, rows in lines.items()}
        return image_rows(images, captions, title)

    def label(self, row: int) -> Any:
        """Name of the class of a row, or its number without classes."""
        return f"row {row}" if self.labels is None else self.class_name(int(self.labels[row]))

    def class_name(self, number: int) -> Any:
        """Name of a class; its number if the data have no names, "–" for -1."""
        names = self.classes or range(number + 1)
        return names[number] if 0 <= number < len(names) else "–"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{group}: {len(rows):,}" for group, rows in self.groups.items())
        return f"{self.name}, {len(self.total):,} rows; {sizes}"

    def _repr_html_(self) -> str:
        pictures = any(map(len, self.groups.values())) and _is_image(self.show(0))
        html = [_html(self, pictures)]
        if self.labels is not None:
            html.append("<p>Share of each class, of all rows and of those trained on:</p>")
            html.append(self.class_shares().to_html(float_format="{:.1%}".format))
        return "\n".join(html)


class Suspects:
    """The ``k`` rows with the highest loss over a whole run: wrong labels, or merely hard samples.

    Rows without a loss are none of them; ``ValueError`` if no row has one.

    They are ranked as by `astkit.suspects`, by the mean over the run: in the end wrong labels are
    fitted too.

    Attributes:
        rows: int64 ``[k]``, the most suspected first.
        kept: int64 ``[N - k]``: the other rows, in their order.
    """

    def __init__(self, samples: Samples, k: int = 50) -> None:
        check_count("k", k)
        order = highest_first(samples.loss[: samples.ranked])
        order = order[~samples.loss[order].isnan()]
        if not len(order):
            raise ValueError("no row has a loss: rank the rows of a run that knows them by number")
        self.samples, self.rows = samples, order[:k]
        kept = torch.ones(len(samples.loss), dtype=torch.bool)
        kept[self.rows] = False
        self.kept = kept.nonzero().squeeze(1)

    def table(self) -> pd.DataFrame:
        """One row a suspect: row, times trained on, loss, label, prediction, contents."""
        return self.samples.frame(self.rows.tolist()).set_index("row")

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table, atomically."""
        return write_atomic(path, self.table().to_csv(float_format="%.6g"))

    def drop(self) -> Subset[Any]:
        """The training data without the suspects; raises ``ValueError`` for a loaded comparison."""
        if self.samples.data is None:
            raise ValueError("a loaded comparison has no training data: compare anew")
        kept: Subset[Any] = Subset(self.samples.data, self.kept.tolist())
        old = old_rows(self.samples.data)
        if old < len(self.samples.data):  # rows of a target stay those of a target
            vars(kept)["old_rows"] = int((self.kept < old).sum())
        return kept

    def __repr__(self) -> str:
        number, rows = len(self.rows), self.samples.ranked
        words = "with the highest loss over the whole run; wrong labels, or merely hard"
        return f"{self.samples.name}: the {number:,} of {rows:,} rows {words}"

    def _repr_html_(self) -> str:
        return _html(self, _is_image(self.samples.show(int(self.rows[0]))))

    def picture(self) -> Picture:
        """Images of the suspects, each with its label and the class predicted."""
        samples, predicted, lines = self.samples, self.samples.predicted, {}
        for place, rows in enumerate(self.rows.split(ACROSS)):
            first = 1 + place * ACROSS
            lines[f"suspects {first} to {first + len(rows) - 1}"] = rows

        def words(row: int) -> str:
            return "" if predicted is None else f" → {samples.class_name(int(predicted[row]))}"

        title = "suspected wrong labels: label given" + " → class predicted" * bool(words(0))
        return samples.images(lines, words, title)


def explorer(methods: Mapping[str, Samples], most: int = 600) -> Explorer:
    """A widget of the samples of several methods on the same data; ``save`` writes it as a page.

    Of more than ``most`` rows it holds the first of each group of each method, and random ones.
    """
    from astkit.widgets.explore import Explorer, embedded
    from astkit.widgets.style import lines

    check_count("most", most)
    first = next(iter(methods.values()))
    share = max(1, most // (2 * len(methods) * (len(first.groups) + 1)))
    groups = {
        name: {**each.groups, "suspected wrong labels": each.suspects(share).rows}
        for name, each in methods.items()
    }
    typical = [rows[:share] for each in groups.values() for rows in each.values()]
    drawn = rng.permutation(first.ranked, 0, "explored rows")
    rows = sorted(list(dict.fromkeys(torch.cat([*typical, drawn]).tolist()))[:most])
    place = {row: number for number, row in enumerate(rows)}
    styles = lines(methods)
    entries = [
        {
            "name": name,
            "colour": styles[name]["color"],
            "counts": each.trained[:, rows].T,
            "losses": each.losses[:, rows].T.double().round(decimals=6),
            "groups": {
                group: [place[row] for row in members.tolist() if row in place]
                for group, members in groups[name].items()
            },
        }
        for name, each in methods.items()
    ]
    samples = []
    for row in rows:
        value, label = first.show(row), "" if first.labels is None else str(first.label(row))
        text = value[:TEXT] + "…" * (len(value) > TEXT) if isinstance(value, str) else ""
        fields = {} if text else _contents(value)
        samples.append(
            {
                "row": row,
                "label": label,
                "picture": embedded(value) if _is_image(value) else "",
                "text": text,
                "fields": [[str(name), str(each)] for name, each in fields.items()],
            }
        )
    content = {"title": "Which samples are trained on", "samples": samples, "methods": entries}
    return Explorer(content=plain_values(content))


def together(visits: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What several runs on the same data recorded, such as seeds, as one.

    ``trained`` is summed, ``losses`` are averaged without NaN, of ``predicted`` the most frequent.
    """
    both = {
        "trained": torch.stack([each["trained"] for each in visits]).sum(0),
        "losses": torch.stack([each["losses"] for each in visits]).nanmean(0),
    }
    if all("predicted" in each for each in visits):
        predicted = torch.stack([each["predicted"] for each in visits])
        unknown = -1 - torch.arange(len(visits), dtype=predicted.dtype)[:, None]  # never two alike
        usual = predicted.where(predicted >= 0, unknown).mode(0).values
        both["predicted"] = usual.where(usual >= 0, predicted.amax(0))
    return both


def _inputs(item: Any) -> Any:
    while isinstance(item, tuple | list) and item and not isinstance(item[0], int | float):
        item = item[0]
    parts = item.values() if isinstance(item, Mapping) else ()
    return next(filter(_is_image, parts), item)


def _is_image(value: Any) -> bool:
    shape = tuple(getattr(value, "shape", ()))
    coloured = len(shape) == 3 and bool({shape[0], shape[2]} & {1, 3})
    return hasattr(value, "getbands") or len(shape) == 2 or coloured  # getbands: PIL


def _html(shown: Samples | Suspects, pictures: bool) -> str:
    """What the rows are, as images or as a table."""
    words = escape(repr(shown))
    if pictures:
        return f"<p>{words}</p>\n{image_tag(words, shown.picture())}"
    table = shown.table().to_html(na_rep="–", float_format="{:.3g}".format)
    return f"<p>{words}</p>\n{table}"


def image_tag(words: str, figure: Picture) -> str:
    """A figure within a page; ``words`` describe it."""
    png = base64.b64encode(figure.png()).decode()
    look = f'width="{figure.pixels_wide}" style="max-width: 100%; height: auto"'
    return f'<img alt="{words}" {look} src="data:image/png;base64,{png}">'


def _contents(value: Any) -> dict[str, Any]:
    """Columns of a table for a text, a mapping or a vector; none for an image."""
    if value is None or _is_image(value):
        return {}
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, Mapping):
        try:
            flat = torch.as_tensor(value).flatten().tolist()
        except (TypeError, ValueError, RuntimeError):
            return {"text": str(value)[:TEXT]}
        value = {f"x{place}": each for place, each in enumerate(flat)}
    more = {"...": "..."} if len(value) > FEATURES else {}
    return {**dict(list(value.items())[:FEATURES]), **more}
