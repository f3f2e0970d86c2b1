"""Each reader takes its value from a report, and gives None where the report has no such entry."""

from __future__ import annotations

from tests.benchmarks import readings

STAMP = {"devices": []}
RATIO = {"median": 2.5, "low": 2.0, "high": 3.0, "n": 7}


def test_a_gpu_is_named():
    assert readings.device({"stamp": {"devices": ["NVIDIA H100"]}}) == "NVIDIA H100"
    assert readings.device({"stamp": STAMP}) == "CPU"


def test_decisions_are_compared_seed_by_seed():
    def run(arm, seed, trained):
        return {"arm": arm, "seed": seed, "samples_trained": trained}

    by_batch = "sample by sample, per batch"
    runs = [run(readings.GATE, 0, 10), run(readings.GATE, 1, 20)]
    runs += [run(by_batch, 0, 20), run(by_batch, 1, 20)]
    runs += [run(readings.BY_SAMPLE, 0, 7), run(readings.BY_SAMPLE, 1, 8)]
    found = readings.same_decisions({"results": runs})
    assert found is not None
    assert found.text.startswith("as many trained in 1 of 2 runs with a step a batch, 0 with")
    steered = [{**each, "steered": True} for each in runs]
    assert readings.same_decisions({"results": steered}) is None


def test_a_lattice_is_read_from_its_ratios():
    seconds = {"loop": {"loop": [8.0, 10.0, 12.0], "at once": [0.1, 0.2, 0.1]}}
    size = {"width": 3, "height": 4, "depth": 5}
    ratios = {"loop / at once": RATIO}
    report = {
        "stamp": STAMP,
        "at_once": {"config": size, "batch": 20, "seconds": seconds, "ratios": ratios},
        "early_stop": {"ratios": {"all steps / early stop": RATIO}, "surface_error": 0.0026},
    }
    over = readings.ratio("at_once", "loop / at once", "over a loop", report)
    assert over == ("2.5 x [2, 3] over a loop, CPU", 7)
    assert readings.loop_seconds(report) == ("10 s, 20 samples, 3x4x5, CPU", 3)
    assert readings.samples_a_second(report) == ("2 to 200, CPU", 3)
    stopped = readings.stopping(report)
    assert stopped == ("2.5 x [2, 3] with the surface off by 0.26%, CPU", 7)


def test_the_four_ways_are_read_at_their_batch():
    entry = {"batch": 2, "ratios": {"batch": RATIO}, "difference": {"batch": 3e-14, "loop": 0.0}}
    report = {"stamp": STAMP, "life": [entry], "checkerboard": [entry], "updates_apart": 2e-12}
    assert readings.at_batch(2, "life", report) == ("2.5 x [2, 3], life, CPU", 7)
    assert readings.at_batch(5, "life", report) is None
    assert readings.apart(report) == ("3e-14, gradients too, of the largest", 2)
    assert readings.logits_apart(report) == ("2e-12 after 5 updates", 1)


def test_what_a_report_does_not_hold_is_none():
    report = {"stamp": STAMP}
    for read in (readings.loop_seconds, readings.samples_a_second, readings.stopping):
        assert read(report) is None
    assert readings.apart(report) is readings.logits_apart(report) is None
    assert readings.ratio("words", "a / b", "", report) is None
