"""Which samples a run trains on: groups of rows, and shares of classes.

Computed from the arrays of `astkit.runs.visits.Visits`: how often each row was trained on in each
part of the budget, and the last loss of each row. Tables need pandas, images matplotlib.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from astkit.datasets import Loader
from astkit.files import write_atomic
from astkit.gating.data_facts import class_labels
from astkit.runs.audit import by_loss, check_visits

if TYPE_CHECKING:
    import pandas as pd

    from astkit.widgets.style import Picture

FEATURES = 8  # values of a table row that are displayed


class Samples:
    """The samples that a run trained on; notebooks display images, table rows or texts.

    Args:
        trained: int ``[parts, N]``: how often each row was trained on in each part of the budget.
        losses: float ``[N]``: the last loss of each row, NaN for rows without one.
        data: map-style data set of the N rows, or a loader of it; ``None`` displays row numbers.
        labels: int64 ``[N]``, class numbers; by default those of ``data``, if it has any.
        show: returns what is displayed for a row: an image, a text, or the values of a table row
            (a mapping or a vector); by default the inputs in ``data[row]``.
        name: name of the policy, for titles.

    Attributes:
        total: int64 ``[N]``: how often each row was trained on.

    Raises ``ValueError`` for arrays, labels or data of different lengths.
    """

    def __init__(
        self,
        trained: Tensor,
        losses: Tensor,
        data: Any = None,
        *,
        labels: Tensor | None = None,
        show: Callable[[int], Any] | None = None,
        name: str = "this run",
    ) -> None:
        check_visits(trained, losses)
        rows, data = len(losses), data_set(data)
        if data is not None and len(data) != rows:
            raise ValueError(
                f"data has {len(data)} rows, but trained counts {rows}: pass the training data"
            )
        if labels is not None and labels.shape != losses.shape:
            raise ValueError(
                f"labels has shape {list(labels.shape)}: pass one for each of {rows} rows"
            )
        self.trained, self.losses, self.data, self.name = trained.cpu(), losses.cpu(), data, name
        self.labels = class_labels(data, rows) if labels is None else labels.cpu()
        self.total = self.trained.long().sum(0)
        self._show = show or (lambda row: None if data is None else _inputs(data[row]))

    @property
    def most_selected(self) -> Tensor:
        """Rows trained on at least once, int64 ``[n]``, most often first, then by falling loss."""
        order = by_loss(self.losses)
        order = order[self.total[order].argsort(descending=True, stable=True)]
        return order[: int(self.total.count_nonzero())]

    @property
    def likely_mislabelled(self) -> Tensor:
        """Rows with a persistently high loss, int64 ``[n]``, by falling loss.

        They were trained on in at least two parts of the budget, and their last loss still exceeds
        that of a uniform guess, ``ln(number of classes)``, and the inner fence of Tukey
        (Exploratory Data Analysis, 1977): upper quartile + 1.5 * interquartile range. Without class
        labels: the outer fence, 3 * interquartile range. After few epochs, and on clean data, these
        are merely hard samples. See `astkit.runs.audit.audit` for the order and its sources.
        """
        low, high = self.losses.nanquantile(self.losses.new_tensor([0.25, 0.75])).tolist()
        if self.labels is None:
            limit = high + 3 * (high - low)
        else:
            chance = math.log(max(2, len(self.labels.unique())))
            limit = max(chance, high + 1.5 * (high - low))
        order = by_loss(self.losses)
        persistent = (self.losses > limit) & ((self.trained > 0).sum(0) >= 2)
        return order[persistent[order]]

    @property
    def newly_learned(self) -> Tensor:
        """Rows that recently became easy, int64 ``[n]``, most often trained on first.

        In the second and third quarter of the budget they were trained on more often than the mean
        row, in the last quarter not at all, and their last loss is below the median.
        """
        quarter = max(1, len(self.trained) // 4)
        middle = self.trained[quarter:-quarter].long().sum(0)
        learned = (middle > middle.double().mean()) & (self.losses < self.losses.nanmedian())
        rows = (learned & (self.trained[-quarter:].sum(0) == 0)).nonzero().squeeze(1)
        return rows[middle[rows].argsort(descending=True, stable=True)]

    @property
    def groups(self) -> dict[str, Tensor]:
        """Rows of each group, int64, the most typical first; a row may be in several groups.

        If all rows were trained on equally often, none is selected most or least.
        """
        differ = self.total.max() > self.total.min()
        some = self.most_selected if differ else self.total[:0]
        return {
            "most selected": some,
            "least selected": some.flip(0),
            "never selected": (self.total == 0).nonzero().squeeze(1),
            "persistently high loss": self.likely_mislabelled,
            "newly learned": self.newly_learned,
        }

    def overlap(self, other: Samples) -> float:
        """Jaccard index of the most selected tenth of the rows of two runs, in [0, 1].

        Two random choices of that size have an index of about 0.05. Raises ``ValueError`` for
        runs on different data.
        """
        if len(other.total) != len(self.total):
            raise ValueError(
                f"other has {len(other.total)} rows, but this run {len(self.total)}: compare runs"
                " on the same training data"
            )
        number = max(1, round(0.1 * len(self.total)))
        first, second = (set(each.most_selected[:number].tolist()) for each in (self, other))
        return len(first & second) / max(1, len(first | second))

    def class_shares(self) -> pd.DataFrame:
        """Share of each class in all rows, and in those trained on in each part of the budget.

        Raises ``ValueError`` without class labels.
        """
        import pandas as pd

        if self.labels is None:
            raise ValueError("the rows have no class labels: pass labels, int64 [N]")
        rows = torch.cat([torch.ones(1, len(self.total)), self.trained]).double()
        counts = torch.zeros(len(rows), int(self.labels.max()) + 1, dtype=torch.float64)
        shares = counts.index_add_(1, self.labels, rows) / rows.sum(1, keepdim=True)
        index = ["all rows", *(f"part {part}" for part in range(1, len(rows)))]
        return pd.DataFrame(shares.numpy(), index, [self._class(n) for n in range(shares.shape[1])])

    def table(self, n: int = 5) -> pd.DataFrame:
        """The first ``n`` rows of each group: how often trained on, last loss, label, contents."""
        import pandas as pd

        found = [
            _contents(self._show(row)) | {"group": group, **self._entry(row)}
            for group, rows in self.groups.items()
            for row in rows[:n].tolist()
        ]
        first = ["group", *self._entry(0)]
        frame = pd.DataFrame(found, columns=None if found else first)
        return frame[[*first, *frame.columns.drop(first)]].set_index(["group", "row"])

    def picture(self, n: int = 10) -> Picture:
        """Images of the first ``n`` rows of each group, with label and number of visits.

        Raises ``ValueError`` unless the data or ``show`` return images.
        """
        from astkit.widgets.sample_plots import image_rows

        some = {group: rows[:n].tolist() for group, rows in self.groups.items()}
        captions = {group: [self._caption(row) for row in rows] for group, rows in some.items()}
        images = {group: [self._show(row) for row in rows] for group, rows in some.items()}
        return image_rows(images, captions, f"{self.name}: label and how often trained on")

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write a line per row, atomically: index, counts, last loss, label, and its groups."""
        import pandas as pd

        rows = torch.arange(len(self.total))
        parts = {f"part {part}": each for part, each in enumerate(self.trained.numpy(), 1)}
        groups = {name: torch.isin(rows, of).numpy() for name, of in list(self.groups.items())[2:]}
        frame = pd.DataFrame(map(self._entry, rows.tolist())).assign(**parts, **groups)
        return write_atomic(path, frame.to_csv(index=False, float_format="%.6g"))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{group}: {len(rows):,}" for group, rows in self.groups.items())
        return f"{self.name}, {len(self.total):,} rows; {sizes}"

    def _repr_html_(self) -> str:
        html = [f"<p>{escape(repr(self))}</p>"]
        if any(map(len, self.groups.values())) and _is_image(self._show(0)):
            png = base64.b64encode(self.picture().png()).decode()
            html.append(f'<img alt="samples by group" src="data:image/png;base64,{png}">')
        else:
            html.append(self.table().to_html(na_rep="–", float_format="{:.3g}".format))
        if self.labels is not None:
            html.append("<p>Share of each class, of all rows and of those trained on:</p>")
            html.append(self.class_shares().to_html(float_format="{:.1%}".format))
        return "\n".join(html)

    def _entry(self, row: int) -> dict[str, Any]:
        entry = {"row": row, "trained": int(self.total[row]), "loss": float(self.losses[row])}
        label = {} if self.labels is None else {"label": self._class(int(self.labels[row]))}
        return {**entry, **label}

    def _class(self, label: int) -> Any:
        names = getattr(self.data, "classes", None) or ()
        return names[label] if label < len(names) else label

    def _caption(self, row: int) -> str:
        entry = self._entry(row)
        return f"{entry.get('label', f'row {row}')}, {entry['trained']}x"


