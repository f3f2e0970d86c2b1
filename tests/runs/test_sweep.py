"""Sweeps: every combination into a folder of its own, once, whatever fails or interrupts."""

from __future__ import annotations

import collections
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from filelock import FileLock

from astkit.runs import notebook, parameters, sweep
from astkit.runs.notebook import Outcome
from astkit.runs.record import Record
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811
RATES, SEEDS = [0.05, 0.1, 0.2], range(4)


@pytest.fixture(autouse=True)
def in_this_process(request, monkeypatch):
    """Runs take place here instead of in processes of their own."""

    def run(words, running):
        _, path, *rest = words
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        given = parameters.assignments([text for option, text in pairs if option == "-p"])
        plan, others = parameters.read(path), dict(pair for pair in pairs if pair[0] != "-p")
        threads = int(others["--threads"]) if "--threads" in others else None
        try:
            values = {name: plan.from_text(name, text) for name, text in given.items()}
            done = notebook.run(plan, values, others["--runs"], threads=threads)
        except ValueError as error:
            return 2, f"astkit: {error}\n"
        if done.status == "busy":
            return 2, "astkit: it is locked by another process"
        return int(done.status == "failed"), ""

    if not request.node.get_closest_marker("full") and "processes" not in request.node.name:
        monkeypatch.setattr(sweep, "_process", run)


def run(toy, values, root, *arguments, **options):
    lines = []
    return sweep.run(toy, values, *arguments, root=root, announce=lines.append, **options), lines


def test_every_combination_is_run_once_in_a_folder_of_its_own(toy, root, process):
    seen = process("complete")
    outcomes, _ = run(toy, {"rate": RATES, "seed": SEEDS}, root, 2)
    product = [{"rate": rate, "seed": seed} for rate, seed in itertools.product(RATES, SEEDS)]
    assert [done.parameters for done in outcomes] == product
    assert sorted((given for given, _ in seen), key=str) == sorted(product, key=str)
    assert len({done.folder for done in outcomes}) == len(product)
    for done in outcomes:
        record = Record(done.folder)
        assert record.status == done.status == "complete"
        assert done.parameters.items() <= record.config["parameters"].items()


def test_a_failing_or_damaged_run_costs_only_itself_and_is_redone(toy, root, process):
    lucky = []

    def act(record, given):
        return "complete" if lucky or given["seed"] != 2 else error("two\nlines")

    seen = process(act)
    outcomes, lines = run(toy, {"seed": SEEDS}, root)
    assert [done.status for done in outcomes] == ["complete"] * 2 + ["failed", "complete"]
    assert outcomes[2].error == "ValueError: two lines in cell [3]"
    assert any(line.startswith("3/4  failed  seed=2") for line in lines)
    lucky.append(True)
    stamped = (outcomes[2].folder / "env.json").read_text()
    (outcomes[2].folder / "env.json").write_text("{")
    outcomes, _ = run(toy, {"seed": SEEDS}, root)
    assert [done.status for done in outcomes] == ["complete"] * 2 + ["failed", "complete"]
    assert "env.json is damaged" in outcomes[2].error
    (damaged,) = (path for path in root.glob("*/env.json") if path.read_text() == "{")
    damaged.write_text(stamped)
    outcomes, lines = run(toy, {"seed": SEEDS}, root)
    assert {done.status for done in outcomes} == {"complete"}
    assert lines[0] == "4 runs, 3 of them already complete"
    assert [given["seed"] for given, _ in seen] == [0, 1, 2, 3, 2]


def test_a_folder_that_is_no_record_fails_its_run_alone(toy, root, process):
    """Without a folder to name, the outcome names the error."""
    process("complete")
    outcomes, _ = run(toy, {"seed": [0, 1]}, root)
    (outcomes[0].folder / "result.json").write_text("[1]")
    (outcomes[0].folder / ".unfinished").touch()
    (outcomes[0].folder / "env.json").write_text("[1]")
    outcomes, _ = run(toy, {"seed": [0, 1]}, root)
    assert [done.status for done in outcomes] == ["failed", "complete"]
    assert "env.json is damaged (not a mapping)" in outcomes[0].error


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_complete_run_with_a_damaged_file_fails_alone(toy, root, process, name):
    process("complete")
    done, _ = run(toy, {"seed": [0]}, root)
    (done[0].folder / name).write_text("{")
    outcomes, lines = run(toy, {"seed": [0, 1]}, root)
    assert [each.status for each in outcomes] == ["failed", "complete"]
    assert f"{name} is damaged" in outcomes[0].error
    assert lines[0] == "2 runs, 0 of them already complete"


