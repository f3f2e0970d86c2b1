"""With two processes, each library trains on the rows that one process with their batches would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integrations.loops import POLICIES, assert_same, make_model, own_loop

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
SCRIPT = """
import sys, torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from astkit import indexed
from tests.integrations.loops import PAIRS, POLICIES, make_model, rows_of
tool, path = sys.argv[1:]
# 36 rows an epoch, which two processes share
policy, net, half = POLICIES["random"](), make_model(), 4
if tool == "huggingface":
    import transformers
    from astkit.integrations.huggingface import PolicyTrainer

    class Model(torch.nn.Module):
        config = None
        def __init__(self):
            super().__init__()
            self.net = net
        def forward(self, x, labels=None):
            return {"logits": self.net(x)}

    rows = [{"x": x, "labels": y} for x, y in PAIRS]
    args = transformers.TrainingArguments(
        path + "-out", max_steps=30, per_device_train_batch_size=half, report_to="none",
        use_cpu=True, disable_tqdm=True, save_strategy="no", lr_scheduler_type="constant",
        max_grad_norm=0.0, learning_rate=0.1, optim="sgd", logging_strategy="no",
        dataloader_pin_memory=False)
    PolicyTrainer(Model(), args, train_dataset=rows, policy=policy).train()
    main = args.process_index == 0
elif tool == "lightning":
    import lightning.pytorch as L

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net
        def training_step(self, batch, number):
            index, (x, y) = batch
            return policy.mean(rows_of(self.net(x), y), index)
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    sampler = policy.sampler(PAIRS, epochs=4)  # before the processes know each other
    sampler.sized = False
    loader = DataLoader(indexed(PAIRS), half, sampler=sampler)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, use_distributed_sampler=False,
        logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False)
    trainer.fit(Classifier(), loader)
    main = trainer.is_global_zero
else:
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(indexed(PAIRS), half, sampler=policy.sampler(PAIRS, epochs=4))
    model, optimizer = accelerator.prepare(net, optimizer)
    for _ in range(4):
        for index, (x, y) in loader:
            optimizer.zero_grad()
            accelerator.backward(policy.mean(rows_of(model(x), y), index))
            optimizer.step()
    main = accelerator.is_main_process
if main:
    torch.save(net.state_dict(), path)
"""


@pytest.mark.full
@pytest.mark.parametrize("tool", ["accelerate", "lightning", "huggingface"])
def test_two_processes_train_as_one(tool: str, tmp_path: Path) -> None:
    package = "transformers" if tool == "huggingface" else tool
    pytest.importorskip(package, reason=f"{package} is not installed")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        [*COMMAND, str(script), tool, str(tmp_path / "weights")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    model = make_model()
    model.load_state_dict(torch.load(tmp_path / "weights", weights_only=True))
    budget = {"steps": 30} if tool == "huggingface" else {"epochs": 4}
    assert_same(model, own_loop(POLICIES["random"](), **budget))
