"""Throughput, utilisation and memory of a run as a time series, one row per window of batches."""

from __future__ import annotations

import time
from typing import Any

import torch

from astkit import logs
from astkit.profiling.ledger import Ledger
from astkit.profiling.memory import PeakMemory, peak_memory
from astkit.system import allowed_cpus


class Throughput:
    """Observer that reads a run's counters every ``every`` training batches::

        speed = Throughput(trainer.ledger, trainer.device)
        trainer.observers.append(speed)
        trainer.run()
        pd.DataFrame(speed.rows)

    With a log ``level`` of "astkit", such as ``logs.PERFORMANCE``, only while it is enabled. An
    accelerator is synchronised once per window, and the wait counts as training. The first batch,
    which includes one-time work, only starts the first window; the last window may be shorter. The
    memory peak is reset at each window; see `peak_memory`.

    ``rows`` has one mapping per window. ``step``: its last step. ``training_steps``: its batches.
    ``seen_per_second``, ``trained_per_second``: samples loaded, and trained on, per second of the
    training clock. ``wall_seconds``; part of them are ``seconds`` and ``evaluation_seconds`` of the
    two clocks, and ``phases`` of the first. ``utilisation``: ``seconds / wall_seconds``.
    ``cpu_utilisation``: CPU seconds of this process (threads, not children) over wall seconds and
    available cores. ``gpu_utilisation``: share of the driver's last sample period (1/6 to 1 s) in
    which a kernel ran, or ``None`` with ``gpu_utilisation_reason``. ``memory_bytes``: peak in the
    window, with ``memory_backend`` and ``memory_reason``.

    Raises ``ValueError`` for ``every`` below 1.
    """

    def __init__(
        self,
        ledger: Ledger,
        device: torch.device | str = "cpu",
        every: int = 20,
        level: int | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}, but counts batches: give 1 or more")
        self.ledger, self.device = ledger, torch.device(device)
        self.every, self.level = every, level
        self.cores = allowed_cpus()
        self.rows: list[dict[str, Any]] = []
        self._open: tuple[dict[str, float], PeakMemory] | None = None
        self._step = self._batches = 0
        self._no_gpu = None if self.device.type == "cuda" else "NVML reads NVIDIA GPUs only"

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Count a training batch; add a row at the end of a window."""
        if phase != "train":
            return
        if self.level is not None and not logs.enabled(self.level):
            self.close()
            return
        if self._open is not None:
            self._step = step
            self._batches += 1
            if self._batches < self.every:
                return
            self.close()
        memory = peak_memory(self.device).__enter__()
        self._batches, self._open = 0, (self._mark(), memory)

    def close(self) -> None:
        """End the current window; the next batch starts another."""
        if self._open is None:
            return
        (start, memory), self._open = self._open, None
        memory.__exit__()
        if self._batches:
            peak = memory.reading
            row = {
                **self._speed(start, self._mark()),
                **self._gpu(),
                "memory_bytes": peak.bytes,
                "memory_backend": peak.backend,
                "memory_reason": peak.reason,
            }
            self.rows.append(row)
            logs.record(logs.PERFORMANCE, "throughput", lambda: row)

    def _mark(self) -> dict[str, float]:
        """All counters now; a row is the difference of two."""
        ledger = self.ledger
        ledger.settle()  # before `samples`, which may wait too
        samples = ledger.samples
        return {
            "wall": time.perf_counter(),
            "cpu": time.process_time(),
            "seen": samples.trained + samples.overflowed + samples.skipped,
            "trained": samples.trained,
            **ledger.seconds,
            **{f"phase {name}": seconds for name, seconds in ledger.phases.items()},
        }

    def _speed(self, start: dict[str, float], end: dict[str, float]) -> dict[str, Any]:
        passed = {name: value - start.get(name, 0.0) for name, value in end.items()}
        training, wall = passed["training"], passed["wall"]
        return {
            "step": self._step,
            "training_steps": self._batches,
            "seen_per_second": passed["seen"] / training,
            "trained_per_second": passed["trained"] / training,
            "wall_seconds": wall,
            "seconds": training,
            "evaluation_seconds": passed["evaluation"],
            "phases": {
                name.removeprefix("phase "): seconds
                for name, seconds in passed.items()
                if name.startswith("phase ")
            },
            "utilisation": training / wall,
            "cpu_utilisation": passed["cpu"] / wall / self.cores,
        }

    def _gpu(self) -> dict[str, Any]:
        share = None
        if self._no_gpu is None:
            try:
                share = torch.cuda.utilization(self.device) / 100
            except Exception as error:  # a driver error must not end the run
                self._no_gpu = f"NVML reads no utilisation ({error})"
        return {"gpu_utilisation": share, "gpu_utilisation_reason": self._no_gpu}