def together(visits: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """``trained`` summed and ``losses`` averaged over runs on the same data, such as seeds.

    Averages leave out NaN.
    """
    losses = torch.stack([each["losses"] for each in visits]).nanmean(0)
    return {"trained": torch.stack([each["trained"] for each in visits]).sum(0), "losses": losses}


def data_set(data: Any) -> Any:
    """The data set of a loader, without indices; other objects unchanged."""
    data = data.dataset if isinstance(data, DataLoader) else data
    data = data.data if isinstance(data, Loader) else data
    return getattr(data, "indexed_data", data)


def _inputs(item: Any) -> Any:
    while isinstance(item, tuple | list) and item and not isinstance(item[0], int | float):
        item = item[0]
    parts = item.values() if isinstance(item, Mapping) else ()
    return next(filter(_is_image, parts), item)


def _is_image(value: Any) -> bool:
    shape = tuple(getattr(value, "shape", ()))
    coloured = len(shape) == 3 and bool({shape[0], shape[2]} & {1, 3})
    return hasattr(value, "getbands") or len(shape) == 2 or coloured  # getbands: PIL


def _contents(value: Any) -> dict[str, Any]:
    """Columns of a table for a text, a mapping or a vector; none for an image."""
    if value is None or _is_image(value):
        return {}
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, Mapping):
        flat = torch.as_tensor(value).flatten().tolist()
        value = {f"x{place}": each for place, each in enumerate(flat)}
    return dict(list(value.items())[:FEATURES])
