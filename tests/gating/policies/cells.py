"""The policies of docs/recipes.md: its code defines them, in this module."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recipes.md"
_TEXT = PAGE.read_text("utf-8").split("\n### Scores and what they cost\n")[0]
CODE = "\n".join(re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL))
exec(compile(CODE, PAGE.name, "exec"), globals())  # so that other processes find them here
