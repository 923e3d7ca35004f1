"""MLflow tracker: a tracking server, or a folder of files. MLflow's own telemetry stays off."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from discretion.errors import InputError
from discretion.export.facts import Facts
from discretion.runs.config import without_credentials

DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # training waits for requests
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
for name, value in DEFAULTS.items():  # MLflow reads them when it is imported
    os.environ.setdefault(name, value)

from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Metric, Param, Run  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

EXPERIMENT = "discretion"
TAG = "discretion.run"
MOST_METRICS = 500  # in one request; MLflow accepts at most 1,000
SECONDS = 2.0  # at least, between two requests


class MLflow:
    """Logs to the experiment `discretion`; a run whose id is there already is continued."""

    def __init__(self, address: str) -> None:
        address = address or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not address:
            raise InputError(
                "no address for MLflow: give a server (--out http://127.0.0.1:5000) or a folder (--out "
                "mlruns), or set MLFLOW_TRACKING_URI"
            )
        self._address = address if "://" in address else Path(address).absolute().as_uri()
        self._shown = without_credentials(self._address)
        self._client = MlflowClient(self._address)

    def start(self, facts: Facts) -> int:
        self._facts = facts
        self._waiting: list[Metric] = []
        self._sent_at = time.monotonic()
        with self._usable():
            found = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
            known = self._client.search_runs([experiment], f"tags.`{TAG}` = '{facts.id}'", max_results=1)
            run = known[0] if known else self._create_run(experiment)
            self._run: str = run.info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return self._last_round(run)

    def _create_run(self, experiment: str) -> Run:
        facts = self._facts
        run = self._client.create_run(experiment, self._stamp(0), run_name=facts.name, tags={TAG: facts.id})
        params = [Param(name, str(value)) for name, value in facts.values.items()]
        self._client.log_batch(run.info.run_id, params=params)
        return run

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except MlflowException as problem:
            said = without_credentials(str(problem).replace(self._address, self._shown))
            raise InputError(f"cannot use MLflow at {self._shown}: {said}") from None

    def _stamp(self, round_: int) -> int:
        return int(1000 * self._facts.moment(round_))  # milliseconds

    def _last_round(self, run: Run) -> int:
        histories = (self._client.get_metric_history(self._run, name) for name in run.data.metrics)
        return max((metric.step for history in histories for metric in history), default=0)

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        now = self._stamp(round_)
        self._waiting += [Metric(name, value, now, round_) for name, value in values.items()]
        if len(self._waiting) >= MOST_METRICS or time.monotonic() - self._sent_at > SECONDS:
            self._send()

    def finish(self, finished: bool) -> str:
        self._send()
        with self._usable():
            self._client.update_run(self._run, status="FINISHED" if finished else "KILLED")
        return f"{self._shown}, run {self._run}"

    def _send(self) -> None:
        with self._usable():
            self._client.log_batch(self._run, metrics=self._waiting)
        self._waiting, self._sent_at = [], time.monotonic()
