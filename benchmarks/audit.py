"""Lower bounds on epsilon that the audit shows of every method and of training, beside what is certified.

python benchmarks/audit.py [METHOD …] prints the first table of docs/audit.md, --train the second. Fails where
anything is contradicted, or a bound of the first table is below half of an epsilon of 2 or more.
"""

import sys
import time
from collections.abc import Iterator

from discretion.accounting import certify
from discretion.audit.attack import Audit, audit, playable
from discretion.audit.statements import at_least
from discretion.audit.training_canaries import audit_training
from discretion.methods import METHODS, find
from discretion.plan.population import Population
from discretion.runs import config
from discretion.runs.build import load_data, plan_of, server_of
from discretion.runs.prepare import build_task, first_model
from discretion.training.loop import State

PEOPLE = Population.of([1.0] * 20 + [3.0] * 20 + [6.0] * 20, 1e-5, 100)
SETTINGS = {"rounds": 20, "rate": 0.2, "clip": 1.0}
TRAINING = {
    "population": {"clients": 800, "budgets": "groups:1,3,8,20"},
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "plan": {"method": "idp_fedavg", "rounds": 20, "rate": 0.2, "clip": 0.5},
}
RUNS = (1, 10, 40)  # training runs that are looked at together


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
        check(name, found)
        bounds = [f"{at_least(each.at_least)} of {each.certified:.2f}" for each in found.shown]
        noise = [each.noise or 0.0 for each in found.shown]
        said = f"{min(noise):.3f} to {max(noise):.3f}"
        cells = [f"`{name}`", who, *bounds, said, f"{found.games:,}", f"{took:.0f}"]
        yield "| " + " | ".join(cells) + " |"


def check(name: str, found: Audit) -> None:
    """Raise where the audit of correct code contradicts it, or has too little power."""
    weak = [each.name for each in found.shown if each.certified >= 2 and each.at_least < each.certified / 2]
    if weak or found.contradicted:
        raise SystemExit(f"{name}: too weak for {weak}, contradicted: {found.contradictions}")


def training_lines() -> Iterator[str]:
    """Yield the rows of a table in Markdown: bounds from training runs, by class."""
    settings = config.make(TRAINING)
    task = build_task(settings, load_data(settings))
    plan = plan_of(settings, task.population)
    certificate = certify(plan, task.population)
    yield "| runs | class | canaries | certified | at least | if they interfere | of any kind | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    for runs in RUNS:
        start = time.perf_counter()
        found = audit_training(
            plan,
            task.population,
            certificate,
            task.clients,
            State.start(first_model(settings, task.clients)),
            run="audit",
            seed=0,
            server=server_of(settings),
            runs=runs,
        )
        took = time.perf_counter() - start
        for each in found:
            if each.contradicted:
                raise SystemExit(f"{each.name}: contradicted")
            bounds = map(at_least, (each.at_least, each.interfering, each.any_mechanism))
            cells = [
                str(runs),
                each.name,
                f"{each.canaries:,}",
                f"{each.certified:.2f}",
                *bounds,
                f"{took:.0f}",
            ]
            yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    asked = sys.argv[1:]
    for line in training_lines() if asked == ["--train"] else lines(asked or list(METHODS)):
        print(line, flush=True)
