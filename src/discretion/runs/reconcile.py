"""A run in the server's ledger beside the same run in the guards' ledgers, and why they differ.

The server's ledger charges a round to every client that it may ask. A guard charges every round of a run that
it joined and that its budget allows, whether it was asked or not, so what it has charged when the run is over
does not depend on coins. While the run is open for a guard, its last round on record is the last one that it
was asked in: where coins are secret, that is not shown.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from discretion.clients.declared import Stated, ask_for_statements
from discretion.clients.transport import Transport
from discretion.errors import InputError, LedgerError, UnverifiedError
from discretion.files import read_text, write_private, write_safely
from discretion.jsonfile import Record, dump, parse
from discretion.ledger.lifetime import read_lifetime
from discretion.ledger.statement import SignedStatement, Statement
from discretion.runs.elsewhere import exchange_of
from discretion.runs.preflight import PATIENCE
from discretion.runs.read import NUMBER, Run

AHEAD = (
    "it is ahead: an answer was lost before the server had it on record, the server's ledger was restored "
    "from an older copy, or the client's owner charged a loss (--recover)"
)
SAME = 1e-9  # relative difference of epsilons that are equal


class StatementRecord(Record):
    client: str
    signed: SignedStatement | None
    refused: str
    forged: str


class Statements(Record):
    """statements.json: the last statements that guards gave on the run."""

    run: str
    clients: list[StatementRecord]


@dataclass(frozen=True)
class Compared:
    """One client in both ledgers: epsilon of this run alone."""

    client: str
    server: float
    guard: float | None  # None: not stated, or not to be shown
    by_operator: float | None  # epsilon of all runs of this operator, by the guard's ledger
    life: float | None  # epsilon over all of the client's runs; None: its policy does not tell
    why: str
    stated: bool
    never_joined: bool = False  # by its own statement: it refused to, or was away
    wrong: bool = False  # the guard charged more than the server knows of, or its statement does not count


def collect(run: Run, transport: Transport | None = None) -> None:
    """Ask all guards for statements on a run, and keep them in its folder, for its owner only."""
    if run.config.clients.where == "here":
        raise InputError(
            f"the clients of {run.folder} are in this process: there is one ledger, and nobody to ask"
        )
    exchange = exchange_of(run, transport)
    patience = min(PATIENCE, exchange.timeout)
    names = run.population.client
    found = ask_for_statements(exchange, run.about.id, run.plan.digest(), names, patience)
    clients = [StatementRecord(**vars(each)) for each in found]
    content = dump(Statements(run=run.about.id, clients=clients).model_dump()).encode()
    path = run.files.statements
    if not path.exists():
        write_private(path, content)  # it may tell when a client was last asked
    write_safely(path, content)


def compared(run: Run) -> list[Compared]:
    """Return every client by the server's ledger and by the statement in the run's folder."""
    said = parse(read_text(run.files.statements), Statements, run.files.statements.name)
    if said.run != run.about.id:
        raise InputError(f"{run.files.statements} is on another run: move it away, and ask again")
    server = _by_server(run)
    stated = (Stated(each.client, each.signed, each.refused, each.forged) for each in said.clients)
    return [_compared(run, each, server.get(each.client, 0.0)) for each in stated]


def require_reconciled(rows: Iterable[Compared]) -> None:
    """Raise where a guard charged more than the server knows of, or where not every guard stated anything."""
    rows = list(rows)
    if wrong := [row for row in rows if row.wrong]:
        raise LedgerError(f"{len(wrong)} of {len(rows)} clients, first {wrong[0].client}: {wrong[0].why}")
    if silent := [row.client for row in rows if not row.stated]:
        raise UnverifiedError(
            f"{len(silent)} of {len(rows)} guards stated nothing, first that of {silent[0]}: what they have "
            "charged is unknown. Ask again when they can be reached."
        )


def _by_server(run: Run) -> dict[str, float]:
    """Return the epsilon that the server's ledger has charged each client for this run alone."""
    path = run.files.ledger(run.config)
    if not path.exists():
        return {}
    life = read_lifetime(path)
    for cost in life.runs:
        if cost.run.id == run.about.id:
            return dict(zip(life.population.client, cost.spent.tolist(), strict=True))
    return {}


def _compared(run: Run, stated: Stated, server: float) -> Compared:
    if stated.signed is None:
        why = stated.forged or stated.refused and f"it states nothing: {stated.refused}"
        return Compared(
            stated.client,
            server,
            None,
            None,
            None,
            why or "it did not answer",
            False,
            wrong=bool(stated.forged),
        )
    its = stated.signed.statement
    hidden = run.secret and bool(its.plan) and not its.closed
    ahead = its.rounds - its.refused > _rounds(run, its.client)
    why = AHEAD if ahead else _why(run, its, server, hidden)
    guard = None if hidden else its.spent
    never = not its.plan and not ahead
    return Compared(its.client, server, guard, its.by_operator, its.life, why, True, never, wrong=ahead)


def _rounds(run: Run, client: str) -> int:
    """Return how many rounds the server's ledger has charged a client."""
    known = run.ledger
    return known.reserved - int(known.refusals[run.population.client.index(client)]) if known else 0


def _why(run: Run, its: Statement, server: float, hidden: bool) -> str:
    """Return in one sentence why two ledgers differ, or that they do not."""
    refused = run.refusals.get(its.client, (0, ""))[1]
    if run.secret:
        refused = NUMBER.sub("…", refused)
    if not its.plan and refused:
        return f"it refused to join, and charged nothing: {refused}"
    if not its.plan:
        return "it never joined, and charged nothing: it was away, or no round has begun"
    if hidden:
        return "the run is open there, and coins are secret: what is on record tells when it was last asked"
    if math.isclose(its.spent, server, rel_tol=SAME):
        return "both say the same"
    if its.delta != float(run.population.delta[run.population.client.index(its.client)]):
        return f"it counts at its own delta, {its.delta:g}"
    if its.refused or refused:
        because = f": {refused}" if refused else ""
        return f"it refused, and charges only what it answered or could have been asked for{because}"
    return "it was away at the end: it charges the rest when it is told that the run is over"
