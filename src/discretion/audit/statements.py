"""Sole author of promises: what a plan promises to whom, on what the promise rests, what is not promised.

Other modules hold facts (`noise_at`, `promise`, `randomness`, `grid`) and take every sentence about them from
here. A promise that needs something which Discretion does not provide names that condition in its sentence.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

from discretion.accounting import Certificate
from discretion.audit.attack import CHANCE, Audit, Shown
from discretion.plan.plan import ADVERSARIES, Adversary, NoiseAt, Randomness
from discretion.plan.summary import Coming
from discretion.runs.read import Run

NOBODY = "Protects nobody"
OBSERVERS: dict[Adversary, str] = {
    "public": "whoever sees the models",
    "clients": "other clients",
    "server": "the server",
}
UNITS = {"client": "one client's whole data", "record": "each record of a client"}
UNIT = {  # in a line of its own, because one is easily taken for the other
    "client": "Unit of privacy: a whole client (hospital, phone), with all of its records.",
    "record": "Unit of privacy: one record (patient, visit), not the client as a whole.",
}
NEIGHBOURS = {"add_remove": "present or absent", "replace": "this or any other in its place"}

SEES: dict[NoiseAt, str] = {  # the server, where nothing is between it and the clients
    "server": "draws the noise, and sees each update before the noise and who took part",
    "clients": "sees each update with only that client's own share of the noise, and who took part",
    "secure_sum": "sees, without a secure sum, each client's answer with only that client's own share of the "
    "noise",
    "steps": "sees what each client sends, which is noisy before it leaves the client",
}
SHARED = ("clients", "secure_sum")  # clients know their own shares of the noise
TRUSTED_TO: dict[NoiseAt, str] = {
    "server": "add the noise as planned, and to keep the coins and what it sees to itself",
    "clients": "add the shares of the clients that do not take part, and to keep what it sees to itself",
    "secure_sum": "add the shares that are missing or release nothing, and to keep what it sees to itself",
    "steps": "keep what it sees to itself",
}

RANDOMNESS: dict[Randomness, str] = {
    "seeded": "Coins and noise come from a seed (simulation): whoever knows the seed can remove the noise.",
    "cryptographic": "Coins and noise come from ChaCha20, keyed anew by the operating system for each block; "
    "no key is kept (deployment).",
}
GRID = {
    True: "The noise is a Gaussian rounded to a grid, drawn exactly: what is proved of the Gaussian holds.",
    False: "The noise is a Gaussian in floating-point numbers: what the last bits of noise and sums tell "
    "(Mironov 2012) is not proved.",
}
SHARES_ON_GRID = (
    "The noise is a sum of whole numbers, discrete Gaussian shares that are drawn exactly; charged is the "
    "Gaussian noise that such a sum is made of: what is proved of the Gaussian holds."
)
TOGETHER = ("here", "flower-sim")  # where one operator's processes are all clients
OWN_RECORDS = "records of the clients that were kept for testing"
ONE_PROCESS = "Where one process plays every party, it draws the clients' noise for them."
UNSEEN = "Who takes part in which round is secret, and stands nowhere in here."
COINS: dict[Coming, str] = {
    "public": "drawn in advance, and public",
    "poisson": "a secret coin for each client and round",
    "fixed_size": "a fixed number, drawn in secret for each round",
}
SECRET = "A round costs the same whether or not the client took part: the coin is part of the protection."
ADAPTIVE = (
    "The ledger goes by the adaptive rule: what is proved is the budget as a whole; the epsilon after a "
    "round is what the rounds so far would cost had they been planned beforehand."
)
ALONE = "in this run alone: other runs have ledgers of their own"
ATTACKED = (
    "An audit is no promise. It plays the plan with made-up clients or records (canaries), and an attacker "
    f"guesses which of them were in. With a chance of at least {1 - CHANCE:.0%} each “at least” is true. An "
    "attack that fails proves nothing: only the certificate says how large epsilon is at most."
)
NOT_AUDITED = (
    "There is nothing to audit: against nobody does any client have an epsilon that is finite and above 0. "
    "What promises nothing, or decides by raw data, cannot be contradicted."
)
QUESTIONS = {  # what an observer wants to tell, by unit and adjacency
    ("client", "add_remove"): "a client’s data were used",
    ("client", "replace"): "a client’s data were used, or others in their place",
    ("record", "add_remove"): "one record of a client was used",
    ("record", "replace"): "one record of a client was used, or another in its place",
}
COMPARED = (
    "Smaller is stronger, but two epsilons compare only where both are counted for the same: for all data of "
    "a person or for one record, over a life or over a day, against the server or against the public. "
    "Epsilons of what is released again and again add up."
)


def question(certificates: Sequence[Certificate]) -> str:
    """Return what an observer of these plans wants to tell, as what was used or not."""
    return " or ".join(dict.fromkeys(QUESTIONS[each.unit, each.adjacency] for each in certificates))


def meaning(certificates: Sequence[Certificate]) -> str:
    """Return what a budget limits."""
    return (
        f"How well whoever looks at what is released can tell whether {question(certificates)} is limited by "
        "the client’s budget epsilon: the smaller, the less. What that means for a guess stands beneath."
    )


def odds(certificates: Sequence[Certificate]) -> str:
    """Return what the odds of a guess at epsilon, 1 / (1 + e^-epsilon), mean.

    Guarantees:
        Whoever gives even odds is right with a chance of at most these odds and delta, however it guesses.
        With a chance of at most 2.2 delta, what is released makes it surer than the odds at epsilon + 1: the
        chance of a loss above that is delta / (1 - 1/e) at most in the one world, in the other e times less.
    """
    return (
        f"an observer who gives even odds that {question(certificates)}, and guesses after seeing all of it, "
        "is right with at most this chance, and delta on top. That is over all that may be released: with a "
        "chance of at most 2.2 times delta one release makes it surer than the odds at epsilon + 1."
    )


def audited(games: int, chance: float) -> str:
    """Return what an audit's columns mean, and what the audit can and cannot show."""
    return (
        f"Attacked in {games:,} games. At least: what the attacks show of a plan with these sampling rates "
        "and releases and with Gaussian noise, however much. Of any kind: what they show whatever was "
        "executed. "
        "Noise and coins: measured, as shares of the planned ones. With a chance of at least "
        f"{1 - chance:.0%} all lower bounds hold, and nothing is contradicted if the plan is executed as "
        "written. An attack that fails proves nothing: only the certificate bounds epsilon from above."
    )


