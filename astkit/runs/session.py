"""What all notebooks share: the answer at their top, their environment, the record of results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astkit.checks import check_choice

if TYPE_CHECKING:
    from IPython.display import Markdown
    from matplotlib.figure import Figure

    from astkit.runs.record import Record, Row

PRESETS = ("quick", "full")
_ANSWER = "answer"  # the display that `Session.answer` replaces


class Session:
    """A running notebook; made by `start`.

    Attributes:
        full: whether its preset is "full".
        record: the run's folder; ``None`` if nothing is kept.
    """

    def __init__(self, full: bool, record: Record | None) -> None:
        self.full = full
        self.record = record

    def answer(self, sentence: str) -> Markdown:
        """``sentence`` in bold, which also takes its place at the top of the notebook."""
        from IPython.display import Markdown, update_display

        shown = Markdown(f"**{' '.join(sentence.split())}**")
        update_display(shown, display_id=_ANSWER)
        return shown

    def finish(
        self, rows: Sequence[Row] = (), pictures: Mapping[str, Figure] | None = None, **more: Any
    ) -> None:
        """Complete the record, if there is one: see `Record.finish` and `Record.figure`."""
        if self.record is None:
            return
        for name, picture in (pictures or {}).items():
            self.record.figure(name, picture)
        self.record.finish(rows, **more)


def start(preset: str, threads: int = 0, out: str | os.PathLike[str] = "") -> Session:
    """Begin a notebook: the place of its answer, torch's threads, and a line with the environment.

    Args:
        preset: "quick" or "full", the sizes that the notebook takes.
        threads: torch threads; 0 leaves torch's choice.
        out: folder of the record, "" for none; a command that runs the notebook names another.

    Raises ``ValueError`` for another preset.
    """
    import torch
    from IPython.display import Markdown, display

    from astkit.runs.record import FOLDER, Record
    from astkit.stamp import describe, stamp

    check_choice("preset", preset, PRESETS)
    display(Markdown("*The answer is computed below.*"), display_id=_ANSWER)
    if threads:
        torch.set_num_threads(threads)
    print(describe(stamp()), "· preset", preset)
    folder = os.environ.get(FOLDER) or out
    return Session(preset == "full", Record(folder) if folder else None)
