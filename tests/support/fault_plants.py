"""Mistakes in the code that `faults` must find: each is a line of the source, changed."""

import inspect
import textwrap
from typing import Any, NamedTuple

from discretion import files
from discretion.guard import guard, own_ledger
from discretion.ledger import store
from discretion.runs import execute, folder
from discretion.training import loop


class Plant(NamedTuple):
    """A mistake: in a function of this owner, of this name, text in place of other text."""

    scenario: str
    owner: Any
    name: str
    changes: dict[str, str]
    users: tuple[Any, ...] = ()  # modules that imported the function


PLANTS = {
    "the last commit is not flushed": Plant("ledger", store.Book, "_connect", {"= EXTRA": "= FULL"}),
    "an interrupted answer is made again": Plant(
        "guard",
        guard.Guard,
        "_release",
        {"if self._policy.test_seed is None or order.round != done:": "if order.round != done:"},
    ),
    "a guard reserves after it drew": Plant(
        "guard",
        guard.Guard,
        "_release",
        {
            "self._take(order, turn, asked)": "pass",
            "answer = messages": "self._take(order, turn, asked); answer = messages",
        },
    ),
    "a guard's folder is not flushed": Plant(
        "guard", files, "make_folder", {"sync(path.parent)": "pass"}, (own_ledger,)
    ),
    "a run reserves after it drew": Plant(
        "secret run",
        loop,
        "train",
        {
            "willing = ledger.reserve(run, state.round + 1, kept)": "willing = None",
            "yield state\n        kept": "ledger.reserve(run, state.round, kept); yield state\n        kept",
        },
        (execute,),
    ),
    "a file is renamed before it is flushed": Plant(
        "run", files, "write_safely", {"os.fsync(file.fileno())": "pass"}, (execute, folder)
    ),
    "a file is written in its place": Plant(
        "run", files, "write_safely", {"draft.replace(path)": "path.write_bytes(content)"}, (execute, folder)
    ),
}


def plant(name: str) -> None:
    """Make the mistake in this process."""
    _, owner, function, changes, users = PLANTS[name]
    source = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    for text, other in changes.items():
        assert source.count(text) == 1, (name, text)
        source = source.replace(text, other)
    module = inspect.getmodule(owner)
    assert module
    scope = dict(vars(module))
    exec(source, scope)
    for each in (owner, *users):
        setattr(each, function, scope[function])
