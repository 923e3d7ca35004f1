"""JSON files that hold what they should and nothing else; plans and certificates are such files."""

import json
import math
import reprlib
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from discretion.errors import PlanError


class Record(BaseModel):
    """What a JSON file holds: nothing more, nothing less."""

    model_config = ConfigDict(extra="forbid")


def dump(record: dict[str, Any]) -> str:
    """JSON that every parser reads: infinities as the strings "inf" and "-inf"."""
    lines = (f"{json.dumps(key)}: {_dump(value)}" for key, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dump(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dump(key)}: {_dump(item)}" for key, item in value.items()) + "}"
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # not finite: few columns are, and to look at each number first takes longest
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
    """Read a JSON file of this kind; every problem in it is said."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as problem:
        lines = (
            ".".join(str(part) for part in error["loc"] or ("the file",))
            + f": {error['msg'].lower()}, found "
            f"{reprlib.repr(error['input'])}"
            for error in problem.errors()[:5]
        )
        raise PlanError(f"not a {what} of Discretion: {'; '.join(lines)}") from None
