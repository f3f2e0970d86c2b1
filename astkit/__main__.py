"""``python -m astkit``."""

import sys

if not sys.flags.safe_path:
    # "-m" puts the current folder first on the path, where a json.py would shadow Python's
    del sys.path[0]

from astkit.cli import main

raise SystemExit(main())
