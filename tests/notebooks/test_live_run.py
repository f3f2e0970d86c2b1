"""The run that notebook 02 shows: its controller is seen to work."""

import numpy as np
import papermill
import torch

from astkit import Budget, Gate, TrainConfig, Trainer, tasks
from astkit.gating import LogIntegral
from tests.notebooks.conftest import FOLDER


def test_the_share_is_held_and_the_threshold_moves_smoothly_by_a_decade():
    read = papermill.inspect_notebook(FOLDER / "02_controller_tuning.ipynb")
    names = ("rate", "later", "gain", "lr", "batches")
    rate, later, gain, lr, batches = (float(read[name]["default"]) for name in names)
    assert batches == 220
    half, digits = int(batches) // 2, tasks.task("digits")
    torch.manual_seed(0)
    trainer = Trainer(
        digits["make_model"](),
        digits["train"],
        policy=Gate(rate, controller=LogIntegral(rate, gain=gain)),
        budget=Budget(steps=int(batches)),
        config=TrainConfig(lr=lr),
        replay=[{"step": half, "name": "rate", "value": later}],
    )
    steps = trainer.run(progress=False).steps
    share = np.array([step["trained"] / step["seen"] for step in steps])
    threshold = np.array([step["threshold"] for step in steps])
    assert abs(share[20:half].mean() - rate) <= 0.05
    assert abs(share[half + 20 :].mean() - later) <= 0.05
    assert np.median(np.abs(np.diff(threshold)) / threshold[:-1]) <= 0.06
    assert threshold[0] >= 10 * threshold[half - 1]
