"""Signed receipt for one client: its budget, the cost of each round, what it was promised.

Signed are the bytes of "discretion receipt 3" and a line feed, then the receipt as JSON with sorted keys,
without spaces and in ASCII, infinities as "inf". The signature is Ed25519, by an operator's key.
"""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from discretion.accounting import Pld
from discretion.arrays import Floats
from discretion.audit import statements
from discretion.audit.attack import read_audit
from discretion.clients.messages import public_bytes
from discretion.errors import InputError, LedgerError, MessageError, PlanError, nearest
from discretion.files import sha256
from discretion.jsonfile import Record, dump, parse
from discretion.ledger.heads import last_head
from discretion.ledger.keys import Head
from discretion.ledger.reader import LedgerReader
from discretion.methods import METHODS
from discretion.plan.plan import Adversary, Randomness
from discretion.plan.steps import Steps
from discretion.runs.read import Run, read_run
from discretion.runs.reconcile import compared

CONTEXT = b"discretion receipt 3\n"  # so that a signature made for something else is none of a receipt
# what does not change while a run goes on
LASTING = (
    *("run", "method", "delta", "records", "unit", "adjacency", "promise", "planned", "against"),
    *("planned_rounds", "digests"),
)
HELD = r'<script type="application/json" id="receipt">(.*?)</script>'  # in a page
MOST_POINTS = 400  # of the spending, beyond which rounds are left out


class Digests(Record):
    """SHA-256 digests: of plan and population, as in the certificate, and of two files."""

    plan: str
    population: str
    certificate_file: str
    config_file: str


class Limit(Record):
    what: str
    why: str


class Attacks(Record):
    """What attacks showed of the client's budget class: no promise."""

    made: str
    contradicted: bool
    said: str


class Receipt(Record):
    """Content of a receipt. `spending` is the client's epsilon after each of `rounds`."""

    format: Literal["discretion-receipt/3"]
    made: str
    client: str
    run: str
    data: str
    method: str
    about: dict[str, str]  # project, purpose, operator and contact, as the settings state them
    epsilon: float  # that the client allows now
    allowed: float  # that it allowed when it was last charged, plus later top-ups
    delta: float
    records: int
    unit: str
    adjacency: str
    promise: Adversary
    accountant: str
    taking_part: str  # what decides in which rounds, and what that means for their cost
    rule: str
    randomness: Randomness
    noise: str  # how it is drawn, in sentences
    planned_rounds: int
    finished: bool
    planned: float  # epsilon of the whole plan
    against: dict[Adversary, float]  # of the whole plan, by who is looking
    rounds: list[int]
    spending: list[float]
    refused: list[int]  # rounds that the client's account refused: they cost nothing
    guard_refused: str  # that the client's guard refused or never joined, in sentences; empty: not known
    spent: float  # in this run so far
    other_runs: int  # on the same ledger, with this client
    alone: bool  # whether the ledger is the run's own, and no other run is counted
    life: float  # in all runs on the ledger
    left: float  # of the budget, after all of them
    statement: str
    attacks: Attacks | None  # None where the run was not audited
    not_promised: list[Limit]
    digests: Digests
    guard: Head | None  # of the client's own ledger, as its guard told it, once the run is finished

    @field_validator("made")
    @classmethod
    def _moment(cls, text: str) -> str:
        with suppress(ValueError):
            if datetime.fromisoformat(text).utcoffset() == timedelta(0):
                return text
        raise PydanticCustomError("made", "expected a time in UTC, such as 2026-03-01T09:00:00+00:00")

    @model_validator(mode="after")
    def _one_each(self) -> "Receipt":
        if len(self.rounds) != len(self.spending):
            raise PydanticCustomError("spending", "expected one entry for each of the rounds")
        return self


class Signed(Record):
    receipt: Receipt
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # public
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


@dataclass(frozen=True)
class ReceiptAccount:
    """Ledger account of one client."""

    rule: str
    after: Floats  # (T,) epsilon after each round of the run
    refused: tuple[int, ...]
    others: int
    life: float
    budget: float  # with top-ups and withdrawals
    allowed: float  # when the last round was charged, plus later top-ups


