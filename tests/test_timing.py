"""Where the time of a run goes."""

import time
from collections.abc import Iterator

import pytest

from discretion.timing import PARTS, Profile


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_a_part_inside_another_is_not_counted_as_the_others(clock: list[float]) -> None:
    profile = Profile()
    with profile("outer"):
        clock[0] += 1
        with profile("inner"):
            clock[0] += 10
        clock[0] += 2
    clock[0] += 100
    with pytest.raises(ValueError), profile("inner"):
        clock[0] += 5
        raise ValueError
    assert profile.seconds == {"outer": 3.0, "inner": 15.0}


def test_a_record_names_every_part_and_adds_up(clock: list[float]) -> None:
    profile = Profile()
    assert profile.to_record()["overhead"] == 0.0
    for part, seconds in {"admit": 5.0, "train": 8.0, "clip": 1.0, "ledger": 1.0, "evaluate": 30.0}.items():
        with profile(part):
            clock[0] += seconds
    profile.rounds += 1
    record = profile.to_record()
    assert list(record["seconds"]) == list(PARTS)
    assert record["total"] == sum(record["seconds"].values()) == 45.0
    assert (record["rounds"], record["overhead"]) == (1, 0.2)


def test_making_items_is_one_part_and_using_them_another(clock: list[float]) -> None:
    def items() -> Iterator[int]:
        for number in range(3):
            clock[0] += 10
            yield number

    profile = Profile()
    with profile("use"):
        for _ in profile.each("make", items()):
            clock[0] += 1
    assert profile.seconds == {"use": 3.0, "make": 30.0}
