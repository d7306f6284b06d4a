"""Whole runs release, charge and save what they did when their golden transcript was written.

The transcripts hold what does not depend on the machine: names, order, shapes, sensitivities and
noise of all releases, events, prices, charges and the files of the folder. A change that is meant
is written by `python benchmarks/compare_trees.py golden --out tests/golden/releases.json`, and its
diff is read line by line.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GOLDEN = json.loads((ROOT / "tests" / "golden" / "releases.json").read_text(encoding="utf-8"))

# Where a calibration ends depends on the machine, in the ninth digit.
TOLERANCE = 1e-6


def _tool():
    place = ROOT / "benchmarks" / "compare_trees.py"
    specification = importlib.util.spec_from_file_location("compare_trees", place)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["compare_trees"] = module
    specification.loader.exec_module(module)
    return module


TOOL = _tool()
CASES = TOOL.cases()


def test_every_case_has_a_golden_transcript_and_every_transcript_a_case():
    assert sorted(case.name for case in CASES) == sorted(GOLDEN)


@pytest.mark.parametrize(
    "case",
    # One case in four by default, of every method.
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] * bool(place % 4))
        for place, case in enumerate(CASES)
    ],
)
def test_a_run_releases_and_charges_what_its_golden_transcript_says(case):
    found = json.loads(json.dumps(TOOL.portable(TOOL.record(case)), default=str))
    assert TOOL.differences(GOLDEN[case.name], found, tolerance=TOLERANCE) == []


def test_a_transcript_with_other_noise_differs():
    case = next(case for case in CASES if case.method == "GAP")
    changed = json.loads(json.dumps(GOLDEN[case.name]))
    changed["releases"][1]["scale"] *= 1 + 1e-5
    found = TOOL.differences(GOLDEN[case.name], changed, tolerance=TOLERANCE)
    assert [line.partition(":")[0] for line in found] == ["releases[1].scale"]
