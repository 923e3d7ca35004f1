"""Lower bounds on epsilon that the audit shows of every method, beside what is certified.

python benchmarks/audit.py [METHOD …] prints the table of docs/audit.md.
"""

import sys
import time
from collections.abc import Iterator

from discretion.accounting import certify
from discretion.audit.attack import audit, playable
from discretion.methods import METHODS, find
from discretion.plan.population import Population

PEOPLE = Population.of([1.0] * 20 + [3.0] * 20 + [6.0] * 20, 1e-5, 100)
SETTINGS = {"rounds": 20, "rate": 0.2, "clip": 1.0}


def lines(names: list[str]) -> Iterator[str]:
    """Yield the rows of a table in Markdown: the strongest promised adversary, by class."""
    yield "| method | against | " + " | ".join(PEOPLE.classes()[0]) + " | noise | games | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in names:
        method = find(name)
        given = {key: value for key, value in SETTINGS.items() if key in method.parameters}
        plan = method.make(PEOPLE, given)
        certificate = certify(plan, PEOPLE)
        who = certificate.promise
        if who not in playable(certificate):
            yield f"| `{name}` | nothing to audit | | | | | | |"
            continue
        start = time.perf_counter()
        found = audit(plan, PEOPLE, certificate, against=(who,))
        took = time.perf_counter() - start
        bounds = [f"{each.at_least:.2f} of {each.certified:.2f}" for each in found.shown]
        noise = [each.noise or 0.0 for each in found.shown]
        said = "; ".join(found.contradictions) or f"{min(noise):.3f} to {max(noise):.3f}"
        cells = [f"`{name}`", who, *bounds, said, f"{found.games:,}", f"{took:.0f}"]
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    for line in lines(sys.argv[1:] or list(METHODS)):
        print(line, flush=True)
