"""CSV and Parquet trackers: one table with a row for each run and round."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from discretion.export.facts import Facts, Value
from discretion.files import write_safely
from discretion.report.svg import inert

OF_RUN = ("run", "id", "method", "data", "model", "clients", "rounds")  # the same in all rows of a run

Row = dict[str, Value]


class Csv:
    """Writes the table when a run is finished, with all rounds of all runs so far."""

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
        found = (name for row in self._rows for name in row)
        columns = list(dict.fromkeys([*OF_RUN, "round", "accuracy", "loss", *found]))
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
    """The same table as Parquet, with all facts of the runs in its metadata under `discretion`."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet  # noqa: F401  # fails now, not after training, if it is not installed

        super().__init__(path)

    def _content(self, columns: list[str], rows: list[Row], runs: list[Facts]) -> bytes:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
        facts = json.dumps([dict(facts.values) for facts in runs])
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table.replace_schema_metadata({"discretion": facts}), sink)
        return bytes(sink.getvalue())
