"""A plan, a population and a certificate show themselves in one line, and in notebooks as a small table."""

import math
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from discretion.accounting import Pld, certify
from discretion.accounting.reference import Reference
from discretion.accounting.renyi import Renyi
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population

POPULATION = Population.of([0.5, 3.0, math.inf], size=[1, 10, 5], traits={"age": np.ones(3)})
PLAN = Plan(
    "made & <b>",
    POPULATION.client,
    (Phase.one_pool(30, np.full(3, 0.1), np.ones(3), 9.0),),
    parameters={"a": 2},
)


class Cells(HTMLParser):
    """The texts of a table's cells; raises where a tag is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("table", "caption", "tr", "th", "td")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_population() -> None:
    assert repr(POPULATION) == "<Population clients 3, epsilon 0.5 to inf, delta 1e-05, records 1 to 10>"
    cells = Cells(POPULATION._repr_html_()).texts
    assert cells[:5] == ["Population", "clients", "3", "epsilon", "0.5 to inf"] and cells[-2:] == [
        "traits",
        "age",
    ]
    assert Cells(replace(POPULATION, traits={})._repr_html_()).texts[-1] == "none"


def test_a_plan() -> None:
    said = "rounds 30, clients 3, unit client, promise clients, noise at server"
    assert repr(PLAN) == f"<Plan made & <b>: {said}>"
    cells = Cells(PLAN._repr_html_()).texts
    assert cells[0] == "Plan: made & <b>" and cells[-2:] == ["a", "2"]


def test_a_certificate() -> None:
    certificate = certify(PLAN, POPULATION)
    worst = f"{certificate.spent[0]:.4g} of 0.5"
    said = f"rounds 30, clients 3, unit client, promise clients, worst spending {worst}"
    assert repr(certificate) == f"<Certificate made & <b>: {said}>"
    cells = Cells(certificate._repr_html_()).texts
    assert cells[cells.index("epsilon, server") + 1] == "inf" and cells[-1] == certificate.accountant


def test_phases_and_accountants_are_shown_in_one_line() -> None:
    assert repr(PLAN.phases[0]) == "<Phase rounds 30, clients 3, pools 1>"
    assert [repr(each) for each in (Pld(), Renyi(), Reference())] == ["Pld()", "Renyi()", "Reference()"]
