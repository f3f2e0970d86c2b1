"""The examples of docs/recipes.md run as they stand, and train as the kit's own loop does."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from astkit import RandomSubset, indexed
from astkit.gating.policies.infobatch import InfoBatch
from tests.integrations.loops import assert_same, own_loop
from tests.test_readme import PAGES, blocks


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the block that imports a package; returns its names, and the model before."""

    def run(package: str) -> dict[str, Any]:
        pytest.importorskip(package, reason=f"{package} is not installed")
        monkeypatch.chdir(tmp_path)
        pages = {path.name: text for path, text in PAGES.items()}
        (source,) = (block for needs, block in blocks(pages["recipes.md"]) if needs == package)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(blocks(pages["loops.md"])[0][1], "setting", "exec"), names)
        names |= {name: copy.deepcopy(names["model"]) for name in ("before", "fresh")}
        exec(compile(source, package, "exec"), names)
        return names

    return run


def as_the_kit(names: dict[str, Any], policy: Any) -> Any:
    return own_loop(policy, names["train"], names["before"], batch_size=64, epochs=4)


def test_lightning(example: Any, tmp_path: Path) -> None:
    names = example("lightning")
    assert_same(names["model"], as_the_kit(names, InfoBatch()))
    from lightning.pytorch.callbacks import ModelCheckpoint

    def fit(path: Path | None = None, **saving: Any) -> Any:
        policy, model = InfoBatch(), copy.deepcopy(names["fresh"])
        sampler = policy.sampler(names["train"], epochs=4)
        sampler.sized = False
        loader = DataLoader(indexed(names["train"]), batch_size=64, sampler=sampler)
        options = {"callbacks": [ModelCheckpoint(tmp_path, "{step}", **saving)] if saving else []}
        run = names["L"].Trainer(max_epochs=4, logger=False, **options)
        run.fit(names["Classifier"](model, policy), loader, ckpt_path=path)
        return model

    whole = fit(save_top_k=-1)  # of each epoch
    assert_same(whole, names["model"])
    saved = sorted(tmp_path.glob("step=*.ckpt"))
    assert len(saved) == 4
    for path in saved[:2]:
        assert_same(fit(path), whole, atol=0)


def test_accelerate(example: Any, tmp_path: Path) -> None:
    names = example("accelerate")
    assert_same(names["model"], as_the_kit(names, RandomSubset(0.25)))
    policy = names["policy"]
    rows = [[index.tolist() for index, _ in names["loader"]]]  # of a fifth epoch
    names["accelerator"].load_state("checkpoint")
    assert policy.begun == 4
    rows.append([index.tolist() for index, _ in names["loader"]])
    assert rows[0] == rows[1]


def test_transformers(example: Any) -> None:
    names = example("transformers")
    trainer = names["trainer"]
    assert (trainer.state.global_step, trainer.policy.batches) == (8, 8)
    batch = {name: torch.stack([row[name] for row in names["texts"]]) for name in names["texts"][0]}
    own = trainer.model.train()(**batch).loss
    trainer.policy = RandomSubset(1.0)
    found = trainer.compute_loss(trainer.model, batch)
    assert found.item() == pytest.approx(own.item(), abs=1e-6)
