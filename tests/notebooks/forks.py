"""Kernels that are forked with torch imported, which takes longer than some notebooks.

    python forks.py            prints its address, and forks a kernel whenever it is asked
    python forks.py ADDRESS …  asks for one with these arguments, and lives as long as it

pandas is not imported before: it asks then whether it is in a notebook. In these kernels `aim` fits
fewer and smaller trees, and weighs rows of as many others once.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from typing import Any


def main() -> None:
    if arguments := sys.argv[1:]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Client(arguments[0]) as kernel:
            kernel.send((os.getcwd(), dict(os.environ), arguments[1:]))
            kernel.poll(None)  # until it ends
        return
    sys.path.pop(0)  # the folder of this file
    asked = wait()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    folder, environment, arguments = asked.recv()
    os.chdir(folder)
    os.environ |= {**environment, "JPY_PARENT_PID": str(os.getppid())}
    shorten()
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance(arguments)


def wait() -> Connection:
    """Returns in each fork, with the connection to who asked for it."""
    for name in ("torch._dynamo", "torchvision", "scipy.stats"):
        import_module(name)
    signal.signal(signal.SIGCHLD, lambda *_: os.wait())
    listener: Any = Listener()
    print(listener.address, flush=True)
    os.dup2(2, 1)
    while True:
        asked: Any = listener.accept()
        if os.fork() == 0:
            return asked
        asked.close()


def shorten() -> None:
    from astkit.aim import estimators, policy, proxies, ratio
    from astkit.comparison import training

    proxies.TREES |= {"max_iter": 3}
    estimators.TREES |= {"max_bins": 8, "max_iter": 10}
    ratio.FOLDS = 2
    training.POINTS = 3
    weigh, found = policy._weights_and_forecast, {}

    def weigh_once(pair: Any, *rest: Any) -> Any:
        sizes = len(pair.train), len(pair.target)
        if sizes not in found:
            found[sizes] = weigh(pair, *rest)
        return found[sizes]

    policy._weights_and_forecast = weigh_once


if __name__ == "__main__":
    main()
