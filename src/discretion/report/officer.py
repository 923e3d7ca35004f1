"""Content of the data-protection officer's tab: promises, limits, and how to verify them."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discretion.accounting import Certificate
from discretion.audit import statements, verdicts
from discretion.audit.attack import read_audit
from discretion.audit.enclosed import EnclosedRun, answering, place_of
from discretion.files import sha256
from discretion.plan.plan import ADVERSARIES, Adversary
from discretion.report import numbers, published
from discretion.report.run_group import VERDICTS, BudgetClass, Group
from discretion.runs.read import Run

READERS = {name: statements.OBSERVERS[name].capitalize() for name in ADVERSARIES}
FEW_CLASSES = 4  # are listed one by one
MOST_REFUSALS = 20  # are listed
MOST_READABLE = 100.0  # epsilon whose exponential is still worth writing down


ABOUT = ("project", "purpose", "operator", "contact")
NOT_STATED = "not stated"
TIERS = published.TIERS


@dataclass(frozen=True)
class Mark:
    """A row of the scale of epsilons: a published one, or that of a budget class of this report."""

    name: str
    unit: str
    source: str
    epsilon: tuple[float, ...]  # one, or the smallest and the largest
    delta: str
    own: bool

    @property
    def shown(self) -> str:
        return " to ".join(numbers.spent(value) if self.own else f"{value:g}" for value in self.epsilon)

    @property
    def ends(self) -> tuple[float, float]:
        """Where the mark begins and ends, in per cent of the scale."""
        return 100 * published.place(self.epsilon[0]), 100 * published.place(self.epsilon[-1])


def mark(part: Group) -> tuple[str, str]:
    """Return kind and words of a method's verdict; what a simulation kept is no reason to rely on it."""
    kind, words = VERDICTS[part.verdict]
    simulated = any(run.simulated for run in part.runs)
    return ("plain", f"simulation, {words}") if simulated and kind == "good" else (kind, words)


def decided(part: Group) -> tuple[str, str]:
    """Return the sentence that decides on a method's runs: its first clause, and the rest."""
    first, *others, _ = verdicts.decided(part.runs)
    others.append(answering(part.runs))
    return first, "".join(f"; {clause}" for clause in others) + "."


def about(runs: Sequence[Run]) -> dict[str, str]:
    """Return project, purpose, operator and contact of the runs, by name."""
    stated = {name: dict.fromkeys(getattr(run.config.about, name) for run in runs) for name in ABOUT}
    return {name: "; ".join(text or NOT_STATED for text in texts) for name, texts in stated.items()}


def scale(groups: Sequence[Group]) -> list[Mark]:
    """Return published epsilons and those of each method's strictest and loosest budget class, in order."""
    found = [Mark(p.who, p.unit, p.source, p.epsilon, p.delta, False) for p in published.PUBLISHED]
    for part in groups:
        classes = [mine for mine in part.classes if mine.finite and mine.spent and not mine.contradicted]
        if part.verdict in ("none", "broken") or not classes:
            continue
        unit = statements.UNITS[part.first.certificate.unit]
        for mine in {classes[0].name: classes[0], classes[-1].name: classes[-1]}.values():
            name = f"Here: {mine.name}" if len(groups) == 1 else f"Here: {part.label}, {mine.name}"
            over = f"{unit}, over the whole run" if part.finished else f"{unit}, over the rounds so far"
            found.append(Mark(name, over, "this report", (mine.spent,), delta(part), True))
    return sorted(found, key=lambda mark: mark.epsilon[-1])


def least_kept(part: Group) -> str:
    """Return the promise of a method, as the run that keeps least of it has it."""
    return verdicts.protection(max(part.runs, key=verdicts.least_kept))


def delta(part: Group) -> str:
    return numbers.power(max(float(run.certificate.delta.max()) for run in part.runs))


def left(mine: BudgetClass) -> str:
    return numbers.budget(mine.left, 3) if mine.left else "nothing"


def odds(epsilon: float) -> str:
    """Return the odds of a guess at worst, rounded up."""
    sure = 1 / (1 + math.exp(-min(epsilon, MOST_READABLE)))
    return "certain" if sure > 0.9999 else f"{math.ceil(1000 * sure) / 10:.1f} %"


def against(runs: Sequence[Run], who: Adversary) -> str:
    return " or ".join(dict.fromkeys(statements.against(run.certificate)[who] for run in runs))