def issue(path: Path, client: str, key: Ed25519PrivateKey) -> Signed:
    """Return the signed receipt of a client for a run, as of now.

    Guarantees:
        Epsilons are of what is on record in the ledger for this client, at its own delta, and never smaller
        than what is spent: rounds that are reserved count. Nothing in it tells in which rounds the client
        took part, or names another client.
    """
    run = read_run(path)
    receipt = _receipt(run, client, _account(run, client))
    signature = key.sign(CONTEXT + canonical(receipt)).hex()
    return Signed(receipt=receipt, key=public_bytes(key).hex(), signature=signature)


def canonical(receipt: Receipt) -> bytes:
    """Return the bytes that are signed after the context."""
    plain = json.loads(dump(receipt.model_dump()))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def _receipt(run: Run, client: str, account: ReceiptAccount) -> Receipt:
    at, certificate = run.population.client.index(client), run.certificate
    done = len(account.after)
    shown = np.linspace(0, done - 1, min(done, MOST_POINTS)).round().astype(int)  # with the last, from 0
    return Receipt(
        format="discretion-receipt/3",
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        client=client,
        run=run.about.id,
        data=run.about.data,
        method=METHODS[run.plan.method].title if run.plan.method in METHODS else run.plan.method,
        about=run.config.about.model_dump(),
        epsilon=account.budget,
        allowed=account.allowed,
        delta=float(run.population.delta[at]),
        records=int(run.population.size[at]),
        unit=certificate.unit,
        adjacency=certificate.adjacency,
        promise=certificate.promise,
        accountant=Pld().name,
        taking_part=statements.taking_part(run.treatment.coming),
        rule=account.rule,
        randomness=certificate.randomness,
        noise=statements.noise(certificate),
        planned_rounds=run.plan.rounds,
        finished=run.finished,
        planned=float(certificate.spent[at]),
        against={who: float(values[at]) for who, values in certificate.epsilon.items()},
        rounds=(shown + 1).tolist(),
        spending=account.after[shown].tolist(),
        refused=list(account.refused),
        guard_refused=_guard_refused(run, client),
        spent=float(account.after[-1]) if len(account.after) else 0.0,
        other_runs=account.others,
        alone=run.alone,
        life=account.life,
        left=max(account.budget - account.life, 0.0) if math.isfinite(account.budget) else math.inf,
        statement=statements.protection(certificate)
        + (f" {statements.ADAPTIVE}" if account.rule == "adaptive" else ""),
        attacks=_attacks(run, at),
        not_promised=[Limit(what=what, why=why) for what, why in statements.unpromised([run])],
        digests=Digests(
            plan=run.plan.digest(),
            population=run.population.digest(),
            certificate_file=sha256(run.files.certificate),
            config_file=sha256(run.files.config),
        ),
        # before, every new head would tell that the client took part in between
        guard=_head(run, client) if run.finished else None,
    )


def _head(run: Run, client: str) -> Head | None:
    elsewhere = run.config.clients.where != "here"
    return last_head(run.files.heads(run.config), run.about.id, client) if elsewhere else None


def _guard_refused(run: Run, client: str) -> str:
    """Return that the client's guard refused or never joined, by answers and statements on record.

    Guarantees:
        No round is named. Where coins are secret, a run that goes on tells only of refusals to join.
    """
    open_ = run.secret and not run.finished
    reasons = [heard.refused.get(client, "") for heard in run.answers if not (open_ and heard.asked)]
    why = next(filter(None, reasons), "")
    said = ""
    if why:
        ((why, _),) = run.why_refused([why])
        said = f"The guard of this client refused: {why.rstrip('.')}."
    if run.files.statements.exists():
        (row,) = (row for row in compared(run) if row.client == client)
        if row.never_joined:
            said = f"The guard of this client stated: {row.why.rstrip('.')}."
        elif said and row.guard is not None:
            said += f" It stated that it has charged epsilon of {statements.at_most(row.guard)} for this run."
    if not said:
        return ""
    return (
        f"{said} What is counted here is what the operator’s ledger has charged: the guard’s own ledger may "
        "show less, and it is the one that decides."
    )


def _attacks(run: Run, at: int) -> Attacks | None:
    """Return what attacks showed of the client's budget class, against the strongest promised adversary."""
    names, member = run.population.classes()
    name, found = names[member[at]], read_audit(run)
    said = statements.attacked(found, name, run.certificate.promise) if found else ""
    if found is None or not said:
        return None
    return Attacks(
        made=found.made, contradicted=bool(found.against(name)), said=f"{said} {statements.ATTACKED}"
    )


