"""Display and ``await`` for notebook cells that run as a script."""

from __future__ import annotations

import asyncio
import importlib.machinery
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Stage:
    """Shows cell results as text and as files ``<stem>_1.png``, ...; runs awaitables."""

    def __init__(self, stem: str) -> None:
        self.stem = stem
        self._pictures = 0
        self._runner = asyncio.Runner()

    def set(self) -> None:
        """Redirect ``display`` to `show`, and prevent worker processes from running the cells."""
        from IPython import display

        display.display = self.show
        # a spawned worker re-imports the main module unless it has this spec
        sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("__main__", None)

    def show(self, *values: Any, **_: Any) -> None:
        """Save figures; print everything else, except ``None``."""
        for value in values:
            if hasattr(value, "_repr_png_"):
                self._pictures += 1
                path = Path(f"{self.stem}_{self._pictures}.png")
                path.write_bytes(value._repr_png_())
                print(f"picture: {path}")
            elif hasattr(value, "to_string"):  # pandas
                print(value.to_string())
            elif hasattr(value, "_repr_markdown_"):
                print(value._repr_markdown_())
            elif value is not None:
                print(value)

    def wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """The result of the awaitable that ``begin`` returns."""

        async def finish() -> T:
            return await begin()

        return self._runner.run(finish())
