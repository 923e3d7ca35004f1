"""What `faults` strikes: a ledger, a guard, its backup and recovery, and runs with their folders."""

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import discretion.runs.prepare as preparing
from discretion.clients import messages
from discretion.errors import DiscretionError
from discretion.guard import guard as guards
from discretion.guard import own_ledger, policy
from discretion.guard.data import own_records
from discretion.guard.guard import INSIDE, LOST, Guard
from discretion.ledger.keys import Head
from discretion.ledger.ledger import Ledger
from discretion.ledger.reader import LedgerReader
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs.config import make
from discretion.runs.execute import execute
from discretion.runs.folder import RunFolder, read_checkpoint
from discretion.runs.history import read_history
from discretion.runs.prepare import prepare
from discretion.runs.read import read_run
from discretion.tasks.datasets import Dataset
from discretion.training import loop
from support.faults import Fact, Say, Scenario
from support.guarding import (
    KEY,
    LOCAL,
    RECORDS,
    SHAPES,
    charged,
    cryptographic,
    own_pools,
    plan_of,
    policy_of,
)

ROWS = (
    "SELECT name, epsilon, delta FROM client",
    "SELECT client, epsilon, note FROM change",
    "SELECT id, plan, noise, rounds, unprotected, changes, closed IS NULL FROM run",
    "SELECT * FROM member",
    "SELECT * FROM price",
    "SELECT * FROM phase",
    "SELECT run, round, phase, state, refused, changes FROM round ORDER BY number",
)


def rows_of(path: Path) -> list[Any]:
    """Return all that a ledger says, but for times and hashes."""
    with closing(sqlite3.connect(path)) as db:
        return [db.execute(query).fetchall() for query in ROWS]


PEOPLE = Population.of([2.0, 4.0, 8.0], 1e-5, 10)


def sampled(rounds: int) -> Plan:
    return Plan("test", PEOPLE.client, (Phase.one_pool(rounds, np.full(3, 0.5), np.ones(3), 20.0),))


def epsilons(ledger: Ledger) -> list[float]:
    return [float(each) for each in ledger.spent()]


class LedgerScenario:
    """Two runs on one ledger, a top-up and a withdrawal between them."""

    def set_up(self, home: Path) -> None:
        pass

    def act(self, home: Path, say: Say) -> None:
        def tried(work: Callable[[], Any], fact: Fact) -> None:
            try:
                work()
            except DiscretionError:
                work()
            say(fact | {"spent": epsilons(ledger)})

        with Ledger(home / "ledger.sqlite", PEOPLE) as ledger:
            tried(partial(ledger.admit, "a", sampled(3)), {"admitted": "a"})
            for number in range(len(ledger.states("a")) + 1, 4):
                kept = number - 1 or None
                tried(partial(ledger.reserve, "a", number, kept), {"reserved": number, "run": "a"})
            for count, by in list(enumerate((1.0, -0.5), 1))[len(ledger.changes) :]:
                tried(partial(changed, ledger, count, by), {"changes": count})
            tried(partial(ledger.finish, "a", 3), {"finished": "a"})
            tried(partial(ledger.admit, "b", sampled(2)), {"admitted": "b"})
            for number in (1, 2):
                if len(ledger.states("b")) < number:
                    tried(partial(ledger.reserve, "b", number), {"reserved": number, "run": "b"})
                tried(partial(ledger.commit, "b", number), {"committed": number})
            tried(partial(ledger.finish, "b"), {"finished": "b"})

    def restart(self, home: Path, facts: list[Fact]) -> str:
        path = home / "ledger.sqlite"
        with Ledger(path, PEOPLE) as ledger:
            spent = epsilons(ledger)
            for fact in facts:
                assert (np.array(spent) >= fact.get("spent", 0.0)).all(), fact
                if "reserved" in fact:
                    assert len(ledger.states(fact["run"])) >= fact["reserved"], fact
                if "committed" in fact:
                    assert (fact["committed"], "committed") in ledger.states("b"), fact
                runs = {run.id: run for run in ledger.runs}
                assert fact.get("admitted", "a") in runs or "admitted" not in fact
                assert "finished" not in fact or runs[fact["finished"]].closed, fact
                assert len(ledger.changes) >= fact.get("changes", 0), fact
        self.act(home, lambda fact: None)
        assert rows_of(path) == self._undisturbed(home.parent / "undisturbed")
        return "same"

    def _undisturbed(self, home: Path) -> list[Any]:
        home.mkdir()
        try:
            self.act(home, lambda fact: None)
            return rows_of(home / "ledger.sqlite")
        finally:
            shutil.rmtree(home)


def changed(ledger: Ledger, count: int, by: float) -> None:
    """Change a budget, unless there are so many changes already."""
    if len(ledger.changes) < count:
        ledger.change_budget("c1", by, "x")


ME = 1
ROUNDS = 4
GUARDED = cryptographic(plan_of(own_pools(ROUNDS)))
MODEL = np.zeros(650, np.float32).tobytes()


