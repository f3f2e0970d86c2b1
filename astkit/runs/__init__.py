"""Making runs repeatable: arms of a comparison, their tables, and the files that keep them."""
