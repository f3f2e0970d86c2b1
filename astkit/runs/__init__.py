"""Repeatable runs: comparisons, notebooks in run folders, sweeps, and tables of their results.

Comparison of policies, `astkit.compare` (an arm is one policy, or a control, and one seed):
    comparison.py        the call, and its result
    comparison_arguments.py  checks of the arguments, and labels of policies
    comparison_task.py   what all arms share
    comparison_plan.py   the order of the arms, resuming, processes
    comparison_arm.py    training of one arm; visits.py: the rows that it trains on
    pilot.py             what each policy can save on this machine
Notebooks:
    parameters.py        read and check a notebook's parameters, and grids of them
    notebook.py          run one notebook in its run folder, with papermill
    sweep.py             all combinations of parameters, a process each
    record.py            the run folder and its files
Results:
    intervals.py         means over seeds with confidence intervals
    paired.py            entries of a comparison, paired with a control by seed
    verdict.py           pays, costs or undecided, with intervals over all policies together
    samples.py           which samples a run trains on; audit.py: finding wrong labels
    tables.py            tables of run folders
    comparison_page.py   Markdown and HTML page on a comparison
"""
