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


def fit(
    policy: Policy,
    folder: Path,
    seen: Any = None,
    workers: int = 0,
    saving: Any = None,
    **more: Any,
) -> Any:
    """The module trained for 4 epochs; checkpoints are written by the callback ``saving``."""
    import lightning.pytorch as L

    from astkit.integrations.lightning import PolicyCallback

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [PolicyCallback(policy), *([saving] if saving else [])]
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        default_root_dir=folder,
        callbacks=callbacks,
        enable_checkpointing=saving is not None,
        **quiet,
    )
    extra: dict[str, Any] = {"num_workers": workers}
    if workers:
        extra["multiprocessing_context"] = "fork"
    loader = DataLoader(PAIRS, BATCH)
    if not isinstance(policy, Gate):
        sampler = policy.sampler(PAIRS, epochs=4)
        loader = DataLoader(indexed(PAIRS), BATCH, sampler=sampler, **extra)
    model = module(policy, seen)
    trainer.fit(model, more.pop("loader", loader), DataLoader(PAIRS, 90), **more)
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
@pytest.mark.parametrize("place", ["step=5", "step=12", "step=13", "step=30", "epoch=1"])
def test_a_resumed_run_equals_the_uninterrupted_one(name: str, place: str, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    kind, _, number = place.partition("=")
    every = {"every_n_train_steps": int(number)} if kind == "step" else {}
    saving = ModelCheckpoint(tmp_path, f"{{{kind}}}", save_top_k=-1, **every)
    rows: list[list[int]] = []
    whole = fit(POLICIES[name](), tmp_path, rows, saving=saving)
    path = tmp_path / f"{place}.ckpt"
    if not path.exists():
        pytest.skip("the run is shorter")
    again: list[list[int]] = []
    resumed = fit(POLICIES[name](), tmp_path, again, ckpt_path=path)
    assert again == rows[len(rows) - len(again) :]
    assert kind == "epoch" or len(again) == len(rows) - int(number)
    assert_same(resumed.net, whole.net, atol=0)


def test_a_loader_without_the_policys_sampler_is_refused(tmp_path: Path) -> None:
    other = DataLoader(indexed(PAIRS), BATCH)
    twin = DataLoader(indexed(PAIRS), BATCH, sampler=POLICIES["random"]().sampler(PAIRS, 4))
    for loader, name in ((other, "SequentialSampler"), (twin, "PolicySampler")):
        with pytest.raises(ValueError, match=f"{name} that is not the sampler of this RandomSubs"):
            fit(POLICIES["random"](), tmp_path, loader=loader)


def test_a_name_is_no_policy_that_the_training_step_could_use() -> None:
    from astkit.integrations.lightning import PolicyCallback

    with pytest.raises(ValueError, match="policy is 'infobatch': pass the policy that the train"):
        PolicyCallback("infobatch")  # type: ignore[arg-type]
