"""Checkpoints: the state of a run in two files, written atomically, checked when they are read.

A checkpoint is ``<name>.safetensors`` (all tensors; ``.gz`` if compressed) and ``<name>.json``
(everything else, and the SHA-256 of both), written in this order. No pickle is involved.
On deterministic devices a resumed run ends with bitwise the same weights, thresholds, metrics and
counts as an uninterrupted one.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout  # torch requires it
from safetensors.torch import load, save
from torch import Tensor

from astkit import distributed
from astkit.checks import FROM_0, check_count, check_number
from astkit.files import write_atomic
from astkit.progress import warn
from astkit.trainers.fingerprint import check_same
from astkit.trainers.history import StepRecord

PATIENCE = 6.0  # seconds; loader workers exit after their parent process dies
_NAME = re.compile(r"\d+_step\d+\.json")
_KIND = "$"  # key of JSON objects that encode types unknown to JSON


Found = tuple[Path, dict[str, Any]]
"""Path and state of a checkpoint."""


class DamagedError(ValueError):
    """A checkpoint whose content does not match its digest."""


class Checkpoints:
    """Folder, interval and retention of the checkpoints of a trainer.

    Example::

        kept = Checkpoints("runs/mine/checkpoints", every=500)
        Trainer(model, train, epochs=2, checkpoints=kept, resume=True).run()

    Checkpoints are written after every ``every`` training batches, after each epoch, and when the
    run is interrupted or iteration over it is stopped. During training the folder is locked; other
    trainers raise ``ValueError``. Of several processes, all read the checkpoints, and process 0
    writes them.

    Args:
        folder: used exclusively for these files; created if missing.
        every: interval in training batches; ``None`` for epochs only.
        pause: minimum interval in seconds; does not apply when a run ends or is stopped.
        keep: number of newest checkpoints to keep; use 2 or more to recover from a damaged file.
        compress: gzip the tensors; usually slower unless the disk is slow.

    Raises ``ValueError`` for numbers out of range.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | None = None,
        pause: float = 0.0,
        keep: int = 2,
        compress: bool = False,
    ) -> None:
        self.folder, self.compress = Path(folder).expanduser(), compress
        self.every = None if every is None else check_count("every", every)
        self.pause = check_number("pause", pause, FROM_0)
        self.keep = check_count("keep", keep)
        self.description: Mapping[str, Any] = {}  # of the run that writes them
        self.place: object = None  # where that run was at its latest checkpoint
        self._number = 0
        self._last = time.monotonic()

    def open(self, description: Mapping[str, Any], resume: bool) -> Found | None:
        """The newest valid checkpoint of the run of this ``description``; ``None`` for a new run.

        Raises ``ValueError`` if checkpoints exist and ``resume`` is false, if all are damaged or of
        another run, if the folder is in use, and if other processes find other ones.
        """
        self.description = description
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / ".lock", thread_local=False)
        with self._held():
            paths = list_checkpoints(self.folder)
            self._number = 1 + max(map(_number, paths), default=0)
            if paths and not resume:
                raise ValueError(
                    f"{self.folder} holds checkpoints of an earlier run: pass resume=True to"
                    " continue it, or choose another folder"
                )
            found = newest(self.folder) if paths else None
        name = None if found is None else found[0].name
        distributed.agree(str(name), str(description))
        if found is not None:
            check_same(found[1]["run"], description, found[0])
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder within a block.

        Raises ``ValueError`` if another trainer uses the folder, or has written to it since `open`.
        """
        with self._held():
            written = max(map(_number, list_checkpoints(self.folder)), default=0)
            if distributed.rank() == 0 and written >= self._number:
                raise ValueError(
                    f"another trainer has written to {self.folder} since this one was built: build"
                    " it again with resume=True"
                )
            yield

    def due(self, record: StepRecord, done: bool) -> bool:
        """Whether a checkpoint is due after ``record``, in all processes."""
        if record.phase == "train" and (self.every is None or record.step % self.every):
            return False
        rested = time.monotonic() - self._last >= self.pause
        if self.pause and not done:
            rested = distributed.total(rested)[0] == distributed.world()
        return done or rested

    def write(self, state: dict[str, Any], place: Any) -> None:
        """Write ``state`` of a ``place`` that begins with the step, and remove the oldest ones.

        Process 0 does. Raises ``OSError`` if the disk refuses; older checkpoints are kept then.
        """
        if distributed.rank() == 0:
            state = {"run": self.description, **state}
            write(self.folder / f"{self._number:06}_step{place[0]:08}", state, self.compress)
            self._number += 1
            self._last = time.monotonic()
            for path in list_checkpoints(self.folder)[self.keep :]:
                path.unlink(missing_ok=True)
                for tensors in self.folder.glob(f"{path.stem}.safetensors*"):
                    tensors.unlink(missing_ok=True)
        self.place = place

    def _held(self) -> AbstractContextManager[object]:
        """Lock the folder, by process 0 alone, until the block ends."""
        if distributed.rank() > 0:
            return nullcontext()
        try:
            return self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise ValueError(
                f"another trainer is using {self.folder}: stop it, or choose another folder"
            ) from None


def of_a_run(checkpoints: Checkpoints | str | os.PathLike[str]) -> Checkpoints:
    """A copy, since another trainer may be given the same ones; with the defaults for a folder."""
    if isinstance(checkpoints, Checkpoints):
        return copy.copy(checkpoints)
    return Checkpoints(checkpoints)


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The JSON files of the checkpoints in ``folder``, newest first."""
    paths = [path for path in Path(folder).expanduser().iterdir() if _NAME.fullmatch(path.name)]
    return sorted(paths, key=_number, reverse=True)


