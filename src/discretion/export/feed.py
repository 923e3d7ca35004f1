"""Hands a run's public history to other tools, during the run or afterwards, through one small interface."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from discretion.config import TrackConfig
from discretion.errors import InputError
from discretion.report.reading import read_run
from discretion.track.facts import Facts, facts_of, rounds_of, values_at
from discretion.track.tables import Csv, Parquet
from discretion.watch.tail import Tail

__all__ = ["Facts", "Feed", "Target", "Tracker", "open_tracker", "tracking"]

Target = Literal["csv", "parquet", "tensorboard", "mlflow"]


class Tracker(Protocol):
    """A place that takes one run after the other."""

    def start(self, facts: Facts) -> int:
        """Begin with a run, or go on with it; the last of its rounds that is there already, or 0."""

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        """What is known after a round; rounds come in their order."""

    def finish(self, finished: bool) -> str:
        """Make durable what was logged, whether the run is finished or not; where it is."""


class Feed:
    """What a run's folder says, handed on to a tracker as it comes.

    Guarantees:
        Nothing goes out but what `facts` makes of the plan, the certificate and the history: no seed, no key,
        no path, no client's name, nothing of who took part or refused.
        Each round goes out once, however often the run was killed and resumed.
        Where coins are secret, rounds go out together when training ends, stamped a second apart: when a
        round was done tells who took part.
    """

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self._run = read_run(folder)
        self._history = Tail(folder / "history.jsonl")
        self._tracker = tracker
        self._sent = tracker.start(facts_of(self._run))

    def step(self) -> None:
        """Hand on what is new, if it may be known when that is."""
        if not self._run.secret:
            self._hand_on()

    def _hand_on(self) -> None:
        _, lines = self._history.lines()
        for number, record in rounds_of(lines):
            if number > self._sent:
                self._tracker.log(number, values_at(self._run, number, record))
                self._sent = number

    def finish(self) -> str:
        self._hand_on()
        return self._tracker.finish(self._run.folder.joinpath("model.safetensors").exists())


def open_tracker(to: Target, out: str, run: Path) -> Tracker:
    """`out` is a file, a folder or an address; empty: where that tool would look, for this run."""
    makers: dict[Target, Callable[[], Tracker]] = {
        "csv": lambda: Csv(Path(out or f"{run.resolve().name}.csv")),
        "parquet": lambda: Parquet(Path(out or f"{run.resolve().name}.parquet")),
        "tensorboard": lambda: _tensorboard(Path(out) if out else run / "tensorboard", bool(out)),
        "mlflow": lambda: _mlflow(out),
    }
    try:
        return makers[to]()
    except ModuleNotFoundError as missing:
        raise InputError(
            f"{to} needs the package {missing.name}, which is not installed: pip install 'discretion[track]'"
        ) from None


def _tensorboard(folder: Path, several: bool) -> Tracker:
    from discretion.track.tensorboard import TensorBoard

    return TensorBoard(folder, several)


def _mlflow(address: str) -> Tracker:
    from discretion.track.mlflow import MLflow

    return MLflow(address)


@contextmanager
def tracking(folder: Path, how: TrackConfig, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Something to call after each round of a run that is tracked, or does nothing.

    What cannot be tracked any more does not stop the training: it is said, and can be exported later.
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
