"""A notebook once more, with other parameters and other lines."""

import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import nbformat
from IPython.utils.capture import capture_output

NOTEBOOKS = Path(__file__).resolve().parents[1]


def again(
    name: str, *changes: tuple[str, str], **parameters: Any
) -> dict[str, Any]:
    """Run the cells of a notebook; returns what they define.

    Args:
        name: its beginning, such as "00".
        changes: pairs of code that stands in it and what takes its place.
        parameters: values in place of those of the parameters cell.

    Raises ``ValueError`` for code that it has not.
    """
    (path,) = NOTEBOOKS.glob(f"{name}*.ipynb")
    cells = nbformat.read(path, 4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    for old, new in changes:
        if not any(old in cell.source for cell in code):
            raise ValueError(f"{path.name} has no {old!r}: see its cells")
        for cell in code:
            cell.source = cell.source.replace(old, new)
    sys.path.append(str(NOTEBOOKS))  # where pictures.py is
    space: dict[str, Any] = {}
    with chdir(NOTEBOOKS), capture_output():
        for cell in code:
            exec(compile(cell.source, f"<{path.name}>", "exec"), space)
            if "parameters" in cell.metadata.get("tags", []):
                space |= parameters
    return space