def by_certificate(groups: Sequence[Group], words: Callable[[Certificate], str]) -> dict[str, str]:
    """Return what is true of methods, each sentence with the methods that it is true of."""
    found: dict[str, list[str]] = {}
    for part in groups:
        found.setdefault(words(part.first.certificate), []).append(part.label)
    return {told: numbers.listing(names) for told, names in found.items()}


def unit(certificate: Certificate) -> str:
    return statements.protected(certificate.unit, certificate.adjacency)


def protected(part: Group, who: Adversary) -> tuple[str, str, list[str]] | None:
    """Return the largest epsilon, whom it holds against, and epsilons by class; None where it is infinite."""
    values = [mine.against[who] for mine in part.classes]
    if all(math.isinf(value) for value in values):
        return None
    observer = statements.observer(part.first.certificate, who)
    whom = "" if observer == statements.OBSERVERS[who] else f" against {observer}"
    if len(set(values)) == 1:
        apiece = ["the same for every client"]
    elif len(values) > FEW_CLASSES:
        apiece = [f"the strictest class {numbers.spent(values[0])}"]
    else:
        apiece = [f"class {mine.name}: {numbers.spent(mine.against[who])}" for mine in part.classes]
    return numbers.spent(max(values)), whom, apiece


def attacked(runs: Sequence[Run]) -> list[str]:
    """Return what audits of the runs show of each budget class, against the strongest promised adversary."""
    said = []
    for run in runs:
        if (found := read_audit(run)) is not None:
            names, who = run.population.classes()[0], run.certificate.promise
            told = {name: statements.attacked(found, name, who) for name in names}
            said += [f"{run.name}, {name}: {sentence}" for name, sentence in told.items() if sentence]
    return said


def factors(runs: Sequence[Run]) -> str:
    """Return the factor that the smallest and the largest budget allow; nothing where all data are public."""
    everyone = np.concatenate([run.population.epsilon for run in runs])
    budgets = everyone[np.isfinite(everyone)]
    ends = dict.fromkeys((float(budgets.min()), float(budgets.max()))) if len(budgets) else ()
    return numbers.listing(f"{_factor(value)} for {numbers.budget(value)}" for value in ends)


def _factor(epsilon: float) -> str:
    if epsilon > MOST_READABLE:
        return "beyond any use"
    factor = math.exp(epsilon)
    return numbers.spent(factor, 3) if factor < 1000 else f"about {numbers.power(factor)}"


def limits(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return what is not promised: each limit's heading and the sentences on it."""
    items = statements.unpromised(runs)
    items += [(f"Who was there in {run.name}.", run.answered) for run in runs if run.turnout]
    refusing = [sentence for run in runs for sentence in _refusing(run)]
    if refusing:
        more = " …" if len(refusing) > MOST_REFUSALS else ""
        each = "; ".join(refusing[:MOST_REFUSALS])
        said = f"Their guards said no, and the run went on without them: {each}{more}."
        items.append(("Clients refused.", said))
    return items


def _refusing(run: Run) -> list[str]:
    """Return whose guards refused, since when, and why; where coins are secret only how many.

    A client is asked, and can refuse, only in rounds for which its coin came up.
    """
    if run.secret:
        reasons = run.why_refused(why for _, why in run.refusals.values())
        return [f"{numbers.count(count, 'client')} in {run.name}: {why}" for why, count in reasons]
    return [
        f"{client} in {run.name} from round {round_}: {why}"
        for client, (round_, why) in sorted(run.refusals.items())
    ]


def verifiable(runs: Sequence[Run], out: Path) -> tuple[str, str]:
    """Return the commands that verify runs, and the digests of their files, for the folder of `out`."""
    places = [place_of(run, out) for run in runs]
    commands = "\n".join(f"discretion verify {shlex.quote(place)}" for place in places)
    digests = "\n".join(  # of the files that never change once a run is made
        f"{_digest(run, file)}  {place}/{file.name}"
        for run, place in zip(runs, places, strict=True)
        for file in (run.files.config, run.files.population, run.files.plan, run.files.certificate)
    )
    return commands, digests


def _digest(run: Run, file: Path) -> str:
    return run.enclosed.manifest.get(file.name, "none") if isinstance(run, EnclosedRun) else sha256(file)


def named(out: Path) -> str:
    """Return the report's file name for a command."""
    return shlex.quote(out.name)


def ledger(run: Run) -> str:
    if run.ledger is None:
        return "none that can be read"
    open_ = run.ledger.reserved - run.ledger.committed
    waiting = f", {open_} reserved" if open_ else ""
    return f"{run.ledger.committed} rounds released{waiting}"
