"""A prepared run, executed round by round; resuming after a crash is executing it again."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import safetensors.numpy

from discretion.clients.remote import RemoteClients
from discretion.clients.transport import Transport
from discretion.clients.turnout import Turnout
from discretion.errors import AnswersError, FolderError, InputError
from discretion.files import trying_to, write_safely
from discretion.ledger.ledger import Ledger
from discretion.runs import preflight
from discretion.runs.build import load_data, server_of
from discretion.runs.elsewhere import remote_clients
from discretion.runs.folder import RESTORE, alone, read_checkpoint, write_checkpoint
from discretion.runs.history import Journal
from discretion.runs.manifest import compare, write_manifest
from discretion.runs.prepare import Task, build_task, first_model
from discretion.runs.read import AnyRun, Run, Timed, read_run, read_runs
from discretion.timing import Profile
from discretion.training.loop import State, train
from discretion.training.server_update import Vector


@dataclass(frozen=True)
class Progress:
    """What is known after a round; nothing in it depends on who took part."""

    round: int
    rounds: int
    accuracy: float | None
    spent: float  # the largest share of a budget that any client has spent
    turnout: Turnout | None = None  # None where clients are in this process


OnRound = Callable[[Progress], None]
OnPreflight = Callable[[preflight.Preflight], None]


def execute(
    run: AnyRun,
    on_round: OnRound | None = None,
    profile: Profile | None = None,
    transport: Transport | None = None,
    overrides: Sequence[str] = (),
    tell: OnPreflight | None = None,
    asked: bool = False,
) -> Run:
    """Do the rounds of a prepared run that are left, and return the run as it is then.

    A run keeps its settings; `overrides` may change only where, and how fast, it is executed.

    Guards are asked first whether they are ready, unless they were `asked` just before; `tell` is given what
    they said. Where too few are, or somebody takes labels, features or model for others, nothing is charged.

    History is written before the checkpoint, and the checkpoint before the ledger's commit: after a crash at
    any point the checkpoint says which rounds are done, later lines of history are dropped, and earlier
    reservations are committed. At the end come the manifest of all files, the model, and only then is the
    checkpoint removed. A folder with a file that is not what was written there is refused (`compare`).
    """
    in_memory = isinstance(run, Run)
    (run,) = read_runs([run])
    folder = run.files
    folder.require()
    with alone(folder):
        if run.finished:
            return run
        compare(folder)
        _require_same(run, read_run(folder) if in_memory else run)
        run = replace(run, config=run.config.executed_with(overrides, str(folder.config)))
        config = run.config
        task = run.task or build_task(config, load_data(config), run.population, folder.secret())
        if task.name != run.about.id:
            raise InputError(
                f"{folder.path} was made from other settings, clients, data, device or model code than are "
                "there now, and a run keeps its own: put them back, or start a new run"
            )
        profile, before = profile or Profile(), run.refreshed().profile
        with Ledger(folder.ledger(config), run.population, config.rule) as ledger:
            if config.clients.where != "here":  # first, since guards keep reserved what an open run may spend
                _finish_earlier_runs(run, task, ledger, transport)
            if not asked:
                _preflight(run, task, transport, tell)
            try:
                state = _execute(run, task, ledger, on_round, profile, transport)
            finally:
                if config.train.randomness == "seeded":  # else timing is secret: it tells who took part
                    _add_profile(run, profile, before)
            _end(run, safetensors.numpy.save(task.clients.named(state.result)))
    return run.refreshed()


def _preflight(run: Run, task: Task, transport: Transport | None, tell: OnPreflight | None) -> None:
    """Ask guards whether they are ready; raise where the run may not go on."""
    if (found := preflight.ask(run, task, transport)) is not None:
        if tell:
            tell(found)
        found.require()


def _require_same(run: Run, found: Run) -> None:
    """Refuse a run that is not the one found in its folder, as after the folder was made anew."""
    its = (found.about.id, found.config.identity(), found.certificate.plan, found.certificate.population)
    if run.broken or its != (run.about.id, run.config.identity(), run.plan.digest(), run.population.digest()):
        raise InputError(
            f"{run.folder} holds another run than this one{f' ({run.broken})' if run.broken else ''}: its "
            "settings, plan, population and certificate must fit each other. Read it again with read_run."
        )


def _execute(
    run: Run,
    task: Task,
    ledger: Ledger,
    on_round: OnRound | None,
    profile: Profile,
    transport: Transport | None,
) -> State:
    """Do the rounds that are left; return the last state."""
    folder, config, plan = run.files, run.config, run.plan
    state = _last_state(run, first_model(config, task.clients))
    history, answers = journals = [Journal(path, state.round) for path in (folder.history, folder.answers)]
    elsewhere = remote_clients(run, task, transport)
    how = config.train
    rounds = train(
        plan,
        run.certificate,
        elsewhere or task.clients,
        ledger,
        state,
        run=run.about.id,
        seed=config.seed if how.randomness == "seeded" else None,
        server=server_of(config),
        accept_no_privacy=how.accept_no_privacy,
        profile=profile,
        shares=("discard" if plan.summed else config.clients.missing) if elsewhere else "here",
    )
    with profile("other"), _stops_on_record(elsewhere, answers):
        if elsewhere:
            with trying_to("write", folder.answers):
                folder.answers.touch(mode=0o600)  # it tells whose coins came up
            if state.round < plan.rounds:
                elsewhere.begin(state.round + 1)
        for state in rounds:
            record: dict[str, Any] = {"round": state.round}
            if state.round == plan.rounds or state.round % how.evaluate_every == 0:
                with profile("evaluate"):
                    quality = task.clients.evaluate(state.result)
                loss = math.inf if math.isnan(quality.loss) else quality.loss
                record |= {"accuracy": quality.accuracy, "loss": loss}
            heard = elsewhere.taken() if elsewhere else []
            with profile("write"):
                history.add([record])
                if heard:
                    answers.add([asdict(each) for each in heard])
                write_checkpoint(folder, state, {each.path.name: each.digest for each in journals})
            profile.rounds += 1
            if on_round:
                spent = run.certificate.spending.share(state.round)
                turnout = heard[-1].turnout if heard else None
                on_round(Progress(state.round, plan.rounds, record.get("accuracy"), spent, turnout))
    if elsewhere:
        elsewhere.finish(plan.rounds)
    return state


@contextmanager
def _stops_on_record(elsewhere: RemoteClients | None, answers: Journal) -> Iterator[None]:
    """Put the round in which too few clients answer on record: a resumed run drops it, and does it anew."""
    try:
        yield
    except AnswersError:
        if elsewhere:
            answers.add([asdict(each) for each in elsewhere.taken()])
        raise


def _last_state(run: Run, first: Vector) -> State:
    """Return the state after the last finished round; before the first, one with this model."""
    folder, state = run.files, read_checkpoint(run.files)
    if state is None:
        if (done := run.refreshed().history.done) > 1:  # a crash in the first round leaves one line at most
            raise FolderError(f"{folder.checkpoint} is missing, but {done} rounds are done. {RESTORE}")
        return State.start(first)
    if state.model.shape != first.shape or state.round > run.plan.rounds:
        raise FolderError(
            f"{folder.checkpoint} is of {state.model.size} parameters after {state.round} rounds, expected "
            f"{first.size} after at most {run.plan.rounds}. {RESTORE}"
        )
    return state


def _end(run: Run, model: bytes) -> None:
    """Write the manifest of all files, then the model, which says that the run is finished."""
    folder = run.files
    write_manifest(folder, {folder.model: model})
    write_safely(folder.model, model)
    with trying_to("remove", folder.checkpoint):
        folder.checkpoint.unlink(missing_ok=True)


def _finish_earlier_runs(run: Run, task: Task, ledger: Ledger, transport: Transport | None) -> None:
    """Tell guards that the runs that this one continues are over, so that they free what was not used."""
    while run.config.after:
        run = read_run(run.config.after)
        if (clients := remote_clients(run, task, transport)) is not None:
            clients.finish(len(ledger.states(run.about.id)))


def _add_profile(run: Run, profile: Profile, before: Timed | None) -> None:
    """Add this execution's times to those of earlier ones; executions that were killed are missing."""
    before = before or Timed(rounds=0, seconds={})
    new = profile.to_record()["seconds"]
    seconds = {part: took + before.seconds.get(part, 0.0) for part, took in new.items()}
    record = {"rounds": before.rounds + profile.rounds, "seconds": seconds}
    write_safely(run.files.profile, (json.dumps(record) + "\n").encode())
