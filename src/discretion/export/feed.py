"""Feed of a run's public facts and rounds to a tracker, during the run or afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from discretion.errors import InputError
from discretion.export.facts import Facts, facts_of, values_at
from discretion.runs.config import TrackConfig
from discretion.runs.history import RoundRecord
from discretion.runs.read import read_run
from discretion.watch.follow import Tail

Target = Literal["csv", "parquet", "tensorboard", "mlflow"]


class Tracker(Protocol):
    """A tool that takes one run after the other."""

    def start(self, facts: Facts) -> int:
        """Begin a run or continue it; return the last of its rounds that the tool has already, or 0."""

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        """Take the values known after a round; rounds come in ascending order."""

    def finish(self, finished: bool) -> str:
        """Make the logged rounds durable, whether the run is finished or not; return where they are."""


class Feed:
    """What a run folder says, passed on to a tracker as the run proceeds.

    Guarantees:
        Nothing goes out but what `facts` makes of the plan, the certificate and the history: no seed, no key,
        no path, no client's name, nothing of who took part or refused.
        Each round goes out once, however often the run was killed and resumed.
        Where coins are secret, rounds go out together when training ends, with time stamps one second apart:
        the time of a round reveals who took part.
    """

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self._run = read_run(folder)
        self._history = Tail(self._run.files.history)
        self._tracker = tracker
        self._sent = tracker.start(facts_of(self._run))

    def step(self) -> None:
        """Pass on new rounds, unless their time is secret."""
        if not self._run.secret:
            self._pass_on()

    def finish(self) -> str:
        """Pass on all that is left and return where the tracker put it."""
        self._pass_on()
        return self._tracker.finish(self._run.finished)

    def _pass_on(self) -> None:
        _, lines = self._history.lines()
        for record in map(RoundRecord.parse, lines):
            if record.round > self._sent:
                self._tracker.log(record.round, values_at(self._run, record))
                self._sent = record.round


def open_tracker(to: Target, out: str, run: Path) -> Tracker:
    """Open a tracker that writes to `out`: a file, a folder or an address; empty for the tool's default."""
    try:
        if to == "tensorboard":
            from discretion.export.tensorboard import TensorBoard

            return TensorBoard(Path(out) if out else run / "tensorboard", several=bool(out))
        if to == "mlflow":
            from discretion.export.mlflow import MLflow

            return MLflow(out)
        from discretion.export.tables import Csv, Parquet

        return (Csv if to == "csv" else Parquet)(Path(out or f"{run.resolve().name}.{to}"))
    except ModuleNotFoundError as missing:
        raise InputError(
            f"{to} needs the package {missing.name}, which is not installed: pip install 'discretion[track]'"
        ) from None


@contextmanager
def tracking(folder: Path, how: TrackConfig, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each round; it does nothing if the run is not tracked.

    A tracker that fails does not stop the training: the problem is said once, and rounds are no longer sent.
    """
    if not how.to:
        yield lambda: None
        return
    feeds = [Feed(folder, open_tracker(how.to, how.out, folder))]

    def guarded(act: Callable[[Feed], object]) -> None:
        try:
            for feed in feeds:
                act(feed)
        except (InputError, OSError) as problem:
            feeds.clear()
            say(f"{problem}. Training goes on; later: discretion export {folder} --to {how.to}")

    try:
        yield lambda: guarded(Feed.step)
    finally:
        guarded(Feed.finish)
