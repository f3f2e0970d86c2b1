"""Showing a run: static figures for now. Needs matplotlib and pandas."""
