"""The methods by name: each a function from a population to a plan, in one short file."""

import inspect
import math
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


WHOLE = {"rounds", "steps", "groups", "memory"}
SHARES = {"rate", "batch", "saving_low", "saving_high", "kept_low", "kept_high"}  # above 0, at most 1
POSITIVE = {"clip", "reward", "clip_learning_rate", "bit_noise", "budget_start", "budget_end"}


def _check(what: str, given: str, value: Any) -> None:
    if given == "accounting" and value not in get_args(Accounting):
        raise ConfigError(f"{what} is {value!r}: expected tight, or paper for the paper's own formula")
    if given in WHOLE | SHARES | POSITIVE and (isinstance(value, str | bool) or not math.isfinite(value)):
        raise ConfigError(f"{what} is {value!r}: expected a number")
    if given in WHOLE and (value < 1 or value % 1):
        raise ConfigError(f"{what} is {value}: expected a whole number, at least 1")
    if given in SHARES and not 0 < value <= 1:
        raise ConfigError(f"{what} is {value}: expected more than 0 and at most 1")
    if given in POSITIVE and not value > 0:
        raise ConfigError(f"{what} is {value}: expected more than 0")
    if given == "quantile" and not 0 < value < 1:
        raise ConfigError(f"{what} is {value}: expected more than 0 and less than 1")
    if given == "average" and not 0 <= value < 1:
        raise ConfigError(f"{what} is {value}: expected at least 0 and less than 1")
    if given == "tradeoff" and not 0 <= value < math.inf:
        raise ConfigError(f"{what} is {value}: expected at least 0")


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
    for given, value in parameters.items():
        _check(f"{name}: {given}", given, value)
    defaults = {given: parameter.default for given, parameter in method.parameters.items()}
    return replace(method.plan(population, **parameters), parameters={**defaults, **parameters})


def explain(plan: Plan, population: Population) -> Details:
    """What the method found on the way to this plan of the population; nothing for most methods."""
    found = find(plan.method).explain
    if found is None:
        return Details()
    taken = list(inspect.signature(found).parameters)[1:]
    return found(population, **{name: plan.parameters[name] for name in taken})