def test_two_sweeps_share_the_work(toy, root, process):
    def act(record, given):
        time.sleep(0.05)
        return "complete"

    seen = process(act)
    results = []

    def work():
        results.append(run(toy, {"rate": RATES, "seed": SEEDS}, root, 2)[0])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = collections.Counter((given["rate"], given["seed"]) for given, _ in seen)
    assert counts == dict.fromkeys(itertools.product(RATES, SEEDS), 1)
    assert len([path for path in root.iterdir() if path.is_dir()]) == len(counts)
    for outcomes in results:
        assert {done.status for done in outcomes} <= {"complete", "busy"}


def test_threads_are_divided_among_the_jobs_unless_they_are_set(toy, root, process, monkeypatch):
    monkeypatch.setattr(sweep, "allowed_cpus", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = process("complete")
    for case, (jobs, count, expected) in enumerate([(1, 2, 8), (3, 4, 2), (9, 9, 1), (4, 2, 4)]):
        seen.clear()
        run(toy, {"seed": range(count), "wait": [float(case)]}, root, jobs)
        for name in notebook.THREAD_VARIABLES:
            assert {env[name] for _, env in seen} == {str(expected)}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    seen.clear()
    run(toy, {"seed": [98]}, root, 2)
    run(toy, {"seed": [99]}, root, 2, threads=3)
    assert [env.get("OMP_NUM_THREADS") for _, env in seen] == [None, "3"]  # inherited, given


def test_progress_says_how_far_how_well_and_how_long(toy, root, process, monkeypatch):
    clock = itertools.count(0, 100)
    with monkeypatch.context() as patch:
        patch.setattr(sweep.time, "perf_counter", lambda: next(clock))
        patch.setattr(
            sweep, "_one", lambda plan, given, root, *rest: Outcome(given, "complete", 5.0)
        )
        _, lines = run(toy, {"rate": [0.5], "seed": range(4)}, root)
    assert lines[0] == "4 runs, 0 of them already complete"
    # 100 s a run by the clock, so 300, 200 and 100 s for those that are left
    left = [f"  (about 0:0{minutes} left)" for minutes in ("5:00", "3:20", "1:40")] + [""]
    expected = [f"{n + 1}/4  complete  seed={n}  5.0 s{left[n]}" for n in range(4)]
    assert lines[1:] == expected
    process("complete")
    run(toy, {"seed": range(3)}, root)
    assert run(toy, {"seed": range(3)}, root)[1] == ["3 runs, 3 of them already complete"]


def test_a_line_that_cannot_be_told_ends_the_sweep_in_good_order(toy, root, process):
    def announce(line):
        if line.startswith("1/"):
            raise BrokenPipeError

    seen = process(lambda record, given: time.sleep(0.05) or "complete")
    with pytest.raises(BrokenPipeError):
        sweep.run(toy, {"seed": range(50)}, 2, root, announce=announce)
    count = len(seen)
    assert count < 50
    time.sleep(0.3)
    assert len(seen) <= count + 2  # those that were under way


def test_what_cannot_be_is_refused_before_anything_starts(toy, root, process):
    seen = process("complete")
    for values, options, sentence in (
        ({"sede": [1]}, {}, "no parameter 'sede': did you mean seed"),
        ({"seed": [1, "two"]}, {}, "seed is 'two'"),
        ({"seed": []}, {}, "seed has no values"),
        ({"seed": [1]}, {"jobs": 0}, "jobs is 0: give 1 or more"),
        ({"seed": [1]}, {"threads": 0}, "threads is 0: give 1 or more"),
    ):
        with pytest.raises(ValueError, match=sentence):
            sweep.run(toy, values, root=root, **options)
    assert not seen
    assert not root.exists()


def test_commands_are_those_of_the_runs_that_are_not_complete(tmp_path, root, process):
    toy = sweeping.write(tmp_path / "my toy's.ipynb")
    process("complete")
    run(toy, {"mode": ["it's a"], "rate": [0.1], "names": [["a", "b c"]]}, root)
    values = {"mode": ["it's a", "0..3", "$HOME"], "rate": [0.1, 1e-3], "names": [["a", "b c"]]}
    lines = sweep.commands(toy, values, root)
    assert len(lines) == 5
    plan = parameters.read(toy)
    read = []
    for line in lines:
        words = shlex.split(line)
        assert words[:3] == ["astkit", "run", str(toy)]
        assert words[-2:] == ["--runs", str(root)]
        options = parameters.assignments(words[4:-2:2])
        read.append({name: plan.from_text(name, text) for name, text in options.items()})
    expected = itertools.product(["it's a", "0..3", "$HOME"], [0.1, 1e-3])
    assert (
        read == [{"mode": mode, "rate": rate, "names": ["a", "b c"]} for mode, rate in expected][1:]
    )
    assert sweep.commands(toy, {"seed": [1]}, root, threads=2)[0].endswith(" --threads 2")


def test_a_table_shows_what_varies():
    rows = [{"rate": rate, "seed": 1} for rate in RATES]
    outcomes = [
        Outcome(rows[0], "complete", 1.5),
        Outcome(rows[1], "failed", 2.5, "ValueError: no"),
        Outcome(rows[2], "busy"),
    ]
    frame = sweep.table(outcomes)
    assert list(frame.columns) == ["rate", "status", "seconds", "error"]
    assert frame["rate"].tolist() == RATES
    assert frame["status"].tolist() == ["complete", "failed", "busy"]
    assert frame["seconds"].dropna().tolist() == [1.5, 2.5]
    assert frame["error"].tolist() == ["", "ValueError: no", ""]


@pytest.mark.full
def test_an_interrupted_sweep_ends_its_processes_and_can_be_resumed(tmp_path):
    up, root = tmp_path / "up", tmp_path / "runs"
    wait = f"from pathlib import Path\nimport time\nif seed:\n    Path({str(up)!r}).touch()\n"
    source, lines = sweeping.write(tmp_path / "n.ipynb", wait + "    time.sleep(60)"), []

    def interrupt():
        while not up.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        sweep.run(source, {"seed": [0, 1]}, root=root, announce=lines.append)
    assert lines[1].startswith("1/2  complete  seed=0")
    found = {record.config["seed"]: record for record in map(Record, root.glob("*_n_*"))}
    assert [found[seed].status for seed in (0, 1)] == ["complete", "incomplete"]
    for record in found.values():  # no process holds them any more
        with FileLock(record.folder / ".lock", timeout=0):
            pass


def started(log):
    """How often each combination was begun, by the log that the notebook itself writes."""
    rows = (line.split() for line in log.read_text().splitlines())
    return collections.Counter((float(rate), int(seed)) for rate, seed, _ in rows)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rates", "seeds", "wait_for"), [([0.05, 0.2], 2, 1), (RATES, 4, 4)], ids=["4", "12"]
)
def test_runs_one_failing_one_killed_and_an_interrupt(toy, root, tmp_path, rates, seeds, wait_for):
    log, output, last = tmp_path / "log", tmp_path / "output", seeds - 1
    count, bad = len(rates) * seeds, (0.2, last)
    options = [f"rate={','.join(map(str, rates))}", f"seed=0..{last}", f"log={log}"]
    options += [f"fails=[0.2,{last}]", "dies=[0.05,1]"]
    command = [sys.executable, "-m", "astkit", "sweep", str(toy), "--jobs", "2"]
    command += [word for option in options for word in ("-p", option)] + ["--runs", str(root)]

    with output.open("w") as file:
        first = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        end = time.monotonic() + 300
        while not re.search(rf"^{wait_for}/{count}  ", output.read_text(), re.MULTILINE):
            assert time.monotonic() < end
            assert first.poll() is None, output.read_text()
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == 130
    assert "interrupted; started again, it resumes" in output.read_text()
    assert "Traceback" not in output.read_text()
    records = [Record(path) for path in root.iterdir() if path.is_dir()]
    for record in records:  # nobody works on any of them any more
        with FileLock(record.folder / ".lock", timeout=0):
            pass
    complete = {
        (record.config["parameters"]["rate"], record.config["seed"])
        for record in records
        if record.status == "complete"
    }
    assert len(complete) < count - 1
    assert len(records) <= count

    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1, second.stderr
    assert f"{count} runs, {len(complete)} of them already complete" in second.stdout
    head = re.search(r"^ *rate +seed", second.stdout, re.MULTILINE)
    table = second.stdout[head.start() :].strip().splitlines()
    assert table[0].split() == ["rate", "seed", "status", "seconds", "error"]
    ends = {tuple(map(float, line.split()[:2])): line for line in table[1 : count + 1]}
    assert ends[bad].endswith(f"ValueError: seed {last} is unlucky in cell [3]")
    statuses = {
        (record.config["parameters"]["rate"], record.config["seed"]): record.status
        for record in (Record(path) for path in root.iterdir() if path.is_dir())
    }
    assert set(statuses) == set(itertools.product(rates, range(seeds)))
    # a kernel that is killed in the first sweep is made up for in the second, and else in a third
    allowed = {bad} if log.read_text().count("0.05 1 ") > 1 else {bad, (0.05, 1)}
    assert {key for key, status in statuses.items() if status != "complete"} == allowed
    begun = started(log)
    assert {begun[key] for key in complete} <= {1}
    assert begun.total() <= count + 1 + 1 + 2  # killed, failed, and the two that were interrupted