def audited_run(runs: int, chance: float) -> str:
    """Return what the audit of training runs can and cannot show."""
    times = "one training run" if runs == 1 else f"{runs:,} training runs"
    return (
        f"Attacked in {times}, in which every second client was a canary. At least: what the attacks show "
        "of a plan with these sampling rates and releases and with Gaussian noise, however much. If they "
        "interfere: the same, but canaries may disturb each other in any way, as long as the privacy curve "
        "of each is that of such a plan. Of any kind: what the attacks show whatever was executed. With a "
        f"chance of at least {1 - chance:.0%} all lower bounds hold, and nothing is contradicted if the plan "
        "is executed as written. With few canaries the bounds are far below epsilon, and an attack that "
        "fails proves nothing: only the certificate bounds epsilon from above."
    )


def attacked(found: Audit, name: str, who: Adversary) -> str:
    """Return what an audit shows of the budget class `name` against an adversary; empty where not played."""
    made = datetime.fromisoformat(found.made)
    began = f"Attacked on {made.day} {made:%B %Y} in {found.games:,} games"
    if odd := found.against(name):
        return (
            f"{began}. {contradicted([name], odd)}. If the plan were executed as written, that would happen "
            f"with a chance of at most {found.chance:.0%}: do not rely on the epsilon of these clients."
        )
    for each in found.shown:
        if (each.name, each.adversary) == (name, who):
            return f"{began}. {_shown(each)}"
    return ""


def contradicted(names: Sequence[str], odd: Sequence[str]) -> str:
    """Return a clause on whose certified epsilons attacks contradict, and what they found."""
    return f"Attacks contradict the certificate for clients of {' and '.join(names)}: {'; '.join(odd)}"


