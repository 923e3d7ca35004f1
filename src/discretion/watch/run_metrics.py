"""Metrics of one run at the server: rounds, answers, refusals by reason, and epsilon by budget class."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from discretion.clients.prometheus import Metric, by_label, counter, gauge
from discretion.clients.remote import Heard
from discretion.errors import DiscretionError
from discretion.guard.refusal_reasons import REASONS, code_of
from discretion.ledger.lifetime import read_lifetime
from discretion.ledger.reader import DAMAGED, LedgerReader
from discretion.report import budget_tables
from discretion.report.budget_tables import Source
from discretion.runs.history import read_answers
from discretion.runs.read import Run
from discretion.watch.follow import Seen, Status

PARTS = 10  # of a run whose coins are secret, at whose ends its numbers change


@dataclass(frozen=True)
class Told:
    """The rounds that metrics are of."""

    done: int
    charged: int


def told(seen: Seen, run: Run) -> Told:
    """Return the rounds to be told: all of them or, while coins are secret, whole tenths of the plan.

    What is charged is rounded up, so that it is never too small.
    """
    rounds = run.plan.rounds
    if not run.secret:
        return Told(seen.done, seen.counted)
    part = max(1, rounds // PARTS)
    done = rounds if seen.done == rounds else seen.done - seen.done % part
    return Told(done, min(-(-seen.counted // part) * part, rounds))


class RunMetrics:
    """Collects the metrics of a run as it was last seen.

    Guarantees:
        No client, run, operator or address is named, and labels have few values that are fixed beforehand.
        Where coins are secret, how many clients were asked and answered, and how long a round takes, are not
        told, and all other numbers change at whole tenths of the plan only: when one changes tells no coin of
        a single round, unless a tenth of the plan is one.
    """

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        self._left: tuple[object, list[Metric]] = (None, [])  # of a ledger as it was at some round

    def collect(self) -> list[Metric]:
        seen = self._look()
        found = [_status(seen.status)]
        if seen.run is None:
            return found
        run, now = seen.run, told(seen, seen.run)
        found += [
            gauge("discretion_run_rounds_planned", "Rounds of the plan.", run.plan.rounds),
            gauge("discretion_run_rounds_done", "Rounds that are done.", now.done),
            gauge("discretion_run_rounds_charged", "Rounds that budgets are charged for.", now.charged),
        ]
        if seen.pace is not None:
            found.append(gauge("discretion_run_seconds_a_round", "Mean time of the last rounds.", seen.pace))
        found += [*_spent(run, now), *self._ledger(seen, run, now)]
        return [*found, *_refused(run, now), *_heard(run, now)]

    def _ledger(self, seen: Seen, run: Run, now: Told) -> list[Metric]:
        """Return what is left over all runs; while coins are secret, read at the ends of tenths only."""
        key = (run.about.id, now) if run.secret and seen.status == "running" else object()
        if key != self._left[0]:
            self._left = key, _left(run)
        return self._left[1]


def _status(status: Status) -> Metric:
    values = {each: int(each == status) for each in get_args(Status)}
    return by_label("discretion_run_status", "gauge", "1 for the state of the run.", "status", values)


def _spent(run: Run, now: Told) -> list[Metric]:
    """Return epsilon spent in this run, of the client in each budget class that uses most of its budget."""
    if run.broken:
        return []
    spent = dict(zip(run.classes[0], run.certificate.spending.after(now.charged).tolist(), strict=True))
    help = "Epsilon spent in this run, the most of any client."
    return [by_label("discretion_run_epsilon_spent", "gauge", help, "budget_class", spent)]


def _left(run: Run) -> list[Metric]:
    """Return epsilon that no run on the ledger has spent or may still spend, the least of each class."""
    try:
        source = Source("", read_lifetime(run.files.ledger(run.config)))
    except DiscretionError:
        return []  # not there yet, or not to be read now
    left = {row.name: row.left for row in budget_tables.classes(source)}
    help = "Epsilon left over all runs of the ledger, neither spent nor promised: the least of any client."
    return [by_label("discretion_ledger_epsilon_left", "gauge", help, "budget_class", left)]


def _refused(run: Run, now: Told) -> list[Metric]:
    """Return how often clients' accounts in the server's ledger refused a round."""
    try:
        with LedgerReader(run.files.ledger(run.config), wait=0.0) as ledger:
            rounds = ledger.rounds(run.about.id)
    except DAMAGED:
        return []
    count = sum(len(entry.refused) for entry in rounds if entry.round <= now.done)
    help = "Rounds that single clients' budgets did not allow, by the server's ledger."
    return [counter("discretion_run_account_refusals_total", help, count)]


def _heard(run: Run, now: Told) -> list[Metric]:
    """Return what came of orders to clients elsewhere; nothing where all clients are here."""
    if not run.files.answers.exists():
        return []
    try:
        heard = [each for each in read_answers(run.files.answers) if each.round <= now.done]
    except (OSError, ValueError):
        return []
    codes = Counter(code_of(reason) for each in heard for reason in each.refused.values())
    refusals, orders = {code: codes[code] for code in REASONS}, _orders(run, heard)
    help = "Refusals by guards, a client at most once a round."
    return [
        by_label("discretion_run_refusals_total", "counter", help, "reason", refusals),
        by_label("discretion_run_orders_total", "counter", "Orders to clients.", "outcome", orders),
    ]


def _orders(run: Run, heard: list[Heard]) -> dict[str, float]:
    lost: dict[str, float] = {"lost": sum(each.lost for each in heard)}
    if run.secret:
        return lost
    return {"answered": sum(each.answered for each in heard), **lost}
