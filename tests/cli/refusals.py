"""What all commands do with arguments that cannot be."""

import pytest

from astkit.cli import main


def refused(capsys, *arguments: object, lines: int = 1) -> str:
    """The one line, or several, that ``arguments`` are refused with, at exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == lines
    assert error.startswith("astkit: ")
    return error.removeprefix("astkit: ")