def _shown(each: Shown) -> str:
    """Return the bounds and measurements of one budget class, in sentences."""
    measured = {"noise": each.noise, "coins": each.coins}
    shares = [f"{what} {share:.1%}" for what, share in measured.items() if share is not None]
    return (
        f"For clients of {each.name} that spend the most, epsilon is at least {at_least(each.at_least)} if "
        "rounds, clips and coins are as planned and only the strength of the noise is in question; at least "
        f"{at_least(each.any_mechanism)} whatever was executed; and, by the certificate, "
        f"{at_most(each.certified)}."
        + (f" Measured, of what was planned: {', '.join(shares)}." if shares else "")
    )


def at_least(epsilon: float) -> str:
    """Return a lower bound in three significant digits, rounded down: it must not look larger than it is."""
    return f"{Context(prec=3, rounding=ROUND_FLOOR).create_decimal_from_float(epsilon):f}"


def protection(certificate: Certificate) -> str:
    """Return what a certificate promises, from whom, and under which conditions."""
    if certificate.promises_nothing:
        why = f": {reading(certificate)}" if certificate.reads != "nothing" else ""
        return f"No privacy: this plan protects nobody from anybody{why}."
    told = f"P{holds(certificate)[1:]}"
    if certificate.promise != "server":
        told += f"; against it epsilon is {at_most(float(certificate.epsilon['server'].max()))}"
    if over := len(certificate.overspent):
        told += f"; but not within budget: {over} of {len(certificate.clients)} clients overspend"
    told += f". Here {read}." if (read := reading(certificate)) else "."
    return f"{told} {RANDOMNESS['seeded']}" if certificate.randomness == "seeded" else told


def holds(certificate: Certificate) -> str:
    """Return the clause 'protects WHAT from WHOM, if …': whom a promise names, and on what it rests."""
    unit, adjacency = UNITS[certificate.unit], certificate.adjacency.replace("_", "/")
    adversaries = _from(certificate.noise_at, certificate.promise, certificate.colluding)
    return f"protects {unit} ({adjacency}) {adversaries}{_condition(certificate)}"


def simulation(run: Run) -> str:
    """Return a clause on whether a run was a simulation, and what that means."""
    if run.simulated:
        return "it was a simulation, and protects nobody from whoever knows the seed"
    if run.config.clients.where in TOGETHER:
        return "it was no simulation, but programs of one operator played every party"
    return "it was no simulation"


def lasting(run: Run) -> str:
    """Return in a sentence over which runs budgets are counted.

    Guarantees:
        Budgets are said to be for life only where settings name a ledger to share, or it has other runs.
    """
    if run.alone:
        return f"Budgets are counted {ALONE}."
    others = run.ledger.other_runs if run.ledger else 0
    return (
        "A ledger keeps each client’s budget for life, over all runs that share it; so far "
        f"{others:,} other {'run is' if others == 1 else 'runs are'} on it."
    )


def observer(certificate: Certificate, who: Adversary) -> str:
    """Return an adversary's name for a table, with what its epsilon needs."""
    summed = (certificate.noise_at, certificate.promise, who) == ("secure_sum", "server", "server")
    return f"{OBSERVERS[who]} (secure sum)" if summed else OBSERVERS[who]


def _from(noise_at: NoiseAt, promise: Adversary, colluding: int) -> str:
    """Return the adversaries that budgets hold against, as 'from A, from B and from C'."""
    clients = "other clients"
    if noise_at in SHARED:
        clients = f"any {several(colluding)}" if colluding else "other clients that tell nobody their shares"
    names = {"public": "whoever sees the released models", "clients": clients, "server": "the server"}
    parts = [f"from {names[who]}" for who in reversed(ADVERSARIES[: ADVERSARIES.index(promise) + 1])]
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), parts[-1]])


def several(colluding: int) -> str:
    """Return how many other clients may tell each other, or the server, what they know."""
    return "one other client" if colluding == 1 else f"{colluding} other clients together"


def _condition(certificate: Certificate) -> str:
    return _rests_on(certificate.noise_at, certificate.promise, _failing(certificate.dropout))


