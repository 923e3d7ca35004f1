"""The page of a receipt: what one client was promised and what was spent, with the signed receipt inside."""

import math
from datetime import datetime

from discretion.receipts import Receipt, Signed, to_json
from discretion.report import numbers, wording
from discretion.report.chart import Chart, Series, Style, linear, rounds
from discretion.report.charts import HEADROOM
from discretion.report.markup import badge, facts, figure, meter, note, section, table, text
from discretion.report.officer import READERS
from discretion.report.page import shell

SECRET = (
    " A round costs the same whether the client took part in it or not: the coin is part of the protection."
)
NAVIGATION = {
    "receipt-of": "Receipt",
    "spending": "Spending",
    "promise": "Promise",
    "limits": "Limits",
    "verify": "Verify",
}


def render(signed: Signed) -> str:
    """The same receipt always makes the same page."""
    receipt = signed.receipt
    body = "\n\n".join(
        [_heading(receipt), _spending(receipt), _promise(receipt), _limits(receipt), _verify(signed)]
    )
    held = to_json(signed).replace("<", "\\u003c")
    inside = f'{body}\n<script type="application/json" id="receipt">{held}</script>'
    return shell(f"Receipt for {receipt.client}", NAVIGATION, inside, "")


def _heading(receipt: Receipt) -> str:
    used, allowed = numbers.spent_of(receipt.life, receipt.epsilon)
    within = receipt.life <= receipt.epsilon
    marks = [badge("good", "within budget") if within else badge("bad", "over budget")]
    if receipt.noise.startswith("simulation"):
        marks.append(badge("plain", "simulation"))
    if not receipt.finished:
        marks.append(badge("warn", f"{len(receipt.rounds)} of {receipt.planned_rounds} rounds so far"))
    share = 0.0
    if receipt.life > 0 and math.isfinite(receipt.epsilon):  # of what was withdrawn, any cost is too much
        share = receipt.life / receipt.epsilon if receipt.epsilon > 0 else math.inf
    lead = (
        f"Of its budget of epsilon {allowed}, client {receipt.client} has spent {used}"
        if math.isfinite(receipt.epsilon)
        else f"The data of client {receipt.client} are public: there is no budget, and {used} was spent"
    )
    runs = f", in {receipt.other_runs + 1} runs" if receipt.other_runs else ""
    left = "no limit" if math.isinf(receipt.left) else numbers.budget(receipt.left, 3) or "0"
    pairs = [
        ("Budget", f"ε {allowed}<small>delta {numbers.power(receipt.delta)}</small>"),
        ("Spent", used + meter(share)),
        ("Left", f"{left}<small>costs add up to less than their sum</small>"),
        ("This run", f"ε {numbers.spent(receipt.spent)}<small>{_progress(receipt)}</small>"),
        ("Training", f"{text(receipt.method)}<small>on {text(receipt.data)}</small>"),
        ("Records", f"{receipt.records:,}<small>that the client is counted with</small>"),
        ("Counted by", text(receipt.accountant)),
        ("Made", f"{_moment(receipt.made)}<small>run {text(receipt.run)}</small>"),
    ]
    return (
        f'<section id="receipt-of" class="hero">\n<p class="marks">{" ".join(marks)}</p>\n'
        f"<h1>Receipt for {text(receipt.client)}</h1>\n"
        f'<p class="lead">{text(lead)}{runs}.</p>\n{facts(pairs)}\n</section>'
    )


def _progress(receipt: Receipt) -> str:
    done = max(receipt.rounds, default=0)
    return f"{done:,} of {numbers.count(receipt.planned_rounds, 'round')}, at most {_whole(receipt)} in all"


def _whole(receipt: Receipt) -> str:
    return numbers.spent(receipt.planned)


def _moment(made: str) -> str:
    found = datetime.fromisoformat(made)
    return f"{found.day} {found:%B %Y, %H:%M} UTC"


def _spending(receipt: Receipt) -> str:
    heading = "Spending by round"
    if not receipt.rounds or not all(map(math.isfinite, receipt.spending)):
        said = "Nothing yet." if not receipt.rounds else "Epsilon is infinite: this run protects nobody."
        return section("spending", heading, said)
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
    chart = Chart((line,), rounds(last, 10), linear("Epsilon", 0.0, top * HEADROOM, 6), 300, levels)
    refused = (
        [f"Refused, and so free: {numbers.count(len(receipt.refused), 'round')}."] if receipt.refused else []
    )
    return section(
        "spending",
        heading,
        f"Epsilon after each round of this run. Who takes part: {text(receipt.taking_part)}."
        + (SECRET if "secret" in receipt.taking_part else "")
        + " Dotted: the budget.",
        figure("figure-receipt", chart, text(f"Epsilon over rounds, ending at {shown[-1]}")),
        note(refused) if refused else "",
    )


def _promise(receipt: Receipt) -> str:
    rows = [[READERS[who], numbers.spent(value)] for who, value in receipt.against.items()]
    return section(
        "promise",
        "What is promised",
        text(receipt.statement),
        table(["Against", "Epsilon of the whole plan"], rows, "data", "Epsilon by who is looking"),
        note(
            [f"{text(wording.promise(receipt.unit, receipt.adjacency))}.", f"Noise: {text(receipt.noise)}."]
        ),
    )


def _limits(receipt: Receipt) -> str:
    items = "".join(f"<li><b>{text(item.what)}</b> {text(item.why)}</li>" for item in receipt.not_promised)
    return section("limits", "What is not promised", "", f'<ul class="limits">{items}</ul>')


def _verify(signed: Signed) -> str:
    receipt = signed.receipt
    rows = [
        ["Plan", _mono(receipt.digests.plan)],
        ["Clients and budgets", _mono(receipt.digests.population)],
        ["certificate.json", _mono(receipt.digests.certificate_file)],
        ["config.toml", _mono(receipt.digests.config_file)],
        ["Operator’s key", _mono(signed.key)],
        ["Signature", _mono(signed.signature)],
    ]
    return section(
        "verify",
        "How to verify",
        "The receipt is signed (Ed25519). Keep this file: with the operator’s public key, which should have "
        "reached you by another way, anybody can verify later that nothing in it was changed.",
        "<pre><code>discretion receipt --verify FILE --operator KEY</code></pre>",
        table(["What", "SHA-256, key or signature"], rows, "digests", "Digests, key and signature"),
    )


def _mono(value: str) -> str:
    return f"<code>{text(value)}</code>"
