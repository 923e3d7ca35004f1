"""JSON is read as what it says: no key twice, no number out of text or a boolean, none rounded to fit."""

import math

import pytest
from pydantic import TypeAdapter

from discretion import jsonfile
from discretion.clients import messages
from discretion.errors import MessageError, PlanError
from discretion.jsonfile import Record


class Inner(Record):
    share: float


class Example(Record):
    count: int
    sizes: list[float]
    places: tuple[int, ...] = ()
    inner: Inner | None = None


KIND = TypeAdapter(Example)


def test_what_is_meant_is_read() -> None:
    text = '{"count": 3, "sizes": [1, 2.5, "inf", "-inf"], "places": [4], "inner": {"share": "inf"}}'
    found = jsonfile.read(text, KIND)
    assert found.sizes == [1.0, 2.5, math.inf, -math.inf] and found.places == (4,)
    assert found.inner and found.inner.share == math.inf
    assert jsonfile.read(text.encode(), KIND) == found


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("3", "true", "count: expected a whole number, found True"),
        ("3", '"3"', "count: expected a whole number, found '3'"),
        ("3", "3.0", "count: expected a whole number, found 3.0"),
        ("[1", "[true", "sizes.0: expected a number, found True"),
        ("2.5", '"2.5"', "sizes.1: expected a number, found '2.5'"),
        ("2.5", '"nan"', "sizes.1: expected a number, found 'nan'"),
        ("2.5", '"Infinity"', "sizes.1: expected a number, found 'Infinity'"),
        ("2.5", "9007199254740993", "sizes.1: expected a number, found 9007199254740993"),
        ("2.5", "1e999", "found '1e999', which is too large"),
        ("2.5", "NaN", "found NaN, expected a number"),
        ("2.5", "-Infinity", "found -Infinity, expected a number"),
        ("2.5", "1" * 5000, "4300 digits"),
        ("2.5", "[" * 100_000, "nested too deeply"),
        ('"count": 3', '"count": 3, "count": 4', "found the key 'count' twice"),
        ("[4]", "[4, false]", "places.1: expected a whole number, found False"),
        ('"sizes"', '"\\ud800": 1, "sizes"', "no text in UTF-8"),
        ('"sizes"', '"\udcff": 1, "sizes"', "no text in UTF-8"),
        ('{"share": 1}', '{"share": 1, "share": 1}', "found the key 'share' twice"),
        ('{"share": 1}', '{"share": true}', "inner.share: expected a number, found True"),
        ('{"share": 1}', '{"other": 1}', "inner.share: field required"),
    ],
)
def test_what_is_not_exactly_that_is_refused(old: str, new: str, problem: str) -> None:
    text = '{"count": 3, "sizes": [1, 2.5], "places": [4], "inner": {"share": 1}}'
    jsonfile.read(text, KIND)
    with pytest.raises(ValueError) as found:
        jsonfile.read(text.replace(old, new, 1), KIND)
    assert problem in str(found.value)
    with pytest.raises(PlanError, match="not a Discretion example: "):
        jsonfile.parse(text.replace(old, new, 1), Example, "example")


def test_bytes_are_utf_8() -> None:
    for content in ('{"a": 1}'.encode("utf-16"), b'{"a": "\xff"}', b'\xef\xbb\xbf{"a": 1}'):
        with pytest.raises(ValueError, match="UTF-8|BOM"):
            jsonfile.loads(content)


def test_messages_are_read_by_the_same_rules() -> None:
    plain = messages.encode(messages.Finish(client="c", run="r", plan="0" * 64, rounds=5))
    messages.decode_order(plain)
    for new in (b"true", b'"5"', b"5.0", b'5, "rounds": 5'):
        header = plain[4:].replace(b"5", new)
        with pytest.raises(MessageError, match="not an order of Discretion"):
            messages.decode_order(len(header).to_bytes(4, "big") + header)
