"""The methods by name: each a function from a population to a plan, in one short file."""

import inspect
from dataclasses import replace
from typing import Any, get_args

from discretion.errors import ConfigError, nearest
from discretion.methods.details import Details
from discretion.methods.table import METHODS, Method
from discretion.plan import Accounting, Plan
from discretion.population import Population

__all__ = ["DEFAULT", "METHODS", "Details", "Method", "explain", "find", "make_plan"]

DEFAULT = "idp_fedavg"


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
    if not 0 < parameters.get("batch", 1.0) <= 1 or not parameters.get("steps", 1) >= 1:
        raise ConfigError(
            f"{name}: a batch's rate lies above 0 and at most at 1, and there is at least 1 step"
        )
    if parameters.get("rounds", 1) < 1:
        raise ConfigError(f"{name}: there is at least 1 round")
    if parameters.get("accounting", "tight") not in get_args(Accounting):
        raise ConfigError(f"{name}: accounting is tight, or paper for the paper's own formula")
    defaults = {given: parameter.default for given, parameter in method.parameters.items()}
    return replace(method.plan(population, **parameters), parameters={**defaults, **parameters})


def explain(plan: Plan, population: Population) -> Details:
    """What the method found on the way to this plan of the population; nothing for most methods."""
    found = find(plan.method).explain
    if found is None:
        return Details()
    taken = list(inspect.signature(found).parameters)[1:]
    return found(population, **{name: plan.parameters[name] for name in taken})
