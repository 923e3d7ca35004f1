"""A table with a row for each run and round, as CSV or Parquet."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from discretion.files import write_safely
from discretion.report.svg import inert
from discretion.track.facts import Facts, Value

OF_RUN = (
    "run",
    "id",
    "method",
    "data",
    "model",
    "clients",
    "rounds",
)  # columns that are the same in all rows

Row = dict[str, Value]


class Csv:
    """Writes the file when a run is finished: several runs in one table, each with all its rounds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: list[Facts] = []
        self._rows: list[Row] = []

    def start(self, facts: Facts) -> int:
        self._runs.append(facts)
        return 0

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        facts = self._runs[-1].values
        self._rows.append({name: facts[name] for name in OF_RUN} | {"round": round_} | dict(values))

    def finish(self, finished: bool) -> str:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        columns = list(
            dict.fromkeys([*OF_RUN, "round", "accuracy", "loss", *(n for r in self._rows for n in r)])
        )
        write_safely(self._path, self._content(columns, self._rows, self._runs))
        return str(self._path)

    def _content(self, columns: list[str], rows: list[Row], runs: list[Facts]) -> bytes:
        out = io.StringIO()
        writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
        writer.writerow({name: inert(name) for name in columns})
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        return out.getvalue().encode()


def _cell(value: Value) -> Value:
    return inert(value) if isinstance(value, str) else value


class Parquet(Csv):
    """The same; all facts of the runs are in the file's metadata, under `discretion`."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet  # noqa: F401  # missing packages are to be missed at once

        super().__init__(path)

    def _content(self, columns: list[str], rows: list[Row], runs: list[Facts]) -> bytes:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
        facts = json.dumps([dict(facts.values) for facts in runs])
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table.replace_schema_metadata({"discretion": facts}), sink)
        return bytes(sink.getvalue())
