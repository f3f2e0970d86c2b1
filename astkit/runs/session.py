"""What all notebooks share: answer and picture at their top, their environment, their results."""

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
HEIGHT = 346  # pixels that are kept for the picture: those of a figure 3.6 inches high
_ANSWER, _PICTURE = "answer", "picture"  # the displays that `Session.answer` replaces
_PLACE = '<div style="height: {}px; border: 1px dashed; opacity: 0.3"></div>'
_MARGIN = 8  # pixels of that border, and of what front ends put around HTML


class Session:
    """A running notebook; made by `notebook`, or by `start`.

    Attributes:
        full: whether its preset is "full"; false before `start`.
        record: the run's folder; ``None`` if nothing is kept.
    """

    def __init__(self) -> None:
        self.full = False
        self.record: Record | None = None
        self._versions = ""

    def start(self, preset: str, threads: int = 0, out: str | os.PathLike[str] = "") -> None:
        """Take the parameters that notebooks have in common.

        Args:
            preset: "quick" or "full", the sizes that the notebook takes.
            threads: torch threads; 0 leaves torch's choice.
            out: folder of the record, "" for none; a command that runs the notebook names another.

        Raises ``ValueError`` for another preset.
        """
        import torch

        from astkit.runs.record import FOLDER, Record
        from astkit.stamp import describe, stamp

        check_choice("preset", preset, PRESETS)
        if threads:
            torch.set_num_threads(threads)
        self._versions = f"{describe(stamp())} · preset {preset}"
        self.full = preset == "full"
        folder = os.environ.get(FOLDER) or out
        self.record = Record(folder) if folder else None

    def answer(self, sentence: str, picture: Any = None) -> Markdown:
        """``sentence`` in bold, which also takes its place at the top, and so does ``picture``.

        ``picture``: what the notebook displays there and nowhere else, such as a figure; ``None``
        leaves no place for one.
        """
        from IPython.display import HTML, Markdown, update_display

        shown = Markdown(f"**{' '.join(sentence.split())}**")
        update_display(shown, display_id=_ANSWER)
        update_display(HTML("") if picture is None else picture, display_id=_PICTURE)
        return shown

    def finish(
        self, rows: Sequence[Row] = (), pictures: Mapping[str, Figure] | None = None, **more: Any
    ) -> None:
        """Print the versions of `start`, and complete the record, if there is one.

        See `Record.finish` and `Record.figure`.
        """
        if self._versions:
            print(self._versions)
        if self.record is None:
            return
        for name, picture in (pictures or {}).items():
            self.record.figure(name, picture)
        self.record.finish(rows, **more)


def notebook(height: int = HEIGHT) -> Session:
    """Begin a notebook, above its parameters: the places of its answer and of its picture.

    Two lines are kept for the answer, so that nothing moves when they come.

    ``height``: pixels kept for the picture; 0 for none.
    """
    from IPython.display import HTML, Markdown, display

    display(Markdown("*The answer is computed below.*<br>&nbsp;"), display_id=_ANSWER)
    place = _PLACE.format(height - _MARGIN) if height else ""
    display(HTML(place), display_id=_PICTURE)
    return Session()


def start(preset: str, threads: int = 0, out: str | os.PathLike[str] = "") -> Session:
    """`notebook` and `Session.start` in one call, below the parameters.

    No height is kept for a picture.
    """
    session = notebook(height=0)
    session.start(preset, threads, out)
    return session
