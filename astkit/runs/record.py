"""The record of a run: one folder with everything that a reader, a sweep or a report asks for.

<date>_<name>_<hash8>_s<seed>/
    config.json     what was run, with which parameters
    env.json        the environment stamp
    fig/            pictures
    notebook.ipynb  the executed notebook
    error.json      why it failed, if it did
    result.json     written last and atomically
    .unfinished     there while it runs, and left behind when it is killed

A run is complete if it has ``result.json`` and no ``.unfinished``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from astkit import files
from astkit.stamp import stamp
from astkit.trainers.metrics_file import encode

FOLDER = "ASTKIT_RUN"
"""Environment variable that names the folder which a notebook, run by a sweep, records into."""

_UNFINISHED = ".unfinished"

Status = Literal["complete", "failed", "incomplete", "stale"]
Row = Mapping[str, Any]


class Record:
    """One run's folder; ``Record.create`` makes a new one, ``Record(folder)`` opens one.

    Args:
        folder: the run's folder; made where it is missing.

    Attributes:
        folder: where everything lies.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        name: str,
        parameters: Mapping[str, Any],
        seed: int = 0,
        **also: Any,
    ) -> Record:
        """The folder of a run below ``root``: that of the same run if it was begun, else a new one.

        Two runs are the same if name, parameters and seed are; a stale one is not resumed.
        ``also``: more for ``config.json``.

        Raises ``ValueError`` for a name that cannot be part of a folder's, or parameters that JSON
        cannot hold.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(_[A-Za-z0-9.-]+)*", name):
            raise ValueError(
                f"name is {name!r}: give letters, digits, '-', '.' and single '_', since it becomes"
                " part of a folder's name"
            )
        if found := cls.find(root, name, parameters, seed):
            return found
        tail = _tail(name, parameters, seed)
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        folder, number = Path(root) / f"{date}_{tail}", 1
        while folder.exists():  # a stale one of the same day
            folder, number = Path(root) / f"{date}.{number}_{tail}", number + 1
        record = cls(folder)
        config = {"name": name, "seed": seed, "parameters": dict(parameters), **also}
        record.write("env.json", stamp())
        record.write("config.json", config)
        return record

    @classmethod
    def find(
        cls,
        root: str | os.PathLike[str],
        name: str,
        parameters: Mapping[str, Any],
        seed: int = 0,
    ) -> Record | None:
        """The run that `create` would resume, if there is one."""
        same = [cls(path) for path in sorted(Path(root).glob(f"*_{_tail(name, parameters, seed)}"))]
        valid = [record for record in same if record.status != "stale"]
        return valid[-1] if valid else None

    @property
    def status(self) -> Status:
        """What has become of the run, as its folder tells it."""
        signs: tuple[tuple[str, Status], ...] = (
            ("stale.json", "stale"),
            (_UNFINISHED, "incomplete"),
            ("result.json", "complete"),
            ("error.json", "failed"),
        )
        found = (status for name, status in signs if (self.folder / name).exists())
        return next(found, "incomplete")

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """The run is incomplete until this block ends, whatever is written in it.

        It stays so where the block ends by an exception, or its process is killed.
        """
        mark = self.folder / _UNFINISHED
        mark.touch()
        yield
        mark.unlink()

    @property
    def config(self) -> dict[str, Any]:
        """What was run; empty where it was not written."""
        return self.read("config.json")

    @property
    def result(self) -> dict[str, Any]:
        """What the run ended with; empty before."""
        return self.read("result.json")

    def figure(self, name: str, figure: Any) -> Path:
        """Keep a picture, a matplotlib ``Figure`` or PNG bytes, as ``fig/<name>.png``."""
        return files.write_atomic(self.folder / "fig" / f"{name}.png", _png(figure))

    def finish(self, rows: Sequence[Row] = (), curves: Sequence[Row] = (), **also: Any) -> Path:
        """The run is complete: write ``result.json``, last and atomically.

        ``rows``: what was measured, one flat mapping a unit (an arm with its ``seed``, say), which
        reports make tables of; ``curves``: one a pass, say, which they draw. Entries that are no
        plain values are left out of both. ``also``: whatever else is to be kept.
        """
        content = {"rows": _flat(rows), "curves": _flat(curves), **also}
        (self.folder / "error.json").unlink(missing_ok=True)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return self.write("result.json", {**content, "time": time})

    def mark_stale(self, why: str) -> Path:
        """Leave the run out of reports from now on; asked for again, it is done anew."""
        return self.write("stale.json", {"why": why})

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a JSON file of the folder; see `write_json`."""
        return write_json(self.folder / name, content)

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty where there is none; see `read_json`."""
        return read_json(self.folder / name)


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a JSON file, whole or not at all; raises ``ValueError`` for what it cannot hold."""
    values = json.loads(encode(dict(content)))
    return files.write_atomic(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty where there is none.

    Raises ``ValueError`` for a damaged one.
    """
    if not path.exists():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or the run") from error
    return content


def current(out: str | os.PathLike[str] = "") -> Record | None:
    """The record that a notebook writes to: a sweep's or `astkit run`'s, else ``out``, else none.

    At the end of a notebook::

        if run := record.current(out):
            run.figure("accuracy", accuracy_picture)
            run.finish(results)
    """
    folder = os.environ.get(FOLDER) or out
    return Record(folder) if folder else None


def digest(content: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that tell ``content`` from other content, whatever its order."""
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the parameters cannot be written as JSON ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _tail(name: str, parameters: Mapping[str, Any], seed: int) -> str:
    return f"{name}_{digest({'name': name, 'parameters': parameters})}_s{seed}"


def _flat(rows: Sequence[Row]) -> list[dict[str, Any]]:
    kinds = (bool, int, float, str, type(None))
    return [
        {key: _finite(value) for key, value in row.items() if isinstance(value, kinds)}
        for row in rows
    ]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _png(figure: Any) -> bytes:
    if isinstance(figure, bytes):
        return figure
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
