"""Record of a run: one folder that contains all inputs of sweeps and reports.

<date>_<name>_<hash8>_s<seed>/
    config.json     name and parameters of the run
    env.json        the environment stamp
    fig/            figures
    notebook.ipynb  the executed notebook
    error.json      reason of a failure
    result.json     written last and atomically
    .unfinished     exists while it runs, and after it was killed

A run is complete if it has ``result.json``, but neither ``.unfinished`` nor ``error.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
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
"""Environment variable with the run folder of a notebook that a command executes."""

Status = Literal["complete", "failed", "incomplete", "stale"]
Row = Mapping[str, Any]

_SIGNS: tuple[tuple[str, Status], ...] = (
    ("stale.json", "stale"),
    (".unfinished", "incomplete"),
    ("error.json", "failed"),
    ("result.json", "complete"),
)


class Record:
    """The folder of one run, made if missing; `create` names a new one after its parameters."""

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
        """The folder of a run below ``root``: what `find` finds, or a new one.

        ``name`` becomes a part of the folder's; ``also``: additional entries of ``config.json``.
        Raises ``ValueError`` for parameters that JSON cannot represent.
        """
        if found := cls.find(root, name, parameters, seed):
            return found
        tail = _tail(name, parameters, seed)
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        folder, number = Path(root) / f"{date}_{tail}", 1
        while folder.exists():  # a stale one of the same day
            folder, number = Path(root) / f"{date}.{number}_{tail}", number + 1
        record = cls(folder)
        record.write("env.json", stamp())
        config = {"name": name, "seed": seed, "parameters": dict(parameters), **also}
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
        """The latest run with this name, seed and parameters that is not stale, or ``None``."""
        same = [cls(path) for path in sorted(Path(root).glob(f"*_{_tail(name, parameters, seed)}"))]
        return next((run for run in reversed(same) if run.status != "stale"), None)

    @property
    def status(self) -> Status:
        """The run's state, from the files in its folder."""
        found = (status for name, status in _SIGNS if (self.folder / name).exists())
        return next(found, "incomplete")

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Context: the run is incomplete until exit, and remains so after an exception or kill."""
        mark = self.folder / ".unfinished"
        mark.touch()
        yield
        mark.unlink()

    @property
    def config(self) -> dict[str, Any]:
        """Contents of ``config.json``; empty if missing."""
        return self.read("config.json", name=str, seed=int, parameters=dict)

    @property
    def result(self) -> dict[str, Any]:
        """Contents of ``result.json``; empty before the run is complete."""
        return self.read("result.json", rows=list, curves=list)

    def figure(self, name: str, figure: Any) -> Path:
        """Save a figure, a matplotlib ``Figure`` or PNG bytes, as ``fig/<name>.png``."""
        if not isinstance(figure, bytes):
            buffer = BytesIO()
            figure.savefig(buffer, format="png")
            figure = buffer.getvalue()
        return files.write_atomic(self.folder / "fig" / f"{name}.png", figure)

    def finish(self, rows: Sequence[Row] = (), curves: Sequence[Row] = (), **also: Any) -> Path:
        """Write ``result.json``, last and atomically, which completes the run.

        ``rows``: measurements for the tables of reports, one flat mapping per unit (such as an arm
        with its ``seed``); ``curves``: rows for their plots, such as one per epoch. Entries of both
        that are not plain values are dropped. ``also``: additional entries.
        """
        content = {"rows": flat(rows), "curves": flat(curves), **also}
        (self.folder / "error.json").unlink(missing_ok=True)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return self.write("result.json", {**content, "time": time})

    def mark_stale(self, why: str) -> Path:
        """Exclude the run from reports; running it again creates a new folder."""
        return self.write("stale.json", {"why": why})

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a JSON file in the folder; see `write_json`."""
        return write_json(self.folder / name, content)

    def read(self, name: str, /, **fields: type) -> dict[str, Any]:
        """Contents of a JSON file in the folder; empty if missing; see `read_json`."""
        return read_json(self.folder / name, **fields)


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a JSON file atomically; raises ``ValueError`` for values JSON cannot represent."""
    values = json.loads(encode(dict(content)))
    return files.write_atomic(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path, /, **fields: type) -> dict[str, Any]:
    """The mapping in a JSON file; empty if the file does not exist.

    ``fields``: required types of entries; lists contain mappings, and may be missing. Raises
    ``ValueError`` for other contents.
    """
    if not path.exists():
        return {}
    try:
        if not path.is_file():
            raise ValueError("not a regular file")
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, ensure_ascii=False).encode()  # raises for unpaired surrogates
        if not isinstance(content, dict):
            raise ValueError("not a mapping")
        for name, kind in fields.items():
            value = content.get(name, [] if kind is list else None)
            entries = value if kind is list and isinstance(value, list) else []
            if not isinstance(value, kind) or not all(isinstance(entry, dict) for entry in entries):
                words = "list of mappings" if kind is list else kind.__name__
                raise ValueError(f"{name} is not a {words}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or restore a copy") from error
    return content


def current(out: str | os.PathLike[str] = "") -> Record | None:
    """The record of the command that runs this notebook, else one in ``out``, if given.

    At the end of a notebook::

        if run := record.current(out):
            run.figure("accuracy", accuracy_picture)
            run.finish(results)
    """
    folder = os.environ.get(FOLDER) or out
    return Record(folder) if folder else None


def digest(content: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of ``content``, independent of its order."""
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the parameters cannot be written as JSON ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _tail(name: str, parameters: Mapping[str, Any], seed: int) -> str:
    return f"{name}_{digest({'name': name, 'parameters': parameters})}_s{seed}"


def flat(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """``rows`` without entries that are not plain values."""
    kinds = (bool, int, float, str, type(None))
    return [{key: row[key] for key in row if isinstance(row[key], kinds)} for row in rows]
