"""Sentences that decide: whether budgets are kept and who answered, and what a verification comes to."""

from collections.abc import Sequence

from discretion.audit import statements
from discretion.audit.attack import contradictions
from discretion.audit.ledger_check import Finding
from discretion.audit.verify import Verification
from discretion.runs.read import Run


def decided(runs: Sequence[Run]) -> list[str]:
    """Return the clauses of one sentence on runs that differ only in the seed.

    They say whether every budget was kept; against whom that holds and who has to be trusted; whether it was
    a simulation; and, last, who answered. Of the first three, the run that keeps least of its promise
    decides.

    Guarantees:
        That budgets were kept is said of a simulation only after that it was one.
    """
    run = max(runs, key=least_kept)
    certificate = run.certificate
    if run.broken:
        clauses = [statements.unproved(run.broken).rstrip(".")]
    elif certificate.promises_nothing:
        clauses = [f"No budget is kept: {statements.NOBODY.lower()}"]
    elif said := contradicted(run):
        over = [_kept(run).replace("Not", "not", 1)] if len(certificate.overspent) else []
        clauses = [said, *over, f"the certificate says that this {statements.holds(certificate)}"]
    elif run.simulated and not len(certificate.overspent):
        kept, simulated = _kept(run), statements.simulation(run)
        clauses = [
            f"{simulated[:1].upper()}{simulated[1:]}",
            f"{kept[:1].lower()}{kept[1:]}",
            f"this {statements.holds(certificate)}",
        ]
        return [*clauses, answering(runs)]
    else:
        clauses = [_kept(run), f"this {statements.holds(certificate)}"]
    return [*clauses, statements.simulation(run), answering(runs)]


def least_kept(run: Run) -> tuple[bool, bool, bool, int]:
    """Return a key that is largest for the run that keeps least of its promise."""
    certificate = run.certificate
    return bool(run.broken), certificate.promises_nothing, bool(contradicted(run)), len(certificate.overspent)


def protection(run: Run) -> str:
    """Return what a run promises, from whom and under which conditions, led by what speaks against it."""
    if run.broken:
        return statements.unproved(run.broken)
    said, promised = contradicted(run), statements.protection(run.certificate)
    return f"{said}. By the certificate: {promised}" if said else promised


def contradicted(run: Run) -> str:
    """Return a clause on the budget classes whose epsilons attacks contradict; empty where they do not."""
    found = contradictions(run)
    names = [run.classes[0][k] for k in found]
    said = list(dict.fromkeys(said for each in found.values() for said in each))
    return statements.contradicted(names, said) if names else ""


def _kept(run: Run) -> str:
    clients, over = len(run.population), len(run.certificate.overspent)
    if over:
        return f"Not every budget is kept: {over:,} of {clients:,} clients overspend"
    if run.ledger is None and run.history.done:
        return "By the plan every budget is kept, but no ledger can be read that has the rounds on record"
    charged = run.ledger.reserved if run.ledger else 0
    others = run.ledger.other_runs if run.ledger else 0
    beside = f" by this run, beside {others:,} more that spend from the same budgets" if others else ""
    alone = f", counted {statements.ALONE}" if run.alone else ""
    if run.finished:
        return f"Every budget was kept{beside}{alone}"
    so_far = _so_far(run.history.done, charged, run.plan.rounds)
    return f"Every budget is kept so far ({so_far}){beside}{alone}"


def _so_far(done: int, charged: int, rounds: int) -> str:
    """Return how many rounds are done and charged: one that was interrupted is charged, and not done."""
    are = "is" if done == 1 else "are"
    more = f", and {charged:,} {'is' if charged == 1 else 'are'} charged" if charged != done else ""
    return f"{done:,} of {rounds:,} rounds {are} done{more}"


def answering(runs: Sequence[Run]) -> str:
    """Return a clause on who answered, over all rounds of all runs.

    Guarantees:
        Where coins are secret, the clause depends on no coin of a client that answers (`turnout.clauses`).
    """
    found = list(dict.fromkeys(map(_answering, runs)))
    if len(found) == 1:
        return found[0]
    return ", ".join(f"in {run.name} {_answering(run)}" for run in runs)


def _answering(run: Run) -> str:
    if run.config.clients.where == "here":
        return "one program played every client, so all answered"
    if not run.answers:
        return "who answered is not on record" if run.history.done else "nobody has been asked yet"
    return "; ".join(run.heard_of)


def verdict(found: Sequence[Verification], place: str) -> tuple[bool | None, str]:
    """Return whether all of it is verified, and one sentence on it; None where something is open.

    `place` is the folder or the page that was verified.
    """
    for findings, lead in ((_records, "contradicted"), (_budgets, "not kept")):
        for each in found:
            if odd := [item for item in findings(each) if item.holds is False]:
                return False, f"Verdict: {lead}. {_where(each, found, place)}: {odd[0].what}: {odd[0].said}."
    open_ = [item.what for each in found for item in (*each.records, *each.budgets) if item.holds is None]
    if open_:
        names = ", ".join(dict.fromkeys(open_))
        return None, f"Verdict: open. Nothing contradicts {place}, but this could not be judged: {names}."
    said = [*(each.stopped for each in found if each.stopped), _verified(found, place)]
    return True, f"Verdict: verified. {' '.join(said)}"


def _verified(found: Sequence[Verification], place: str) -> str:
    first = found[0]
    partial = [each for each in found if each.done < each.rounds]
    told = [_so_far(each.done, each.charged, each.rounds) for each in partial]
    kept = "was kept" if not partial else f"is kept so far ({told[0]})"
    sample = any(each.counted < each.kinds for each in found)
    some = ", of a sample of the clients" if sample else ""
    most = max(each.tolerance for each in found)
    some += f" (the second accountant is pessimistic by up to {most:g})" if most else ""
    alone = f", {statements.ALONE}" if any(each.alone for each in found) else ""
    said = f"The records of {place} fit each other, and every budget {kept}, counted again{some}{alone}."
    if first.elsewhere:
        said += f" By the page alone; what needs the run folder: {', '.join(first.elsewhere)}."
    return said


def _records(found: Verification) -> Sequence[Finding]:
    return found.records


def _budgets(found: Verification) -> Sequence[Finding]:
    return found.budgets


def _where(each: Verification, found: Sequence[Verification], place: str) -> str:
    return place if len(found) == 1 else f"{place}, run {each.name}"
