"""Whatever call to the file system fails, or is the last: no cost is forgotten, no noise drawn twice.

A resumed run ends as if nothing had happened, or as if it had refused. `make test` tries some points of every
call site, always the same; `make faults` tries all, and `make faults SEED=2` others, where chance decides. A
failure names its point, which FAULT_POINT repeats: FAULT_POINT="guard, 1, 195, power" pytest tests/faults
"""

import os
import shutil
import sys
from collections import Counter

import pytest

from support.fault_plants import PLANTS
from support.fault_scenarios import SCENARIOS
from support.faults import CRASHES, ERRORS, outcomes

CASES = int(os.environ.get("FAULT_CASES", "40"))
SEED = int(os.environ.get("FAULT_SEED", "1"))
POINT = os.environ.get("FAULT_POINT", "")
PARTS = 1 if POINT or CASES < 1000 else 4  # by which several processes share the work

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and shutil.which("cc")), reason="needs Linux and a C compiler"
)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("scenario", [POINT.split(", ")[0]] if POINT else SCENARIOS)
def test_no_fault_forgets_a_cost_or_draws_twice(scenario: str, part: int) -> None:
    found = list(outcomes(scenario, SEED, CASES, f"{part}/{PARTS}", POINT))
    for (kind, ended), count in sorted(Counter((each.kind, each.ended) for each in found).items()):
        print(f"{scenario}, {kind}: {count} {ended or 'FAILED'}")
    assert POINT or PARTS > 1 or {each.kind for each in found} == {*CRASHES, *ERRORS}
    failed = [f"{each.point}\n{each.failed}" for each in found if each.failed]
    assert found and not failed, "\n".join([f"{len(failed)} of {len(found)} points", *failed[:5]])


@pytest.mark.parametrize("name", PLANTS)
def test_mistakes_are_found(name: str) -> None:
    assert any(each.failed for each in outcomes(PLANTS[name].scenario, SEED, 400, plant=name))