def orders() -> list[tuple[str, bytes]]:
    """Return what a server asks: each order by a name, some of them twice; the third round is passed over."""
    phase = GUARDED.phases[0]
    about = {"client": f"c{ME}", "run": "r", "plan": GUARDED.digest()}
    local, clip, noise = asdict(LOCAL), float(phase.clip[ME]), float(phase.noise[ME])
    join = messages.Join(**about, size=40, model="linear", shapes=SHAPES, records=RECORDS, local=local)
    more: Fact = {"turn": 0, "key": 9, "clip": clip, "noise": noise, "local": local}
    train = {number: messages.Train(**about, round=number, **more) for number in (1, 2, 4)}
    asked = [("join", messages.encode(join, GUARDED.to_json().encode()))]
    asked += [(str(number), messages.encode(train[number], MODEL)) for number in (1, 1, 2, 4, 4)]
    return [*asked, ("finish", messages.encode(messages.Finish(**about, rounds=ROUNDS)))]


def records(data: policy.Data) -> Dataset:
    return _loaded(data.model_dump_json())


@cache
def _loaded(text: str) -> Dataset:
    return own_records(policy.Data.model_validate_json(text))


def policy_at(home: Path) -> policy.Policy:
    return policy.read(home / f"c{ME}" / "GUARD.toml")


def ask(guard: Guard, name: str, message: bytes, heads: Sequence[Head], say: Say) -> str:
    """Return the reason of a refusal, or an empty string; say what came."""
    answer, body = messages.decode_answer(guard.answer(messages.sign(message, KEY, heads)))
    assert answer.reason not in (INSIDE, LOST), answer.reason
    if answer.kind == "done":
        assert answer.head
        say({"answered": name, "body": hashlib.sha256(body).hexdigest(), "head": answer.head.model_dump()})
    return answer.reason


@contextmanager
def draws(owner: Any, name: str, number: Callable[..., int], say: Say) -> Iterator[None]:
    """Say each time that noise is drawn, and for which round."""
    real = getattr(owner, name)

    def drawing(*words: Any, **more: Any) -> Any:
        say({"drew": number(*words)})
        return real(*words, **more)

    setattr(owner, name, drawing)
    try:
        yield
    finally:
        setattr(owner, name, real)


class GuardScenario:
    """A guard that is started, joins a run, answers its rounds, some of them twice, and finishes it."""

    def set_up(self, home: Path) -> None:
        policy_of(home, ME, test_seed=None)

    def act(self, home: Path, say: Say) -> None:
        self._ask_all(home, [], say)

    def _ask_all(self, home: Path, heads: list[Head], say: Say) -> None:
        setattr(guards, "own_records", records)  # noqa: B010, for mypy it is no name of theirs
        heads = heads[-1:]

        def learn(fact: Fact) -> None:
            say(fact)
            if "head" in fact:
                heads[:] = [Head(**fact["head"])]

        with draws(Guard, "_train", lambda _, run, order, model: order.round, learn):
            guard = Guard(policy_at(home))
            for name, message in orders():
                refused = ask(guard, name, message, heads, learn)
                if refused.startswith("fault"):
                    ask(guard, name, message, heads, learn)
            guard.close()

    def restart(self, home: Path, facts: list[Fact]) -> str:
        heads = [Head(**fact["head"]) for fact in facts if "head" in fact]
        said = list(facts)
        self._ask_all(home, heads, said.append)
        bodies: dict[str, set[str]] = {}
        for fact in said:
            if "answered" in fact:
                bodies.setdefault(fact["answered"], set()).add(fact["body"])
        drawn = [fact["drew"] for fact in said if "drew" in fact]
        assert all(len(each) == 1 for each in bodies.values()), "two answers to one order"
        assert len(drawn) == len(set(drawn)), f"noise drawn twice: {drawn}"
        path = home / f"c{ME}" / "guard" / "ledger.sqlite"
        with Ledger.existing(path) as ledger:
            assert ledger.states("r") == [(number, "committed") for number in range(1, ROUNDS + 1)]
            assert ledger.spent()[0] >= charged(GUARDED, ME, ROUNDS) * (1 - 1e-9)
            assert ledger.runs[0].closed
        return "same" if {"1", "2", "4"} <= bodies.keys() else "a round without an answer, charged"


