"""HTML page of a receipt, with the signed receipt inside."""

import math
from datetime import datetime

from discretion.audit.receipts import Receipt, Signed, to_json
from discretion.audit.statements import ALONE, OBSERVERS, protected
from discretion.report import numbers, page
from discretion.report.chart import Chart, Series, Style, linear, rounds
from discretion.report.charts import HEADROOM
from discretion.report.officer import ABOUT, NOT_STATED

NAVIGATION = {
    "receipt-of": "Receipt",
    "spending": "Spending",
    "promise": "Promise",
    "attacks": "Attacks",
    "limits": "Limits",
    "verify": "Verify",
}


def render(signed: Signed) -> str:
    """Return the page of a receipt; equal receipts give equal pages."""
    receipt, digests = signed.receipt, signed.receipt.digests
    used, allowed = numbers.spent_of(receipt.life, receipt.epsilon)
    verifiable = {
        "Plan": digests.plan,
        "Clients and budgets": digests.population,
        "certificate.json": digests.certificate_file,
        "config.toml": digests.config_file,
        **({"Head of the guard’s ledger": receipt.guard.hash} if receipt.guard else {}),
        "Operator’s key": signed.key,
        "Signature": signed.signature,
    }
    made = datetime.fromisoformat(receipt.made)
    return page.render(
        "receipt.html",
        f"Receipt for {receipt.client}",
        {name: shown for name, shown in NAVIGATION.items() if name != "attacks" or receipt.attacks},
        anchor="receipt-of",
        marks=_marks(receipt),
        heading=f"Receipt for {receipt.client}",
        lead=_lead(receipt, used, allowed),
        receipt=receipt,
        about={name: receipt.about.get(name) or NOT_STATED for name in ABOUT},
        used=used,
        allowed=allowed,
        share=_share(receipt),
        left=numbers.budget(receipt.left, 3),
        made=f"{made.day} {made:%B %Y, %H:%M} UTC",
        chart=_spending(receipt),
        against=[[OBSERVERS[who].capitalize(), numbers.spent(most)] for who, most in receipt.against.items()],
        protected=protected(receipt.unit, receipt.adjacency),
        digests=verifiable,
        record=to_json(signed),
    )


def _marks(receipt: Receipt) -> list[tuple[str, str]]:
    marks = [("good", "within budget") if receipt.life <= receipt.epsilon else ("bad", "over budget")]
    if receipt.epsilon < receipt.life <= receipt.allowed:
        marks = [("warn", "budget lowered below what was spent")]
    if _contradicted(receipt):
        marks = [("bad", "contradicted by attacks")]
    if receipt.guard_refused:
        marks.insert(0, ("warn", "its guard did not take part in all of it"))
    if receipt.randomness == "seeded":
        marks.append(("plain", "simulation"))
    if not receipt.finished:
        marks.append(("warn", f"{len(receipt.rounds)} of {receipt.planned_rounds} rounds so far"))
    return marks


def _contradicted(receipt: Receipt) -> bool:
    return receipt.attacks is not None and receipt.attacks.contradicted


def _lead(receipt: Receipt, used: str, allowed: str) -> str:
    said = (
        f"Of its budget of epsilon {allowed}, client {receipt.client} has spent {used}"
        if math.isfinite(receipt.epsilon)
        else f"The data of client {receipt.client} are public: there is no budget, and {used} was spent"
    )
    if receipt.alone:
        said += f", {ALONE}."
    else:
        said += f", in {receipt.other_runs + 1} runs." if receipt.other_runs else "."
    if receipt.epsilon < receipt.life <= receipt.allowed:
        spent, then = numbers.spent_of(receipt.life, receipt.allowed)
        said += f" When {spent} was spent, the budget was {then}; it was lowered afterwards."
    if receipt.guard_refused:
        said = f"{receipt.guard_refused} {said}"
    if _contradicted(receipt):
        return f"Attacks contradict the certificate for clients like this one: do not rely on it. {said}"
    return said


def _share(receipt: Receipt) -> float:
    if receipt.life == 0 or math.isinf(receipt.epsilon):
        return 0.0
    return receipt.life / receipt.epsilon if receipt.epsilon > 0 else math.inf  # 0: it was withdrawn


def _spending(receipt: Receipt) -> Chart | None:
    if not receipt.rounds or not all(map(math.isfinite, receipt.spending)):
        return None
    finite = math.isfinite(receipt.epsilon)
    top = max(receipt.spending[-1], receipt.epsilon if finite else 0.0) or 1.0
    before = [0.0, *receipt.spending]
    shown = [
        f"{numbers.spent(value)} (+{numbers.plain(value - last)})"
        for last, value in zip(before, receipt.spending, strict=False)
    ]
    look = Style("--method-2", "", "solid")
    line = Series("Epsilon spent", [0, *receipt.rounds], before, look, "stairs", ["0", *shown])
    last = max(receipt.rounds[-1], receipt.planned_rounds)
    levels = ((receipt.epsilon, "--ink"),) if finite else ()
    return Chart((line,), rounds(last, 10), linear("Epsilon", 0.0, top * HEADROOM, 6), 300, levels)
