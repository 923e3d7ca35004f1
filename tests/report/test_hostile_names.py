"""Names from files are text on every page: no tag, attribute or script of a page comes from a name."""

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.accounting import Renyi, certify
from discretion.audit import receipts
from discretion.methods import Details, find
from discretion.plan.population import Population
from discretion.report import plan_page, receipt_page, write
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run
from discretion.watch.follow import Follow
from discretion.watch.live_page import PageView, page, view_of
from support.run_folders import make_run, people, planned, seal, trained

EVIL = "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&lt;&"
PLAIN = "name"


class Found(HTMLParser):
    """The tags of a page with the names of their attributes, and its text outside style sheets."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(sorted(name for name, _ in attrs))))

    def handle_data(self, data: str) -> None:
        self.text += data


def named(path: Path, name: str, seed: int = 0) -> Path:
    """A run whose clients, method, data, source and refusals have a name in them; it overspends."""
    fair = people()
    clients = tuple(f"{name.replace('/', '')}{k}" for k in range(len(fair)))
    population = Population(clients, fair.epsilon, fair.delta, fair.size)
    folder = RunFolder(make_run(path, population=population, noise=1.0, seed=seed))
    plan = planned(name, population, noise=1.0)
    folder.plan.write_text(plan.to_json(), encoding="utf-8")
    folder.certificate.write_text(certify(plan, population, Renyi()).to_json(), encoding="utf-8")
    about = json.loads(folder.about.read_text())
    folder.about.write_text(json.dumps(about | {"id": name, "data": name, "source": name}))
    heard = {"round": 1, "asked": 2, "answered": 1, "lost": 0, "refused": {clients[0]: name}}
    folder.answers.write_text(json.dumps(heard) + "\n")
    seal(path)
    return path


def report(tmp_path: Path, name: str) -> str:
    write([named(tmp_path / "run", name)], tmp_path / "out.html", title=name)
    return (tmp_path / "out.html").read_text(encoding="utf-8")


def comparison(tmp_path: Path, name: str) -> str:
    folder = name.replace("/", "_")[:20]
    runs = [named(tmp_path / f"{folder}{seed}", name, seed) for seed in (0, 1)]
    write([*runs, make_run(tmp_path / "other")], tmp_path / "out.html")
    return (tmp_path / "out.html").read_text(encoding="utf-8")


def plan(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    run = read_run(named(tmp_path / "run", name))
    method = find("dp_fedavg")
    monkeypatch.setattr(plan_page, "find", lambda _: method)
    details = Details(numbers={name: 1.0})
    return plan_page.render(run.plan, run.population, run.certificate, details)


def receipt(tmp_path: Path, name: str) -> str:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    run = trained(tmp_path / "run")
    signed = receipts.issue(run, read_run(run).population.client[0], key)
    words = dict.fromkeys(("client", "run", "data", "method", "accountant", "statement"), name)
    limit = receipts.Limit(what=name, why=name)
    changed = signed.receipt.model_copy(update=words | {"not_promised": [limit]})
    return receipt_page.render(signed.model_copy(update={"receipt": changed, "signature": name}))


def live(tmp_path: Path, name: str) -> str:
    return page(view_of(Follow(named(tmp_path / "run", name)).look()))


def events(tmp_path: Path, name: str) -> str:
    news = view_of(Follow(named(tmp_path / "run", name)).look()).since(PageView())
    news = json.loads(json.dumps(news))  # as a browser gets it
    return "\n".join([*news["parts"].values(), *news["charts"].values()])


@pytest.mark.parametrize("make", [report, comparison, plan, receipt, live, events])
def test_names_are_text(make: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = [monkeypatch] if make is plan else []
    found, clean = (Found(make(tmp_path / str(k), name, *more)) for k, name in enumerate((EVIL, PLAIN)))
    assert found.tags == clean.tags
    assert EVIL in found.text
