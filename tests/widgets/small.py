"""A run of 33 steps on 88 tiny images, for tests that drive one."""

import torch

from astkit import Gate, Loader, Trainer
from astkit.datasets import Images

STEPS = 33


def small_trainer(gated=True, **options):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (88, 1, 2, 2), generator=generator).to(torch.uint8)
    data = Images(pixels, torch.arange(88) % 3, ("a", "b", "c"), "tiny")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    policy = Gate(0.3) if gated else None
    train, validation = Loader(data, 8), Loader(data, 88, shuffle=False)
    return Trainer(model, train, validation, policy=policy, epochs=3, **options)