def _rests_on(noise_at: NoiseAt, promise: Adversary, failing: str) -> str:
    """Return the clause on what a promise rests, to follow whom it names."""
    if promise != "server":
        trusted = "the server is" if promise == "clients" else "the server and the other clients are"
        return f", if {trusted} trusted: the server {SEES[noise_at]}"
    return {
        "server": f", which cannot hold: the server {SEES['server']}",
        "clients": ": no noise is counted but the client's own share",
        "secure_sum": f", if a secure sum shows the server sums only and {failing}; Discretion has no secure "
        "sum of its own, and without one nothing is promised against the server",
        "steps": ": what a client sends is noisy before it leaves the client",
    }[noise_at]


def _failing(dropout: float) -> str:
    failing = f"at most {dropout:.0%} of a pool's clients fail" if dropout else "no client fails"
    return f"{failing} to add a share of the noise"


def at_most(epsilon: float) -> str:
    """Return an epsilon in words, with five digits and never rounded down."""
    if math.isinf(epsilon):
        return "infinite"
    return f"at most {Context(prec=5, rounding=ROUND_CEILING).create_decimal_from_float(epsilon):f}"


def trusted(certificate: Certificate) -> str:
    """Return what the server sees and what it is trusted with."""
    at = certificate.noise_at
    if certificate.promises_nothing:
        return "Everything: nobody is protected from it."
    if certificate.promise == "server":
        return f"Nothing{_condition(certificate)}."
    return f"The server {SEES[at]}. It is trusted to {TRUSTED_TO[at]}."


def against(certificate: Certificate) -> dict[Adversary, str]:
    """Return who each adversary is, what it knows, and under which condition its epsilon holds."""
    at, colluding = certificate.noise_at, certificate.colluding
    public = clients = "whoever sees every model that is released"
    server = "the server on its own"
    if colluding:
        known = "updates and shares of the noise" if at in SHARED else "updates"
        clients = f"any {several(colluding)}, knowing every model and their own {known}"
        server = f"the server, with what any {several(colluding)} may tell it"
    if at == "secure_sum":
        holds = f", where {_failing(certificate.dropout)}"
        holds += ", or the server adds what is missing or releases nothing"
        public, clients = public + holds, clients + holds
    if certificate.promise == "server":
        server += _condition(certificate)
    else:
        server += f", against which nothing is promised: it {SEES[at]}"
    return {"public": public, "clients": clients, "server": server}


def noise(certificate: Certificate) -> str:
    """Return where coins and noise come from, and what is proved of the noise."""
    shared = certificate.grid and certificate.noise_at in SHARED
    told = f"{RANDOMNESS[certificate.randomness]} {SHARES_ON_GRID if shared else GRID[certificate.grid]}"
    return told if certificate.noise_at == "server" else f"{told} {ONE_PROCESS}"


def protected(unit: str, adjacency: str) -> str:
    """Return what is protected, and between which two worlds nobody can tell."""
    return f"{UNITS[unit].capitalize()}: {NEIGHBOURS[adjacency]}"


def taking_part(coming: Coming) -> str:
    """Return what decides who takes part, and what secret coins mean for the costs."""
    told = f"Who takes part: {COINS[coming]}."
    return told if coming == "public" else f"{told} {SECRET}"


def reading(certificate: Certificate) -> str:
    """Return which of the clients' data decide who trains, and how they are read; empty if none do."""
    if certificate.reads == "nothing":
        return ""
    how = "read raw" if certificate.promises_nothing else "read with noise that is paid for"
    return f"who trains depends on {certificate.reads}, {how}"


def paper_mode(certificate: Certificate) -> str:
    """Return what the paper's own formula is worth; empty outside paper mode."""
    if certificate.accounting != "paper":
        return ""
    if len(certificate.overspent):
        return "Paper mode: not the stated guarantee."
    return "Paper mode: noise by the paper's own formula; the true epsilon is within every budget."


def unproved(why: str) -> str:
    """Return what is left of a promise whose certificate does not fit the run."""
    return f"Nothing is proved: {why}."


