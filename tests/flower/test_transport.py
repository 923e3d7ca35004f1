"""What nodes may send instead of answers, and whose nodes are asked."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from discretion.flower import flower_transport
from discretion.flower.client_app import packed
from discretion.flower.flower_transport import FlowerTransport


def node(name: str, number: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, node_id=number)


def answered(content: RecordDict | None) -> SimpleNamespace:
    about = SimpleNamespace(reply_to_message_id="asked")
    return SimpleNamespace(metadata=about, content=content, has_error=lambda: False)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (packed(b"an answer"), [(0, b"an answer")]),
        (RecordDict({}), []),
        (RecordDict({"bytes": ArrayRecord({})}), []),
        (RecordDict({"bytes": ConfigRecord({"bytes": 3})}), []),
        (None, []),
    ],
)
def test_what_is_no_answer_is_lost(
    content: RecordDict | None, found: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_transport, "Message", Mock())
    grid = Mock()
    grid.get_nodes.return_value = [node("c0", 7)]
    grid.push_messages.return_value = ["asked"]
    grid.pull_messages.return_value = [answered(content)]
    assert list(FlowerTransport(grid).exchange([("c0", b"an order")], 5.0)) == found


def test_of_two_nodes_under_one_name_neither_is_asked() -> None:
    grid = Mock()
    grid.get_nodes.return_value = [node("c0", 7), node("c1", 8), node("c0", 9), node("", 10)]
    assert FlowerTransport(grid).wait_for(["c0", "c1"], 0.1) == ["c0"]
    assert list(FlowerTransport(grid).exchange([("c0", b"an order")], 5.0)) == []
    grid.push_messages.assert_not_called()