def newest(folder: str | os.PathLike[str]) -> Found:
    """The newest valid checkpoint and its state; warns about each damaged one.

    Raises ``ValueError`` if none is valid.
    """
    paths = list_checkpoints(folder)
    for path in paths:
        try:
            return path, read(path)
        except (DamagedError, OSError) as error:
            warn(f"{error}; the previous checkpoint is used")
    raise ValueError(
        f"none of the {len(paths)} checkpoints in {folder} is valid: move the folder away and start"
        " a new run"
    )


def write(stem: Path, state: Mapping[str, Any], compress: bool = False) -> Path:
    """Write ``state`` as two files; returns the path of the JSON file.

    ``state``: nested mappings, lists and tuples of tensors, strings, numbers, booleans and None;
    raises ``ValueError`` for other types and ``OSError`` if writing fails. Tied weights are stored
    once.
    """
    packed = _Packed()
    tree = packed.pack(state, "")
    content = save(packed.tensors)
    name = f"{stem.name}.safetensors"
    if compress:
        content, name = gzip.compress(content, compresslevel=1, mtime=0), f"{name}.gz"
    write_atomic(stem.with_name(name), content)
    head = {"file": name, "state": tree}
    text = json.dumps({**head, "sha256": _digest(content, head)}, allow_nan=False)
    return write_atomic(stem.with_name(f"{stem.name}.json"), text)


def _digest(content: bytes, head: Mapping[str, Any]) -> str:
    return hashlib.sha256(content + json.dumps(head, allow_nan=False).encode()).hexdigest()


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state of a JSON file that `write` wrote, with tensors on the CPU.

    Raises `DamagedError` for damaged files, ``FileNotFoundError`` if one is missing.
    """
    path = Path(path).expanduser()
    try:
        head = json.loads(path.read_bytes())
        name = Path(head["file"]).name  # beside the JSON file, whatever it says
        content = path.with_name(name).read_bytes()
        if head.pop("sha256") != _digest(content, head):
            raise DamagedError(f"{path.name} and {name} do not have the SHA-256 that was stored")
        if name.endswith(".gz"):
            content = gzip.decompress(content)
        return _unpack(head["state"], load(content))
    except (OSError, DamagedError):
        raise
    except Exception as error:  # not written by `write`
        raise DamagedError(f"{path} holds no training state ({error})") from error


class _Packed:
    """Turns a state into a JSON tree, and ``tensors`` that its leaves name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Hashable, str] = {}

    def pack(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {_KIND: "float", "value": repr(value)}
        if isinstance(value, Tensor) and value.is_complex():  # safetensors knows one type of four
            pairs = torch.view_as_real(value.detach().resolve_conj())
            return {_KIND: "complex", "parts": self.pack(pairs, place)}
        if isinstance(value, Tensor) and value.layout == torch.strided:
            return {_KIND: "tensor", "name": self._name(value.detach(), place.strip("/"))}
        if isinstance(value, Mapping):
            if all(isinstance(key, str) for key in value) and _KIND not in value:
                return {key: self.pack(part, f"{place}/{key}") for key, part in value.items()}
            items = [
                [self.pack(key, place), self.pack(part, f"{place}/{key}")]
                for key, part in value.items()
            ]
            return {_KIND: "mapping", "items": items}
        if isinstance(value, list | tuple):
            parts = [self.pack(part, f"{place}/{number}") for number, part in enumerate(value)]
            return parts if isinstance(value, list) else {_KIND: "tuple", "items": parts}
        tensor = isinstance(value, Tensor)
        what = f"{value.layout} tensor of {value.dtype}" if tensor else type(value).__name__
        raise ValueError(
            f"{place.strip('/')} is a {what}, which a checkpoint cannot hold: let the state_dict"
            " give numbers, strings, dense tensors, or lists and mappings of them"
        )

    def _name(self, tensor: Tensor, place: str) -> str:
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not tensor.numel() or key not in self._names:
            while place in self.tensors:  # of another key, such as "1" beside 1
                place += "'"
            self._names[key] = place
            # a copy: safetensors refuses tensors that share memory
            self.tensors[place] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        return self._names[key]


def _unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_unpack(part, tensors) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get(_KIND)
    if kind is None:
        return {key: _unpack(part, tensors) for key, part in tree.items()}
    if kind == "tensor":
        return tensors[tree["name"]]
    if kind == "complex":
        return torch.view_as_complex(_unpack(tree["parts"], tensors))
    if kind == "float":
        return float(tree["value"])
    if kind == "tuple":
        return tuple(_unpack(part, tensors) for part in tree["items"])
    return {_unpack(key, tensors): _unpack(part, tensors) for key, part in tree["items"]}


def _number(path: Path) -> int:
    return int(path.name.partition("_")[0])