def method_protection(unit: str, noise_at: NoiseAt | None, promise: Adversary | None, reads_raw: bool) -> str:
    """Return whom a method's plans protect from whom, and under which condition, before any plan is made.

    A method of unit "none" protects nobody. `reads_raw`: unless told otherwise the method reads raw data.
    """
    if unit == "none" or noise_at is None or promise is None:
        return f"{NOBODY}: epsilon is infinite."
    told = f"{UNITS[unit]} {_from(noise_at, promise, 1)}{_rests_on(noise_at, promise, _failing(0.0))}."
    if reads_raw:
        return f"{NOBODY} as published, where epsilon is infinite; with read_share > 0 protects {told}"
    return f"Protects {told}"


def tested(runs: Sequence[Run]) -> str:
    """Return whose the test records are, of several runs the least private."""
    if any(not_private(run) for run in runs):
        return f"{OWN_RECORDS}: these figures are not private"
    if any(run.config.data.test_file for run in runs):
        return "test records from a table of their own: if they are of clients, these figures are not private"
    if any(run.config.clients.elsewhere for run in runs):
        return "test records that the server holds: if they are of clients, these figures are not private"
    return "test records that belong to no client"


def not_private(run: Run) -> bool:
    """Return whether accuracy and loss are computed on records of the clients, which no budget covers."""
    return run.config.data.partition == "natural" and not run.config.data.test_file


def side_channels(run: Run) -> str:
    """Return what is known of noise, times and coins beside the releases, in sentences."""
    limits = dict(unpromised([run]))
    beside = [limits[lead] for lead in ("Time.", "Secret coins.") if lead in limits]
    return " ".join([noise(run.certificate), *beside])


def unpromised(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return what nothing here protects or proves: in a word or two, and in plain sentences."""
    shared = sum(not run.alone for run in runs)
    others = any(run.ledger and run.ledger.other_runs for run in runs)
    sharing = f"{shared} of {len(runs)} share one with other runs" if shared else "every run has its own"
    limits = {
        "This is a simulation.": f"{RANDOMNESS['seeded']} Handle the models as if they had no noise.",
        "One operator.": "Programs of one operator played every party and held all of the clients’ data: "
        "against that operator nothing is promised.",
        "The test records.": f"Accuracy and loss are computed on {tested(runs)}. Nothing is promised about "
        "those records.",
        "Several runs together.": "Each epsilon is that of one run. Whoever sees the models of several runs "
        "on the same data learns more than any one of them allows. A ledger that runs share counts them "
        f"together; here {sharing}.",
        "The clients’ own ledgers.": "What is spent is counted here by the operator’s ledger. A client’s "
        "guard counts in a ledger of its own, by its own rule, with all runs that it joined for whichever "
        "operator. It may show more, or less where it refused or never joined, and it is what decides.",
        "Tuning.": "Settings such as clip, rate and learning rate were chosen before these runs. If they "
        "were chosen by looking at the clients’ data, that is not counted here.",
        "Budgets and sizes.": "The server knows each client’s budget and number of records. They are taken "
        "as public.",
        "Time.": "How long rounds take, and when they are, depends on who takes part. Nothing is promised "
        "about it; keep logs and times to yourself.",
        "Secret coins.": "The epsilons count on nobody but the server learning who takes part in which "
        "round. Whoever watches the clients’ network traffic may learn it.",
        "The program.": "Epsilon is proved from the plan. That the program does what the plan says is "
        "tested, not proved.",
        "Floating-point noise.": f"{GRID[False]} Whoever sees every bit of a model may exploit them.",
        "One person in several clients.": "The promise is to one client, or to one of its records. Whoever "
        "has data at several clients is protected less: the epsilons of those clients add up for that "
        "person, and delta grows.",
        "One person in several records.": "Where each record is protected, whoever has several records at a "
        "client is protected less: epsilon grows with their number.",
    }
    where = {
        "This is a simulation.": any(run.simulated for run in runs),
        "One operator.": any(not run.simulated and run.config.clients.where in TOGETHER for run in runs),
        "Several runs together.": len(runs) > 1 or others or any(r.alone and not r.simulated for r in runs),
        "The clients’ own ledgers.": any(run.config.clients.where not in TOGETHER for run in runs),
        "Secret coins.": any(not run.treatment.public for run in runs),
        "Floating-point noise.": any(run.plan.grid is None for run in runs),
        "One person in several records.": any(run.treatment.batch is not None for run in runs),
    }
    return [(lead, body) for lead, body in limits.items() if where.get(lead, True)]
