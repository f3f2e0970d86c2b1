"""Options shared by several commands."""

from __future__ import annotations

import argparse
from typing import TypeAlias

import torch

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def use_threads(options: argparse.Namespace) -> None:
    """Set torch's number of threads to ``--threads``, if given; ``ValueError`` below 1."""
    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"--threads is {options.threads}: give 1 or more")
        torch.set_num_threads(options.threads)
