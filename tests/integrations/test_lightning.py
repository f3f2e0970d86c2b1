"""Lightning trains with a policy as the kit's own loop does, and resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from astkit import Gate, Policy, indexed
from tests.integrations.loops import (
    BATCH,
    LR,
    PAIRS,
    POLICIES,
    assert_same,
    make_model,
    own_loop,
    rows_of,
)

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def lightning_is_installed() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")


def module(policy: Policy, seen: list[list[int]] | None = None) -> Any:
    import lightning.pytorch as L

    class Classifier(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()
            self.validated = 0

        def training_step(self, batch: Any, number: int) -> Any:
            if isinstance(policy, Gate):
                x, y = batch
                chosen = policy(self.net, x, y)
                return chosen.mean(rows_of(self.net(x[chosen.index]), y[chosen.index]))
            index, (x, y) = batch
            if seen is not None:
                seen.append(index.tolist())
            return policy.mean(rows_of(self.net(x), y), index)

        def validation_step(self, batch: Any, number: int) -> None:
            self.validated += 1

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), LR)

    return Classifier()


def loader_of(policy: Policy, epochs: int, workers: int = 0) -> DataLoader[Any]:
    if isinstance(policy, Gate):
        return DataLoader(PAIRS, BATCH)
    sampler = policy.sampler(PAIRS, epochs=epochs)
    extra: dict[str, Any] = {"num_workers": workers}
    if workers:
        extra["multiprocessing_context"] = "fork"
    return DataLoader(indexed(PAIRS), BATCH, sampler=sampler, **extra)


def trainer_of(policy: Policy, folder: Path, **options: Any) -> Any:
    import lightning.pytorch as L

    from astkit.integrations.lightning import PolicyCallback

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [PolicyCallback(policy), *options.pop("callbacks", [])]
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        callbacks=callbacks,
        **quiet,
        **options,
    )


def fit(policy: Policy, folder: Path, epochs: int = 4, seen: Any = None, **options: Any) -> Any:
    """The trained module; the run ends after ``epochs``, or as ``options`` say."""
    resume = options.pop("ckpt_path", None)
    workers = options.pop("workers", 0)
    model = module(policy, seen)
    options.setdefault("enable_checkpointing", False)
    trainer = trainer_of(policy, folder, max_epochs=epochs, **options)
    trainer.fit(model, loader_of(policy, epochs, workers), DataLoader(PAIRS, 90), ckpt_path=resume)
    return model


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["dense", "random", "infobatch"])
def test_a_policy_before_loading(name: str, workers: int, tmp_path: Path) -> None:
    model = fit(POLICIES[name](), tmp_path, workers=workers)
    assert_same(model.net, own_loop(POLICIES[name](), epochs=4))
    assert model.validated == 4 + 1  # an epoch each, and the sanity check


def test_a_gate(tmp_path: Path) -> None:
    model = fit(Gate(0.5), tmp_path)
    assert_same(model.net, own_loop(Gate(0.5), DataLoader(PAIRS, BATCH), epochs=4))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("step", [5, 12, 13, 30])
def test_a_resumed_run_equals_the_uninterrupted_one(name: str, step: int, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    rows: list[list[int]] = []
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=step, save_top_k=-1)
    options = {"callbacks": [saving], "enable_checkpointing": True}
    whole = fit(POLICIES[name](), tmp_path, seen=rows, **options)
    again: list[list[int]] = []
    path = tmp_path / f"step={step}.ckpt"
    if len(rows) < step:
        pytest.skip("the run is shorter")
    resumed = fit(POLICIES[name](), tmp_path, seen=again, ckpt_path=path)
    assert again == rows[step:]
    assert_same(resumed.net, whole.net, atol=0)


def test_resumed_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    options = {"callbacks": [saving], "enable_checkpointing": True}
    whole = fit(POLICIES["infobatch"](), tmp_path, **options)
    resumed = fit(POLICIES["infobatch"](), tmp_path, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert_same(resumed.net, whole.net, atol=0)


def test_a_loader_without_the_policys_sampler_is_refused(tmp_path: Path) -> None:
    policy = POLICIES["random"]()
    trainer = trainer_of(policy, tmp_path, max_epochs=1, enable_checkpointing=False)
    model = module(policy)
    with pytest.raises(ValueError, match=r"sampler SequentialSampler, not that of RandomSubset"):
        trainer.fit(model, DataLoader(indexed(PAIRS), BATCH))
