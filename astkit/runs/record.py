"""Record of a run: one folder that contains all inputs of sweeps and reports.

<date>_<name>_<hash8>_s<seed>/
    config.json     name and parameters of the run
    env.json        the environment stamp
    fig/            figures
    notebook.ipynb  the executed notebook
    error.json      reason of a failure
    result.json     written last and atomically
    .lock           locked by the process that executes the run

A run is complete if it has ``result.json`` but no ``error.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from astkit.files import read_json, write_atomic, write_json
from astkit.stamp import stamp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "ASTKIT_RUN"
"""Environment variable with the run folder of a notebook that a command executes."""

LONGEST = 300  # characters of a reason; error.json holds the full text

Status = Literal["complete", "failed", "incomplete"]
Row = Mapping[str, Any]


class Record:
    """The folder of one run, made if missing; `create` names a new one after its parameters."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        self.folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        name: str,
        parameters: Mapping[str, Any],
        seed: int = 0,
        **more: Any,
    ) -> Record:
        """The run with this name, seed and parameters below ``root``, or the folder of a new one.

        ``name`` becomes a part of the folder's; ``more``: additional entries of ``config.json``.
        Raises ``ValueError`` for parameters that JSON cannot represent.
        """
        tail = f"{name}_{digest({'name': name, 'parameters': parameters})}_s{seed}"
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        root = Path(root).expanduser()
        record = cls(min(root.glob(f"*_{tail}"), default=root / f"{date}_{tail}"))
        if not record.config:  # the same whichever of several processes writes it
            record.write("env.json", stamp())
            config = {"name": name, "seed": seed, "parameters": dict(parameters), **more}
            record.write("config.json", config)
        return record

    @property
    def status(self) -> Status:
        """The run's state, from the files in its folder."""
        if (self.folder / "error.json").exists():
            return "failed"
        return "complete" if (self.folder / "result.json").exists() else "incomplete"

    @property
    def reason(self) -> str:
        """Why the run has failed, in one line; empty for other runs."""
        error = self.read("error.json")
        if self.status != "failed" or not error:
            return ""
        text = f"{error.get('type', 'error')}: {error.get('message', '')}"
        line = " ".join(text.split()).removesuffix(":")
        if len(line) > LONGEST:
            line = f"{line[:LONGEST]} ..."
        cell = error.get("cell")
        return f"{line} in cell [{cell['number']}]" if isinstance(cell, dict) else line

    @property
    def config(self) -> dict[str, Any]:
        """Contents of ``config.json``; empty before `create` has written it."""
        return self.read("config.json")

    @property
    def result(self) -> dict[str, Any]:
        """Contents of ``result.json``; empty before the run is complete."""
        return self.read("result.json")

    def figure(self, name: str, figure: Figure) -> Path:
        """Save a matplotlib figure as ``fig/<name>.png``."""
        picture = BytesIO()
        figure.savefig(picture, format="png")
        return write_atomic(self.folder / "fig" / f"{name}.png", picture.getvalue())

    def finish(self, rows: Sequence[Row] = (), curves: Sequence[Row] = (), **more: Any) -> Path:
        """Write ``result.json``, last and atomically, which completes the run.

        ``rows``: measurements for the tables of reports, one flat mapping per unit (such as one
        method with its ``seed``); ``curves``: rows for their plots, such as one per epoch. Entries
        of both that are neither plain values nor scalars of numpy or torch are dropped. ``more``:
        additional entries.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"rows": flat(rows), "curves": flat(curves), **more, "time": time}
        (self.folder / "error.json").unlink(missing_ok=True)
        return self.write("result.json", content)

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a JSON file in the folder; see `astkit.files.write_json`."""
        return write_json(self.folder / name, content)

    def read(self, name: str) -> dict[str, Any]:
        """Contents of a JSON file in the folder; see `astkit.files.read_json`."""
        return read_json(self.folder / name)


def digest(content: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of ``content``, independent of its order."""
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the parameters cannot be written as JSON ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def flat(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """``rows`` with scalars of numpy and torch as numbers, without entries of other types."""
    kinds = (bool, int, float, str, type(None))
    flattened = []
    for row in rows:
        plain = {key: v.item() if getattr(v, "ndim", None) == 0 else v for key, v in row.items()}
        flattened.append({key: value for key, value in plain.items() if isinstance(value, kinds)})
    return flattened
