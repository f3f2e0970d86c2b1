"""``python -m astkit``."""

from astkit.cli import main

raise SystemExit(main())
