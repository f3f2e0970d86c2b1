"""Repeatable runs of notebooks, and tables of their results.

session.py     what all notebooks share: `notebook`, its `start`, `answer` and `finish`
runner.py      run one notebook with parameters in its run folder, with papermill
sweep.py       all combinations of parameters
record.py      the run folder and its files
tables.py      means over seeds with intervals, from run folders
export.py      a notebook and the package as one file, for Kaggle
"""

from astkit.runs.session import Session, notebook, start

__all__ = ["Session", "notebook", "start"]
