"""The same training in other libraries, a step at a time; `benchmarks.speed` times them.

They take batches of prepared tensors from a DataLoader, so that loading costs them little. Each
trains in a thread of its own, which waits while another one is timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from threading import Semaphore, Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from astkit.datasets import load
from benchmarks.bench import BATCH
from benchmarks.speed import LR, STEPS, Step

EPOCHS = 100_000
Make = Callable[[], nn.Module]
Train = Callable[[Make, Callable[[], None]], None]


class Paused:
    """A training loop in a thread of its own; each call lets it take `STEPS` steps."""

    def __init__(self, train: Train, make: Make) -> None:
        self.go, self.stopped = Semaphore(0), Semaphore(0)
        self.left, self.error = STEPS, None
        Thread(target=self._run, args=(train, make), daemon=True).start()

    def _run(self, train: Train, make: Make) -> None:
        self.go.acquire()
        try:
            train(make, self.step)
        except BaseException as error:  # raised where it is waited for
            self.error = error
        self.stopped.release()

    def step(self) -> None:
        """Called by the loop after each step."""
        self.left -= 1
        if not self.left:
            self.stopped.release()
            self.go.acquire()

    def __call__(self) -> None:
        self.left = STEPS
        self.go.release()
        self.stopped.acquire()
        if self.error is not None:
            raise RuntimeError("a training ended") from self.error


def batches(named: bool = False) -> DataLoader[Any]:
    """Batches of normalised digits, each gathered at once."""
    digits = load("digits")[0]
    mean, std = digits.channel_stats()
    x, y = (digits.images.float() / 255 - mean[0]) / std[0], digits.labels
    data = TensorDataset(x, y)
    sampler = BatchSampler(RandomSampler(data), BATCH, drop_last=False)
    keys = ("x", "labels")
    collate = (lambda pair: dict(zip(keys, pair, strict=True))) if named else None
    return DataLoader(data, batch_size=None, sampler=sampler, collate_fn=collate)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LR, fused=True)


def loop(make: Make, step: Callable[[], None]) -> None:
    """A raw loop over the DataLoader."""
    model, data = make(), batches()
    parameters = list(model.parameters())
    optimizer = adamw(parameters)
    for _ in range(EPOCHS):
        for x, y in data:
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            step()


def accelerate(make: Make, step: Callable[[], None]) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make()
    model, optimizer = accelerator.prepare(model, adamw(model.parameters()))
    data = batches()
    for _ in range(EPOCHS):
        for x, y in data:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step()


def lightning(make: Make, step: Callable[[], None]) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make()

        def training_step(self, batch: Any, _: int) -> Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def on_train_batch_end(self, *_: Any) -> None:
            step()

        def configure_optimizers(self) -> Any:
            return adamw(self.parameters())

    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), batches())


def skorch(make: Make, step: Callable[[], None]) -> None:
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Callback, GradientNormClipping

    class Steps(Callback):
        def on_batch_end(self, *_: Any, **__: Any) -> None:
            step()

    net = NeuralNetClassifier(
        make(),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        optimizer__fused=True,
        lr=LR,
        max_epochs=EPOCHS,
        train_split=None,
        verbose=0,
        iterator_train=lambda *_, **__: batches(),
        callbacks=[GradientNormClipping(1.0), Steps()],
    )
    data = batches().dataset
    net.fit(*data.tensors)


def transformers(make: Make, step: Callable[[], None]) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.model(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    class Steps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            step()

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return batches(named=True)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=EPOCHS,
            learning_rate=LR,
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        model = Model()
        data = batches().dataset
        Own(model, arguments, train_dataset=data, callbacks=[Steps()]).train()


LIBRARIES: dict[str, Train] = {
    "accelerate": accelerate,
    "lightning": lightning,
    "skorch": skorch,
    "transformers": transformers,
}


def versions() -> dict[str, str]:
    """The libraries that are installed, with their versions."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def ways(make: Make) -> dict[str, Step]:
    """The installed libraries, and a raw loop over their DataLoader."""
    return {"raw over a DataLoader": Paused(loop, make)} | {
        name: Paused(LIBRARIES[name], make) for name in versions()
    }
