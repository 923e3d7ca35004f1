"""Files, folders and keys that settings name: looked for before anything is planned or written."""

from collections.abc import Callable, Iterator
from pathlib import Path

from discretion.clients.messages import read_key
from discretion.clients.transport import read_addresses
from discretion.errors import ConfigError, InputError, listed
from discretion.plan.population import Population
from discretion.runs.config import Config


def require_places(config: Config, reached: bool = True) -> None:
    """Refuse settings that name what is not there, all at once; `reached`: also what reaches clients."""
    if problems := missing_places(config, reached):
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise ConfigError("\n  ".join([f"settings: {count}, nothing planned or written", *listed(problems)]))


def missing_places(config: Config, reached: bool = True) -> list[str]:
    """Return a sentence for all that settings name and that is not there, or cannot be read."""
    return [*_records(config), *_folders(config), *(_clients(config) if reached else ())]


def _records(config: Config) -> Iterator[str]:
    data = config.data
    yield from _file("population.csv", config.population.csv)
    yield from _file("data.path", data.path)
    yield from _file("data.test", data.test_file)
    if data.name != "csv" and (data.path or data.test or data.labels or data.scales):
        said = f'{data.name} has records of its own; name = "csv" is for your tables'
        yield f"data.path, data.test, data.labels, data.scales: {said}"
    elif data.name == "csv" and not data.path and not config.clients.elsewhere:
        yield "data.path is empty: name the table that clients' records are in"
    elif data.name == "csv" and not data.path and not data.test_file:
        yield "there are no test records: name a table of them (data.test), or one of all records (data.path)"
    elif data.name == "csv" and not data.hold_out and not data.test_file:
        yield "there are no test records: name a table of them (data.test), or let data.hold_out be above 0"


def _folders(config: Config) -> Iterator[str]:
    ledger = Path(config.ledger)
    if config.ledger and ledger.is_dir():
        yield f"ledger: {ledger} is a folder, expected a file, which may be new"
    elif config.ledger and not ledger.absolute().parent.is_dir():
        yield f"ledger: there is no folder {ledger.parent} for {ledger.name}; make the folder first"
    if config.after and not Path(config.after).is_dir():
        yield f"after: there is no run folder {config.after}"


def _clients(config: Config) -> Iterator[str]:
    """Yield what is missing to reach the clients: addresses, the operator's key, Flower's settings."""
    how = config.clients
    if how.elsewhere:
        found = [*_file("clients.key", how.key, "`discretion guards` and `discretion key` write one")]
        yield from found or _unreadable(read_key, Path(how.key))
    if how.where == "guards":
        found = [*_file("clients.addresses", how.addresses, "`discretion guards` writes one")]
        yield from found or _unreadable(read_addresses, Path(how.addresses))
    if how.where != "here":
        yield from _file("secure_sum.roster", config.secure_sum.roster)
    if how.where == "flower" and how.home and not (Path(how.home) / "config.toml").is_file():
        yield f"clients.home: there is no config.toml in {how.home}; `discretion flower init` makes one"


def _file(name: str, path: str, needed: str = "") -> Iterator[str]:
    """Yield a sentence where there is no such file, or where a file is needed and none is named."""
    if needed and not path:
        yield f"{name} is empty, expected a file: {needed}"
    elif path and not Path(path).is_file():
        yield f"{name}: there is no file {path}"


def _unreadable(read: Callable[[Path], object], path: Path) -> Iterator[str]:
    try:
        read(path)
    except InputError as problem:
        yield str(problem)


def require_addresses(config: Config, population: Population) -> None:
    """Refuse addresses that do not name every client; all that are missing are listed."""
    if config.clients.where != "guards" or not config.clients.addresses:
        return
    path = Path(config.clients.addresses)
    known = read_addresses(path)
    if missing := [name for name in population.client if name not in known]:
        lines = [f"{path}: no address of {len(missing)} of {len(population)} clients", *listed(missing)]
        raise ConfigError("\n  ".join(lines))
