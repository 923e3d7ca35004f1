"""Strict JSON: exact floats, no unknown fields, no key twice, nothing taken for a number that is none.

Everything that comes from outside is read by `read`: plans, certificates, messages, lines of history.
"""

import json
import math
import reprlib
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from discretion.arrays import Floats
from discretion.errors import PlanError


class Record(BaseModel):
    """Base class for the content of a JSON file; unknown and missing fields are errors."""

    model_config = ConfigDict(extra="forbid")


def record_of(kind: type, **other: Any) -> type[Record]:
    """Return the record of a dataclass: its fields, all required, and `other` (type, default) definitions."""
    column = Annotated[
        list[float], Field(fail_fast=True)
    ]  # thousands of entries may be wrong: one is reported
    listed = {Floats: column, Floats | None: column | None}  # how JSON has arrays
    fields = {name: (listed.get(hint, hint), ...) for name, hint in get_type_hints(kind).items()}
    return create_model(kind.__name__, __base__=Record, **fields | other)


def dump(record: dict[str, Any]) -> str:
    """Return standard JSON, with arrays as lists and infinities as "inf" and "-inf"; raise for NaN."""
    lines = (f"{json.dumps(key)}: {_dump(value)}" for key, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dump(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dump(key)}: {_dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, np.ndarray):
        value = value.tolist()
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # an infinity: rare, and looking for one beforehand would cost the most time
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [
            item if type(item) is float and -math.inf < item < math.inf else _finite(item) for item in value
        ]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def line(record: dict[str, Any]) -> str:
    """Return standard JSON in one line of ASCII, infinities as in `dump`; raise for NaN."""
    return json.dumps(_finite(record), allow_nan=False) + "\n"


AnyRecord = TypeVar("AnyRecord", bound=Record)
Value = TypeVar("Value")


def parse(text: str, kind: type[AnyRecord], what: str) -> AnyRecord:
    """Return the record in a JSON text; raise `PlanError` with the first five problems where it is none."""
    try:
        return read(text, TypeAdapter(kind))
    except ValueError as problem:
        raise PlanError(f"not a Discretion {what}: {problem}") from None


def read(text: str | bytes, kind: TypeAdapter[Value]) -> Value:
    """Return the value in a JSON text; raise `ValueError` with the first five problems where it is none.

    Guarantees:
        The value says what the text says: no number is read from a boolean, from text other than "inf" and
        "-inf", or rounded to fit; no key occurs twice.
    """
    said = loads(text)
    try:
        found = kind.validate_python(said)
    except ValidationError as problem:
        lines = (
            f"{_place(error['loc'])}: {error['msg'].lower()}, found {reprlib.repr(error['input'])}"
            for error in problem.errors()[:5]
        )
        raise ValueError("; ".join(lines)) from None
    if odd := list(coerced(said, kind.dump_python(found, by_alias=True)))[:5]:
        raise ValueError("; ".join(odd))
    return found


def loads(text: str | bytes) -> Any:
    """Return what a JSON text in UTF-8 says; raise `ValueError` for anything that is not exactly JSON."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_float)
        spelled_out = json.dumps(found, ensure_ascii=False) if "\\u" in text else text
        spelled_out.encode()  # half of a surrogate pair is no character, and could not be written again
    except RecursionError:
        raise ValueError("found lists or objects nested too deeply") from None
    except (UnicodeDecodeError, UnicodeEncodeError) as problem:
        raise ValueError(f"found what is no text in UTF-8: {problem.reason}") from None
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"found the key {reprlib.repr(twice)} twice, expected it once")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f'found {name}, expected a number; infinities are written as "inf" and "-inf"')


def _float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"found {reprlib.repr(text)}, which is too large for a number")
    return value


def coerced(said: Any, found: Any, *place: object) -> Iterator[str]:
    """Yield where a value that was `found` for what a file `said` is not the same.

    Infinities may be written "inf" and "-inf", and a number with a fraction may be written without one.
    """
    if isinstance(said, dict) and isinstance(found, dict):
        for name in said:
            yield from coerced(said[name], found.get(name), *place, name)
    elif isinstance(said, list) and isinstance(found, list | tuple):
        if not _same_numbers(said, found):
            for number, (one, other) in enumerate(zip(said, found, strict=True)):
                yield from coerced(one, other, *place, number)
    elif not _same_value(said, found):
        kind = _KINDS.get(type(found), "another value")
        yield f"{_place(place)}: expected {kind}, found {reprlib.repr(said)}"


def _same_numbers(said: list[Any], found: list[Any] | tuple[Any, ...]) -> bool:
    """Whether two lists are the same numbers: a quick answer for long columns."""
    kinds = set(map(type, said)), set(map(type, found))
    return kinds in (({int}, {int}), ({int}, {float}), ({float}, {float})) and said == list(found)


def _same_value(said: Any, found: Any) -> bool:
    if type(found) is float and said in ("inf", "-inf"):
        return found == float(said)
    return said == found and (type(said) is type(found) or (type(said), type(found)) == (int, float))


_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _place(parts: tuple[object, ...]) -> str:
    return ".".join(map(str, parts or ("the file",)))
