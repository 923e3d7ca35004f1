"""Parameters of methods: how an annotation declares type, bounds and meaning, and annotations in common."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from discretion.errors import ConfigError
from discretion.plan import plan as plans
from discretion.plan.phase import MOST_ROUNDS

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]

Rounds = Annotated[Count, Field(le=MOST_ROUNDS, description="rounds of training")]
Accounting = Annotated[
    plans.Accounting,
    Field(description="noise by exact accounting (tight) or by the paper's own formula (paper)"),
]

# every client takes part by a secret coin
Rate = Annotated[Share, Field(description="each client's chance of taking part in a round (sampling rate)")]
MeanRate = Annotated[Share, Field(description="mean of the clients' rates")]
UpdateClip = Annotated[Positive, Field(description="bound on an update's norm (clipping norm)")]
Groups = Annotated[Count, Field(description="groups of like budgets, at most")]
Average = Annotated[
    Part,
    Field(
        description="the result is a mean of the models after each round, in which each model counts this "
        "many times as much as the next; 0: the last model"
    ),
]
Dropout = Annotated[
    Part, Field(description="share of a pool's clients that may fail to add their noise shares in a round")
]
LATE = object()  # in an annotation: plans do not tell the parameter's default, see `tells`
LateDropout = Annotated[Dropout, LATE]

# clients are drawn, and noise is added to every step on their records
DrawRate = Annotated[Share, Field(description="draws in a round, as a share of the clients")]
CohortRate = Annotated[Share, Field(description="cohort of a round, as a share of the clients")]
RecordClip = Annotated[Positive, Field(description="bound on the norm of one record's gradient")]
Steps = Annotated[Count, Field(description="noisy steps in a turn")]
Batch = Annotated[Share, Field(description="chance of a record to be in a step's batch")]
Tradeoff = Annotated[float, Field(ge=0, description="weight of noise against bias; 0: the default")]
Reward = Annotated[Positive, Field(description="reward for each unit of privacy level")]
Seed = Annotated[int, Field(ge=0, description="seed of the draws")]

KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
REFUSED: dict[Any, tuple[type, ...]] = {bool: (str,), int: (str, bool), float: (str, bool)}
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}  # attributes of annotated_types


@dataclass(frozen=True)
class MethodParameter:
    """One parameter of a method: type, bounds, default and meaning, as its annotation declares them."""

    name: str
    annotation: Any  # such as Annotated[float, Field(gt=0, description="…")]
    default: Any  # inspect.Parameter.empty where a value must be given

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @cached_property
    def _field(self) -> FieldInfo:
        return FieldInfo.from_annotation(self.annotation)

    @property
    def meaning(self) -> str:
        """Return the description of the annotation's Field; empty where it has none."""
        return self._field.description or ""

    def tells(self, value: Any) -> bool:
        """Return whether a plan tells this value: not if it is the default of a LATE parameter.

        So a parameter that is added to a method changes no plan, digest or seed as long as it is not used.
        """
        return LATE not in self._field.metadata or value != self.default

    @property
    def expected(self) -> str:
        """Return the accepted values in words, such as "a number above 0 and at most 1"."""
        kind = self._field.annotation
        if get_origin(kind) is Literal:
            return f"one of {', '.join(map(str, get_args(kind)))}"
        bounds = [
            f"{words} {getattr(bound, attribute):,.10g}"
            for bound in self._field.metadata
            for attribute, words in BOUNDS.items()
            if getattr(bound, attribute, None) is not None
        ]
        return ", ".join(filter(None, [KINDS.get(kind, str(kind)) if kind else "", " and ".join(bounds)]))

    def accepts(self, value: Any) -> bool:
        """Return whether a value has the type and keeps the bounds; a text or a truth value is no number."""
        if isinstance(value, REFUSED.get(self._field.annotation, ())):
            return False
        try:
            TypeAdapter(self.annotation, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
        except ValidationError:
            return False
        return True


def parameters_of(plan: Callable[..., Any], method: str) -> dict[str, MethodParameter]:
    """Return what a planning function takes besides the population, by name; all of it must have types."""
    taken = list(inspect.signature(plan).parameters.values())[1:]
    hints = get_type_hints(plan, include_extras=True)
    for each in taken:
        if each.name not in hints or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise ConfigError(
                f"{method}: parameter {each} has no type, or is not a single parameter; expected "
                f"a function of the population and of annotated parameters, such as {each.name}: float"
            )
    return {each.name: MethodParameter(each.name, hints[each.name], each.default) for each in taken}
