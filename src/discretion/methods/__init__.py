"""The methods by name: each a function from a population to a plan, in one short file."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from discretion.errors import ConfigError, nearest
from discretion.methods import dp_fedavg, fedavg, idp_fedavg
from discretion.plan import Plan
from discretion.population import Population


@dataclass(frozen=True)
class Method:
    name: str
    title: str
    plan: Callable[..., Plan]
    unit: str
    protects: str  # against whom
    reads: str  # what a plan is made from
    idea: str
    paper: str

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """What the method takes besides the population."""
        return dict(list(inspect.signature(self.plan).parameters.items())[1:])


DEFAULT = "idp_fedavg"

_MODELS = "whoever sees the released models; the server is trusted"
_BUDGETS = "budgets"

METHODS = {
    method.name: method
    for method in (
        Method(
            "fedavg",
            "FedAvg",
            fedavg.plan,
            "none",
            "nobody: epsilon is infinite",
            "nothing",
            "Plain averaging without clip or noise: the ceiling that private methods aim at.",
            "McMahan et al., AISTATS 2017",
        ),
        Method(
            "dp_fedavg",
            "DP-FedAvg",
            dp_fedavg.plan,
            "client",
            _MODELS,
            "the strictest budget",
            "One clip and one noise, strong enough for the strictest client.",
            "McMahan et al., ICLR 2018",
        ),
        Method(
            "idp_fedavg",
            "IDP-FedAvg (clip)",
            idp_fedavg.plan_by_clip,
            "client",
            _MODELS,
            _BUDGETS,
            "One noise; each client is clipped at the norm that its own budget allows.",
            "Boenisch et al., NeurIPS 2023; Kiani et al., ICLR 2025",
        ),
        Method(
            "idp_fedavg_sampling",
            "IDP-FedAvg (sampling)",
            idp_fedavg.plan_by_rate,
            "client",
            _MODELS,
            _BUDGETS,
            "One noise and one clip; each client comes as often as its own budget allows.",
            "Boenisch et al., NeurIPS 2023; Kiani et al., ICLR 2025",
        ),
    )
}


def find(name: str) -> Method:
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}.{nearest(name, METHODS)} Known: {', '.join(METHODS)}")
    return METHODS[name]


def make_plan(name: str, population: Population, parameters: dict[str, Any]) -> Plan:
    """Plan by the named method; `parameters` beyond what it takes are refused, missing ones named."""
    method = find(name)
    for given in parameters:
        if given not in method.parameters:
            raise ConfigError(f"{name} has no parameter {given!r}.{nearest(given, method.parameters)}")
    missing = [
        given
        for given, parameter in method.parameters.items()
        if given not in parameters and parameter.default is inspect.Parameter.empty
    ]
    if missing:
        raise ConfigError(f"{name} needs {', '.join(missing)}")
    if not 0 < parameters.get("rate", 1.0) <= 1 or not parameters.get("clip", 1.0) > 0:
        raise ConfigError(f"{name}: a rate lies above 0 and at most at 1, a clip above 0")
    if parameters.get("rounds", 1) < 1:
        raise ConfigError(f"{name}: there is at least 1 round")
    return method.plan(population, **parameters)
