"""The contract of methods: clauses that a method's plans keep, for its own tests and for outsiders'."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from discretion.accounting import Certificate, certify
from discretion.errors import BudgetError, ConfigError, DiscretionError
from discretion.ledger.ledger import Ledger
from discretion.methods import Method, find
from discretion.methods.registry import Planner, of_function
from discretion.plan import Phase, Plan, Population, budgets
from discretion.plan.selection_rules import Reading
from discretion.training.loop import State, next_state, train
from discretion.training.orders import Order, Statistics, Updates
from discretion.training.release import noisy_sum

SETTINGS: Mapping[str, float] = {"rounds": 6, "rate": 0.2, "clip": 0.8}
POPULATIONS = {
    "usual": Population.of(budgets.draw("groups:1,3,6", 30, np.random.default_rng(0)), 1e-4, 10),
    "one public": Population.of([1.0, 3.0, np.inf, 6.0, 3.0, 1.0], 1e-4, [5, 10, 20, 10, 5, 10]),
    "single": Population.of([2.0], 1e-4),
    "equal": Population.of([2.0] * 5, 1e-4),
    "all public": Population.of([np.inf] * 3, 1e-4),
    "far apart": Population.of([0.5, 10.0, 1e3], 1e-5),
}
Claim = tuple[object, str]  # what must hold, and the sentence to say where it does not
USED = 0.995  # share of its budget that the client that spends most spends at least
NEAR = 0.05  # of the planned noise, as it is measured


@dataclass(frozen=True, eq=False)
class Trial:
    """One method with one choice of parameters, planned for one population."""

    method: Method
    parameters: Mapping[str, Any] = field(default_factory=dict)  # besides rounds, rate and clip
    population: Population = POPULATIONS["usual"]

    @property
    def given(self) -> dict[str, Any]:
        """Return all parameters that the method is given."""
        shared = {name: value for name, value in SETTINGS.items() if name in self.method.parameters}
        return {**shared, **self.parameters}

    @property
    def mode(self) -> str:
        return str(self.parameters.get("accounting", "tight"))

    @property
    def protects(self) -> bool:
        """Return whether budgets must be kept: not in paper mode, nor where raw data are read."""
        paid = float(self.parameters.get("read_share", 0)) > 0
        return self.mode == "tight" and self.method.unit != "none" and (paid or not self.method.reads_raw)

    @cached_property
    def plan(self) -> Plan:
        return self.method.make(self.population, self.given)

    @cached_property
    def certificate(self) -> Certificate:
        return certify(self.plan, self.population)

    def require(self, holds: object, sentence: str) -> None:
        """Raise AssertionError with the sentence unless it holds."""
        if not holds:
            options = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
            raise AssertionError(f"{self.method.name}{f' ({options})' if options else ''}: {sentence}")


@dataclass(frozen=True)
class _Pulling:
    """Clients that pull the model to their own number, or nowhere, with noise where the order asks for it."""

    pull: bool = True
    read: bool = True  # whether the plan declares that it reads their data

    def updates(self, order: Order) -> Iterator[Updates]:
        size = len(order.model)
        change = self.pull * (np.sin(order.clients[:, None] + np.arange(size)) - order.model)
        if (noisy := order.noisy) is not None:
            for i in range(len(order.clients)):
                source = noisy.source(i)
                for _ in range(noisy.steps):
                    change[i] += noisy_sum(np.zeros(size), float(noisy.noise[i]), source)
        yield Updates(order.clients, change.astype(np.float32))

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        if not self.read:
            raise AssertionError(
                f"the run reads {reading.rule} of the clients' data, which the plan does not declare"
            )
        numbers = {"class_balance": 4, "diversity": 2}.get(reading.rule, 1)
        value = np.abs(np.sin(order.clients[:, None] + np.arange(numbers)))
        return Statistics(np.arange(len(value)), value)


def planning_twice_gives_the_same_plan(trial: Trial) -> Iterator[Claim]:
    plan, again = trial.plan, trial.method.make(trial.population, trial.given)
    same = again.digest() == plan.digest()
    yield same, "planned twice, the plan differs; draw from stream(seed, Purpose.TURNS)"
    yield plan.method == trial.method.name, f"the plan names the method {plan.method}"
    wanted = trial.given.get("rounds", plan.rounds)
    yield plan.rounds == wanted, f"the plan has {plan.rounds} rounds; expected {wanted}"
    yield plan.accounting == trial.mode, f"the plan says accounting {plan.accounting}; expected {trial.mode}"
    told = {name for name, each in trial.method.parameters.items() if each.tells(each.default)}
    complete = told <= set(plan.parameters) <= set(trial.method.parameters)
    yield complete, "the plan lacks some of the method's parameters"


def every_shared_parameter_counts(trial: Trial) -> Iterator[Claim]:
    for name, value in trial.given.items():
        if name in SETTINGS:
            other = trial.method.make(
                trial.population, {**trial.given, name: value / 2 if name != "rounds" else 24}
            )
            plain = [replace(plan, parameters={}).digest() for plan in (trial.plan, other)]
            yield plain[0] != plain[1], f"the plan does not depend on {name}"
            if trial.protects:
                over = certify(other, trial.population).overspent
                yield not len(over), f"with another {name} a client spends more than its budget"


def the_plan_survives_json(trial: Trial) -> Iterator[Claim]:
    again = Plan.from_json(trial.plan.to_json())
    same = again.to_json() == trial.plan.to_json() and again.digest() == trial.plan.digest()
    yield same, "written as JSON and read again, the plan differs"


def every_budget_is_kept_and_used(trial: Trial) -> Iterator[Claim]:
    spent, budget = trial.certificate.spent, trial.population.epsilon
    trial.certificate.require(trial.plan)
    yield (spent <= budget).all(), "a client spends more than its budget"
    private = np.isfinite(budget)
    most = np.max(spent[private] / budget[private], initial=0.0) if private.any() else 1.0
    yield most > USED, f"no client spends more than {most:.1%} of its budget; expected {USED:.1%}"
    steps = trial.plan.steps()
    absent = ((steps.rate * steps.count) == 0).all(axis=0)
    yield (spent[absent] == 0).all(), "a client that never takes part spends some of its budget"
    yield (spent[~absent] > 0).all(), "a client that takes part spends nothing"


def no_privacy_is_said(trial: Trial) -> Iterator[Claim]:
    found = trial.certificate
    yield found.promises_nothing, "epsilon is finite, but no protection is declared"
    as_declared = (found.reads != "nothing") == trial.method.reads_raw
    yield as_declared, f"the plan reads {found.reads}; reads_raw says otherwise"
    refused = _raises(BudgetError, lambda: found.require(trial.plan), "no privacy")
    yield refused, "no privacy is not refused by default"
    found.require(trial.plan, accept_no_privacy=True)


def paper_mode_says_its_true_cost(trial: Trial) -> Iterator[Claim]:
    found = trial.certificate
    yield not np.isnan(found.spent).any(), "the true cost of a client is not a number"
    follows = found.promises_nothing == (trial.method.reads_raw or trial.method.unit == "none")
    yield follows, "the certificate's promise does not follow from what is declared"
    if len(found.overspent):
        yield _raises(BudgetError, lambda: found.require(trial.plan)), "an overspent budget is not refused"
    found.require(trial.plan, accept_no_privacy=True)


def spending_starts_at_nothing_and_never_falls(trial: Trial) -> Iterator[Claim]:
    epsilon = trial.certificate.spending.epsilon
    yield (epsilon[:, 0] == 0).all(), "a client has spent something before the first round"
    yield (epsilon[:, 1:] >= epsilon[:, :-1]).all(), "what a client has spent falls from a round to the next"


def many_rounds_cost_what_single_rounds_cost(trial: Trial) -> Iterator[Claim]:
    def apart(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        return tuple(replace(phase, rounds=1) for phase in phases for _ in range(phase.rounds))

    plan, many = trial.plan, tuple(replace(phase, rounds=3) for phase in trial.plan.phases)
    for phases in (plan.phases, many):
        one, other = (replace(plan, phases=each).steps() for each in (phases, apart(phases)))
        for name in ("rate", "multiplier", "count"):
            same = np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
            yield same, f"a phase of several rounds has another {name} than phases of one round each"


def a_fifth_less_noise_passes_a_budget(trial: Trial) -> Iterator[Claim]:
    sentence = "with a fifth less {} every budget is still kept: the plan has more noise than it needs"
    columns = {"noise": "noise"}
    if trial.plan.reading is not None:
        columns["read"] = "noise on what is read"
    for name, words in columns.items():
        less = tuple(replace(phase, **{name: 0.8 * getattr(phase, name)}) for phase in trial.plan.phases)
        over = certify(replace(trial.plan, phases=less), trial.population).overspent
        yield len(over), sentence.format(words)


def zero_updates_come_out_as_the_planned_noise(trial: Trial) -> Iterator[Claim]:
    """Pool by pool, measured in the first round; plans that read data keep all clients that they ask."""
    size, plan = 6_000, trial.plan
    if plan.reading is not None:
        plan = replace(plan, reading=replace(plan.reading, choose=len(trial.population)))
    plan = replace(plan, combine=replace(plan.combine, rule="sum", keep=(), memory=0, by="largest"))
    phase = plan.phases[0]
    releases = phase.releases if phase.turns is not None else np.ones(len(phase.noise))
    pools = [np.arange(len(phase.noise))] if plan.merges(phase) else np.arange(len(phase.noise))[:, None]
    for pool in pools:
        weight = np.zeros(len(phase.noise))
        weight[pool] = phase.weight[pool]
        alone = replace(plan, phases=(replace(phase, weight=weight),))
        state = State.start(np.zeros(size, np.float32))
        moved = float(next_state(alone, _Pulling(pull=False), state, run="r", seed=5).model.std())
        # no client is clipped here: what was noisy before is far above the clip of one record's gradient
        expected = float(np.sqrt(np.sum(releases * (weight * phase.noise) ** 2)))
        near, which = abs(moved - expected) <= NEAR * expected, f"zero updates of pool {pool[0]}"
        yield near, f"{which} move the model by noise of {moved:g}; expected {expected:g}"


def a_resumed_run_ends_with_the_same_model_and_the_certified_cost(trial: Trial) -> Iterator[Claim]:
    with tempfile.TemporaryDirectory() as folder:
        whole = _run(trial, Path(folder) / "whole", trial.plan.rounds)
        broken = _run(trial, Path(folder) / "broken", 2)
    yield whole.model.tobytes() == broken.model.tobytes(), "interrupted and resumed, a run ends differently"
    yield np.isfinite(whole.model).all() and whole.model.any(), "the trained model is not finite, or all 0"


def _run(trial: Trial, path: Path, stop_after: int) -> State:
    """Train until `stop_after`, stop before that round is committed, resume; return the last state."""
    plan, last = trial.plan, State.start(np.zeros(7, np.float32))
    clients = _Pulling(read=plan.reading is not None)
    for part in (stop_after, plan.rounds):
        with Ledger(path, trial.population) as ledger:
            started = (plan, trial.certificate, clients, ledger, last)
            for last in train(*started, run="r", seed=3, accept_no_privacy=True):
                if last.round == part < plan.rounds:
                    break
            if last.round == plan.rounds:
                spent, certified = ledger.spent(), trial.certificate.spent
    # of a fixed number of clients the ledger takes no credit for sampling; a certificate may
    same = (spent >= certified).all() if plan.sampling == "fixed_size" else np.array_equal(spent, certified)
    trial.require(same, "the ledger of the finished run has another cost than the certificate")
    return last


def wrong_parameters_are_refused(trial: Trial) -> Iterator[Claim]:
    for name, parameter in trial.method.parameters.items():
        for value in ("no such word", float("nan"), float("inf"), -1e9, 1e9, None):
            if not parameter.accepts(value):
                make = partial(trial.method.make, trial.population, {**trial.given, name: value})
                sentence = f"{name} = {value!r} is not refused; expected {parameter.expected}"
                yield _raises(ConfigError, make), sentence
        yield not parameter.accepts(None), f"parameter {name} accepts anything; give it a type"


def it_says_what_it_is(trial: Trial) -> Iterator[Claim]:
    method, plan = trial.method, trial.plan
    for name in ("title", "idea", "paper", "reads"):
        yield getattr(method, name), f"there is no {name}; give it to the decorator, or write a docstring"
    for name, parameter in method.parameters.items():
        yield parameter.meaning, f"parameter {name} has no meaning; add Field(description=…) to its type"
    if method.unit == "undeclared":
        return
    yield method.unit in (plan.unit, "none"), f"unit {method.unit} is declared, the plan has {plan.unit}"
    for name in ("noise_at", "promise"):
        declared, found = getattr(method, name), getattr(plan, name)
        fits = declared == found if method.unit != "none" else declared is None
        yield fits, f"{name} {declared} is declared, the plan has {found}"
    yield method.reads_raw == (plan.reading is not None), "reads_raw and what the plan reads disagree"
    usual = (plan.colluding, plan.dropout) == (1, 0.0)  # `discretion methods` tells everybody so
    yield (
        usual,
        f"by default the plan has colluding {plan.colluding} and dropout {plan.dropout}; expected 1, 0",
    )


def drop_outs_are_provided_for(trial: Trial) -> Iterator[Claim]:
    """Where a method lets clients drop out, those that stay bring the noise that is certified."""
    if "dropout" not in trial.method.parameters:
        return
    share = 0.3
    plan = trial.method.make(trial.population, {**trial.given, "dropout": share})
    yield plan.dropout == share, f"the plan has dropout {plan.dropout}; expected {share}, as it was given"
    for phase in plan.phases:
        staying = phase.holders - np.floor(share * phase.holders + 1e-9)
        brought = np.sqrt(np.maximum(staying, 1)) * plan.own_noise(phase)
        enough = (brought >= phase.noise[phase.pool] * (1 - 1e-9)).all()
        yield enough, "the shares of the clients that stay are less than the noise of their pool"
    if trial.protects:
        found = certify(plan, trial.population)
        yield not len(found.overspent), "with drop-outs a client spends more than its budget"
        used = np.max(found.share[np.isfinite(trial.population.epsilon)], initial=0.0)
        yield used > USED, f"with drop-outs no client spends more than {used:.1%} of its budget"


def any_population_can_be_planned_and_trained(trial: Trial) -> Iterator[Claim]:
    trial.certificate.require(trial.plan, accept_no_privacy=not trial.protects)
    yield not np.isnan(trial.certificate.spent).any(), "the cost of a client is not a number"
    state = State.start(np.zeros(7, np.float32))
    for _ in range(min(2, trial.plan.rounds)):
        state = next_state(trial.plan, _Pulling(), state, run="r", seed=1)
    yield np.isfinite(state.model).all(), "the trained model is not finite"


def _raises(problem: type[Exception], act: Callable[[], object], words: str = "") -> bool:
    try:
        act()
    except problem as error:
        return words in str(error)
    return False


Clause = Callable[[Trial], Iterator[Claim]]
AS_DECLARED: tuple[Clause, ...] = (it_says_what_it_is, wrong_parameters_are_refused)
PROTECTING: tuple[Clause, ...] = (every_budget_is_kept_and_used, a_fifth_less_noise_passes_a_budget)
CLAUSES: dict[str, Clause] = {
    clause.__name__: clause
    for clause in (
        planning_twice_gives_the_same_plan,
        the_plan_survives_json,
        *AS_DECLARED,
        *PROTECTING,
        no_privacy_is_said,
        paper_mode_says_its_true_cost,
        spending_starts_at_nothing_and_never_falls,
        many_rounds_cost_what_single_rounds_cost,
        zero_updates_come_out_as_the_planned_noise,
        a_resumed_run_ends_with_the_same_model_and_the_certified_cost,
        every_shared_parameter_counts,
        drop_outs_are_provided_for,
        any_population_can_be_planned_and_trained,
    )
}


def clauses_of(trial: Trial) -> dict[str, Clause]:
    """Return the clauses that hold for a trial: by its mode, and by whether it protects anybody."""
    left_out: set[Clause] = set()
    if not all(trial.method.parameters[name].required for name in trial.parameters):
        left_out.update(AS_DECLARED)
    if not trial.protects:
        left_out.update(PROTECTING)
    if trial.protects or trial.mode == "paper":
        left_out.add(no_privacy_is_said)
    if trial.mode != "paper":
        left_out.add(paper_mode_says_its_true_cost)
    return {name: clause for name, clause in CLAUSES.items() if clause not in left_out}


def check(trial: Trial, name: str) -> None:
    """Check one clause; raise AssertionError with a sentence that says what is broken."""
    try:
        for holds, sentence in CLAUSES[name](trial):
            trial.require(holds, sentence)
    except AssertionError:
        raise
    except Exception as error:  # of the method's own code, too
        kind = "" if isinstance(error, DiscretionError) else f"{type(error).__name__}: "
        raise AssertionError(f"{trial.method.name}: {name.replace('_', ' ')}: {kind}{error}") from error


def check_method(
    method: str | Planner, population: Population | None = None, parameters: Mapping[str, Any] | None = None
) -> None:
    """Check the whole contract in both accounting modes; raise AssertionError for the first broken clause.

    `method` is a name, `package.module:function`, or the planning function itself. `population` takes the
    place of a usual one of 30 clients; `parameters` are those needed besides rounds, rate and clip.
    """
    found = find(method) if isinstance(method, str) else of_function(method)
    given, usual = dict(parameters or {}), population or POPULATIONS["usual"]
    modes: list[dict[str, Any]] = [given]
    if "accounting" in found.parameters and found.parameters["accounting"].accepts("paper"):
        modes.append({**given, "accounting": "paper"})
    for mode in modes:
        trial = Trial(found, mode, usual)
        for name in clauses_of(trial):
            check(trial, name)
        for other in POPULATIONS.values():
            check(Trial(found, mode, other), any_population_can_be_planned_and_trained.__name__)
