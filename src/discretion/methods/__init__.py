"""Methods by name: each a function from a population to a plan, in one file that registers it."""

from collections.abc import Mapping
from typing import Any

from discretion import outside
from discretion.errors import ConfigError, nearest
from discretion.methods.registry import Details, Method, discover, from_outside, method
from discretion.plan import Plan, Population

__all__ = ["DEFAULT", "DEFAULTS", "METHODS", "Details", "Method", "explain", "find", "make_plan", "method"]

DEFAULT = "idp_fedavg"
DEFAULTS = {"client": DEFAULT, "record": "concert_records"}  # by what is protected
METHODS = discover(__path__)


def find(name: str) -> Method:
    """Return the method of a name, or of `package.module:function`, whose module is then imported."""
    if outside.is_outside(name):
        return from_outside(name)
    if name not in METHODS:
        raise ConfigError(
            f"unknown method {name!r}.{nearest(name, METHODS)} Known: {', '.join(METHODS)}, and your own as "
            "package.module:function"
        )
    return METHODS[name]


def make_plan(
    name: str, population: Population, parameters: Mapping[str, Any] | None = None, /, **more: Any
) -> Plan:
    """Return the plan of the named method: `make_plan("dp_fedavg", population, rounds=30, rate=0.1, clip=1)`.

    A parameter that the method does not take is refused, and a missing or refused one is named.
    """
    return find(name).make(population, {**(parameters or {}), **more})


def explain(plan: Plan, population: Population) -> Details:
    """Return what the method found on the way to this plan of the population; nothing for most methods."""
    found = find(plan.method).explain
    return found(population, plan.parameters) if found else Details()
