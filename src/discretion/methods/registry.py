"""Registry of methods: a decorator registers each one where it is written, with facts and parameters."""

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args

from discretion import outside
from discretion.arrays import Floats
from discretion.errors import ConfigError, nearest
from discretion.methods.parameters import MethodParameter, parameters_of
from discretion.plan.plan import Adversary, NoiseAt, Plan
from discretion.plan.population import Population

Planner = Callable[..., Plan]
Registered = TypeVar("Registered", bound=Planner)
Protected = Literal["client", "record", "none", "undeclared"]


@dataclass(frozen=True)
class Details:
    """Intermediate results of a method that its plan does not hold: curves, chances and numbers, by name."""

    rounds: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)  # figures, each of (T,) curves
    chance: Floats | None = None  # (N,) of each client in one draw
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """Return the details as `jsonfile.dump` takes them."""
        rounds = {title: dict(curves) for title, curves in self.rounds.items()}
        return {"rounds": rounds, "chance": self.chance, "numbers": dict(self.numbers)}


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What is known of a method before it plans; as a decorator it registers the planning function.

    The method is called `name`, or else like the function; outside this package `module:function`.
    """

    title: str
    idea: str  # one sentence
    paper: str
    reads: str  # what decides who takes part, and how
    unit: Protected
    noise_at: NoiseAt | None  # of its plans, with default parameters
    promise: Adversary | None
    reads_raw: bool = False  # reads clients' data without noise, unless a parameter pays for it
    note: str = ""  # on its parameters
    explain: Callable[[Population, Mapping[str, Any]], Details] | None = None  # takes a plan's parameters
    name: str = ""
    order: int = 1000  # among all methods; equals are sorted by name

    def __call__(self, plan: Registered) -> Registered:
        """Register a planning function, and return it as it is."""
        own = self.name or plan.__name__
        if self.unit not in get_args(Protected):
            raise ConfigError(f"method {own}: found unit {self.unit!r}, expected client, record or none")
        if not plan.__module__.startswith(f"{__package__}."):
            own = f"{plan.__module__}:{own}"
        _registered[plan] = Method(**{**vars(self), "name": own}, plan=plan)
        return plan


method = Declaration
server_noise_method = partial(method, unit="client", noise_at="server", promise="clients")
secure_sum_method = partial(method, unit="client", noise_at="secure_sum", promise="server")
record_method = partial(method, unit="record", noise_at="steps", promise="server")
secure_sum_plan = partial(Plan, noise_at="secure_sum", promise="server")
record_plan = partial(Plan, noise_at="steps", promise="server")


@dataclass(frozen=True, kw_only=True)
class Method(Declaration):
    """A function from a population to a plan, under its own name or as `package.module:function`."""

    plan: Planner

    @cached_property
    def parameters(self) -> dict[str, MethodParameter]:
        """Return what the method takes besides the population, by name."""
        return parameters_of(self.plan, self.name)

    def make(self, population: Population, given: Mapping[str, Any]) -> Plan:
        """Return the plan for the population; unknown, missing and refused parameters raise ConfigError."""
        if not isinstance(population, Population):
            raise ConfigError(
                f"{self.name}: found {population!r:.60} as the population; expected a "
                "discretion.Population, such as Population.of([1.0, 3.0])"
            )
        for name in given:
            if name not in self.parameters:
                raise ConfigError(
                    f"{self.name} has no parameter {name!r}.{nearest(name, self.parameters)} "
                    f"It takes {', '.join(self.parameters) or 'none'}."
                )
        if missing := [name for name, each in self.parameters.items() if each.required and name not in given]:
            raise ConfigError(f"{self.name} needs {', '.join(missing)}: give a value for each")
        for name, value in given.items():
            if not self.parameters[name].accepts(value):
                wanted = self.parameters[name].expected
                raise ConfigError(f"{self.name}: {name} is {value!r}; expected {wanted}")
        made = self.plan(population, **given)
        if not isinstance(made, Plan):
            raise ConfigError(f"{self.name} returned {made!r:.80}; expected a discretion.Plan")
        defaults = {name: each.default for name, each in self.parameters.items()}
        told = {k: v for k, v in {**defaults, **given}.items() if self.parameters[k].tells(v)}
        return replace(made, method=self.name, parameters=told)


_registered: dict[Planner, Method] = {}


def discover(folders: Iterable[str]) -> dict[str, Method]:
    """Import every module of the folders of this package; return its methods by name, in their order."""
    for found in pkgutil.iter_modules(folders):
        if not found.ispkg:
            import_module(f"{__package__}.{found.name}")
    inside = [each for each in _registered.values() if not outside.is_outside(each.name)]
    if twice := {each.name for each in inside if sum(each.name == other.name for other in inside) > 1}:
        raise ImportError(f"expected one method of each name; found several called {', '.join(twice)}")
    return {each.name: each for each in sorted(inside, key=lambda each: (each.order, each.name))}


def of_function(plan: Planner) -> Method:
    """Return the method that a function was registered as, or else one made from its name and docstring."""
    return _registered.get(plan) or Method(
        name=f"{plan.__module__}:{plan.__name__}",
        plan=plan,
        title=plan.__name__,
        idea=" ".join((inspect.getdoc(plan) or "").partition("\n\n")[0].split()),
        paper="not declared",
        reads="not declared",
        unit="undeclared",
        noise_at=None,
        promise=None,
    )


def from_outside(name: str) -> Method:
    """Import `package.module:function` and return it as a method of exactly that name."""
    plan = outside.load(name, ConfigError)
    if not inspect.isfunction(plan):
        raise ConfigError(
            f"{name} is a {type(plan).__name__}; expected a function from a population to a plan"
        )
    return replace(of_function(plan), name=name)