class RecoveryScenario:
    """A guard's owner copies the ledger, learns that it is an older one, and recovers it."""

    def set_up(self, home: Path) -> None:
        policy_of(home, ME, test_seed=None)
        guard, said = Guard(policy_at(home)), list[Fact]()
        folder = home / f"c{ME}" / "guard"
        for name, message in orders()[:4]:
            if name == "2":
                shutil.copytree(folder, home / "older")
            ask(guard, name, message, [], said.append)
        guard.close()
        shutil.rmtree(folder)
        (home / "older").rename(folder)
        self._head = Head(**said[-1]["head"])

    def act(self, home: Path, say: Say) -> None:
        said = policy_at(home)
        own_ledger.back_up(said, home / "copy.sqlite")
        say({"copied": True})
        try:
            own_ledger.require_known(said, [self._head])
        except DiscretionError as problem:
            if "does not have all on record" not in str(problem):
                raise
        say({"noticed": True})
        own_ledger.recover(said, "rounds")
        say({"recovered": True})

    def restart(self, home: Path, facts: list[Fact]) -> str:
        said, told = policy_at(home), {name for fact in facts for name in fact}
        copy = home / "copy.sqlite"
        assert copy.exists() or "copied" not in told
        if copy.exists():
            with LedgerReader(copy) as reader:
                reader.check()
                assert len(reader.rounds("r")) == 1
        with own_ledger.open_ledger(said) as ledger:
            lost, closed = ledger.is_lost, ledger.runs[0].closed
            assert closed or lost or not {"noticed", "recovered"} & told, "the loss is forgotten"
            assert closed or "recovered" not in told
        if not closed or lost:
            own_ledger.recover(said, "rounds")
        with own_ledger.open_ledger(said) as ledger:
            assert not ledger.is_lost and ledger.runs[0].closed
            assert ledger.spent()[0] >= charged(GUARDED, ME) * (1 - 1e-9)
        return "same"


class RunScenario:
    """A run of three rounds with its folder, from its preparation on; seeded, or with secret noise."""

    def __init__(self, randomness: str = "seeded") -> None:
        self._secret = randomness != "seeded"
        self._settings = make(
            {
                "population": {"clients": 6, "budgets": "groups:4,8,16"},
                "data": {"name": "digits"},
                "model": {"name": "linear"},
                "plan": {"rounds": 3, "rate": 0.5, "clip": 0.5},
                "train": {"threads": 1, "server_momentum": 0.5, "randomness": randomness},
            }
        )

    def set_up(self, home: Path) -> None:
        prepare(self._settings, home / "run")
        if not self._secret:
            shutil.copytree(home / "run", home / "whole")
            execute(home / "whole")

    def act(self, home: Path, say: Say) -> None:
        def number(*words: Any) -> int:
            source = words[6].args  # seed, run, plan, round, purpose
            return int(source[3])

        with draws(loop, "release", number, say):
            execute(home / "run", lambda done: say({"round": done.round}))
        say({"finished": True})

    def restart(self, home: Path, facts: list[Fact]) -> str:
        run, said = RunFolder(home / "run"), list(facts)
        self._counted(home, facts)
        self.act(home, said.append)
        drawn = [fact["drew"] for fact in said if "drew" in fact]
        assert reserved_in(run.path) == 3
        assert read_run(run).finished
        assert [line.round for line in read_history(run.history).lines] == [1, 2, 3]
        if self._secret:
            assert len(drawn) == len(set(drawn)), f"noise drawn twice: {drawn}"
            return "same" if len(drawn) == 3 else "a round without a release, charged"
        whole = RunFolder(home / "whole")
        assert run.model.read_bytes() == whole.model.read_bytes()
        assert run.history.read_bytes() == whole.history.read_bytes()
        assert rows_of(run.path / "ledger.sqlite") == rows_of(whole.path / "ledger.sqlite")
        return "same"

    def _counted(self, home: Path, facts: list[Fact]) -> None:
        """Assert, on a copy, that the ledger has every round that was drawn, or that the folder tells of."""
        shutil.copytree(home / "run", home / "copied")
        copied = RunFolder(home / "copied")
        told = [fact[name] for fact in facts for name in ("drew", "round") if name in fact]
        state = read_checkpoint(copied)
        told += [state.round if state else 0, 3 if copied.model.exists() else 0]
        told += [line.round for line in read_history(copied.history).lines]
        if max(told):
            with Ledger.existing(copied.path / "ledger.sqlite"):
                assert reserved_in(copied.path) >= max(told)
        shutil.rmtree(copied.path)


def reserved_in(run: Path) -> int:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db:
        ((count,),) = db.execute("SELECT COUNT(*) FROM round")
    return int(count)


class PreparationScenario:
    """A new run folder."""

    def __init__(self) -> None:
        self._settings = RunScenario("cryptographic")._settings
        for name in ("fitted", "certify", "cross_check"):  # the same each time, and slow
            setattr(preparing, name, once(getattr(preparing, name)))

    def set_up(self, home: Path) -> None:
        pass

    def act(self, home: Path, say: Say) -> None:
        prepare(self._settings, home / "runs" / "first")
        say({"prepared": True})

    def restart(self, home: Path, facts: list[Fact]) -> str:
        run = RunFolder(home / "runs" / "first")
        assert run.about.exists() or not facts
        if not run.about.exists():
            prepare(self._settings, run)
        assert not read_run(run).finished
        return "same"


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is computed once, whatever its arguments."""
    found: list[Any] = []

    def known(*words: Any) -> Any:
        found.extend([] if found else [function(*words)])
        return found[0]

    return known


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "ledger": LedgerScenario,
    "guard": GuardScenario,
    "recovery": RecoveryScenario,
    "run": RunScenario,
    "secret run": lambda: RunScenario("cryptographic"),
    "preparation": PreparationScenario,
}