def _account(run: Run, client: str) -> ReceiptAccount:
    names = run.population.client
    if client not in names:
        raise InputError(f"there is no client {client!r} in {run.folder}.{nearest(client, names)}")
    if run.broken:
        raise PlanError(f"{run.folder}: {run.broken}, so there is nothing to vouch for")
    delta = float(run.population.delta[names.index(client)])
    path = run.files.ledger(run.config)
    if run.ledger is None:
        raise LedgerError(f"there is no ledger {path} that can be read, so nothing can be vouched for")
    with LedgerReader(path) as ledger:
        ledger.check()
        accounts, budgets, rule = ledger.accounts([client]), ledger.budgets(), ledger.rule
        if client not in budgets:
            raise LedgerError(f"client {client} is not in the ledger {path}: restore a copy of it")
        refused = ledger.refused_by(client)
        budget = budgets[client][0] + sum(each.by for each in ledger.changes() if each.client == client)
        known = accounts.about(run.about.id) is not None
        steps = accounts.after_each_round(run.about.id) if known else Steps.none(0)
        total, allowed = accounts.steps(), ledger.charged_under(client)
    found = Pld().epsilon(steps, np.full(steps.rate.shape[1], delta))
    after = np.maximum.accumulate(found)  # an upper bound on later epsilons is one on earlier ones
    life = max(float(Pld().epsilon(total, np.array([delta]))[0]), float(after.max(initial=0.0)))
    mine = tuple(refused.get(run.about.id, []))
    others = len(refused.keys() - {run.about.id})
    return ReceiptAccount(rule, after, mine, others, life, max(budget, 0.0), allowed)


def to_json(signed: Signed) -> str:
    return dump(signed.model_dump())


def read(path: Path, render: Callable[[Signed], str]) -> Signed:
    """Return the receipt in a JSON file, or in a page that `render` made of it.

    Guarantees:
        The file is, in every character, what the record in it is written as: a page shows nothing else than
        it holds, and no reader of the JSON finds other values in it.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise InputError(f"cannot read {path}: {problem}") from None
    page = text.lstrip().startswith("<")
    held = re.search(HELD, text, re.S) if page else None
    try:
        signed = parse(held[1] if held else text, Signed, "receipt")
    except PlanError as problem:
        raise PlanError(f"cannot read {path}: {problem}") from None
    try:
        written = render(signed) if page else to_json(signed)
    except (ValueError, ArithmeticError, LookupError):  # the record says what cannot be
        written = None
    if text != written:
        kind = "page" if page else "file"
        raise MessageError(
            f"the {kind} {path} holds a receipt, but is not what this version of Discretion makes of it: it "
            "was changed, or made by another version. Get the JSON file anew, or use that version."
        )
    return signed


def check(signed: Signed, operator: str = "") -> None:
    """Raise unless the receipt is signed by its key, which must be `operator` if one is given.

    Guarantees:
        Every value of the receipt is signed, and a signature for another purpose is no signature.
    """
    try:
        key, signature = bytes.fromhex(signed.key), bytes.fromhex(signed.signature)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, CONTEXT + canonical(signed.receipt))
    except (InvalidSignature, ValueError):
        raise MessageError("the signature is not of this receipt: something in it was changed") from None
    if operator and operator.lower() != signed.key.lower():
        raise MessageError(
            f"it is signed by another key, {signed.key}, than the one that was asked for, {operator}"
        )


def differences(signed: Signed, path: Path) -> list[str]:
    """Return the entries that the run folder contradicts by now; later rounds are no contradiction.

    Guarantees:
        What is on record stays there: fewer rounds, another cost of one, less spent in all, fewer runs and
        refusals that are gone are differences.
    """
    run, then = read_run(path), signed.receipt
    account = _account(run, then.client)
    now, after = _receipt(run, then.client, account), account.after
    odd = [name for name in LASTING if getattr(then, name) != getattr(now, name)]
    same = all(
        0 < number <= len(after) and math.isclose(after[number - 1], value, rel_tol=1e-9)
        for number, value in zip(then.rounds, then.spending, strict=True)
    )
    erased = {
        "spending": not same,
        "life": now.life < then.life * (1 - 1e-9),
        "other_runs": now.other_runs < then.other_runs,
        "refused": not set(then.refused) <= set(now.refused),
        "finished": then.finished and not now.finished,
    }
    return odd + [name for name, holds in erased.items() if holds]
