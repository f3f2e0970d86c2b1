"""`astkit doctor`: what it prints, and that it starts where torch does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astkit.cli import main
from astkit.runs import doctor
from astkit.runs.doctor import Finding, text, verdict

ROOT = Path(__file__).parents[2]
GOOD = Finding("torch", "ok", "2.15.0", core=True)
LACKING = Finding("tune", "--", "no optuna", "for tuning `pip install 'astkit[tune]'`")
BROKEN = Finding("torch", "!!", "does not import", "install it anew", core=True)


@pytest.mark.parametrize(("findings", "code"), [([GOOD, LACKING], 0), ([BROKEN, LACKING], 1)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_exit_code_says_whether_the_core_works(monkeypatch, capsys, findings, code, options):
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert main(["doctor", *options]) == code
    out, err = capsys.readouterr()
    sentence = verdict(findings)
    if options:
        content = json.loads(out)
        assert content["works"] is (code == 0)
        assert [Finding(**each) for each in content["findings"]] == findings
        assert err == ("" if code == 0 else f"astkit: {sentence}\n")
    else:
        assert out == text(findings) + "\n"
        assert out.splitlines()[-1] == sentence


def test_it_starts_where_torch_cannot_be_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so is damaged')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "astkit", "doctor"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "(ImportError: libtorch.so is damaged)" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1].startswith("astkit cannot work here: fix torch")


def test_help_fits_and_has_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "astkit doctor --json" in said
    assert max(map(len, said.splitlines())) <= 80
