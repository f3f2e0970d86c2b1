"""Kernels that are forked with torch imported, which takes longer than some notebooks.

    python forks.py            prints its address, and forks a kernel whenever it is asked
    python forks.py ADDRESS …  asks for one with these arguments, and lives as long as it

pandas is not imported before: it asks then whether it is in a notebook. In these kernels `aim` fits
smaller estimators.
"""

import os
import signal
import sys
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any


def main() -> None:
    if arguments := sys.argv[1:]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Client(arguments[0]) as kernel:
            kernel.send((os.getcwd(), dict(os.environ), arguments[1:]))
            kernel.poll(None)  # until it ends
        return
    sys.path[0] = str(Path(__file__).resolve().parents[2])  # not the folder of this file
    asked = wait()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    folder, environment, arguments = asked.recv()
    os.chdir(folder)
    os.environ |= {**environment, "JPY_PARENT_PID": str(os.getppid())}
    import pytest

    from tests import smaller

    smaller.pages(pytest.MonkeyPatch())
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


if __name__ == "__main__":
    main()
