"""Strict JSON files: exact floats, no unknown fields. Plans and certificates are such files."""

import json
import math
import reprlib
from typing import Annotated, Any, TypeVar, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

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


AnyRecord = TypeVar("AnyRecord", bound=Record)


def parse(text: str, kind: type[AnyRecord], what: str) -> AnyRecord:
    """Return the record in a JSON text; raise `PlanError` with the first five problems where it is none."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as problem:
        lines = (
            ".".join(str(part) for part in error["loc"] or ("the file",))
            + f": {error['msg'].lower()}, found "
            f"{reprlib.repr(error['input'])}"
            for error in problem.errors()[:5]
        )
        raise PlanError(f"not a Discretion {what}: {'; '.join(lines)}") from None
