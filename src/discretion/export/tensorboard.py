"""TensorBoard tracker: event files, by TensorBoard's own writer."""

from collections.abc import Mapping
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from discretion.export.facts import Facts


class TensorBoard:
    """Writes one folder of event files for each run."""

    def __init__(self, folder: Path, several: bool) -> None:
        self._folder = folder
        self._several = several  # whether each run gets a folder of its own, by its name and id

    def start(self, facts: Facts) -> int:
        self._facts = facts
        self._place = self._folder / f"{facts.name}-{facts.id}" if self._several else self._folder
        last = _last_round(self._place) if self._place.is_dir() else 0
        self._writer = EventFileWriter(str(self._place))
        if not last:
            rows = (f"| {name} | {value} |" for name, value in facts.values.items())
            self._add(0, _text("facts", "\n".join(["| what | |", "| --- | --- |", *rows])))
        return last

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        if values:
            self._add(round_, *(Summary.Value(tag=name, simple_value=v) for name, v in values.items()))
            self._writer.flush()

    def finish(self, finished: bool) -> str:
        self._writer.close()
        return str(self._place)

    def _add(self, step: int, *values: Summary.Value) -> None:
        self._writer.add_event(
            Event(wall_time=self._facts.moment(step), step=step, summary=Summary(value=values))
        )


def _last_round(folder: Path) -> int:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 1})
    found.Reload()
    return max((found.Scalars(tag)[-1].step for tag in found.Tags()["scalars"]), default=0)


def _text(tag: str, markdown: str) -> Summary.Value:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    return Summary.Value(
        tag=tag,
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(dtype=DT_STRING, string_val=[markdown.encode()], tensor_shape=shape),
    )
