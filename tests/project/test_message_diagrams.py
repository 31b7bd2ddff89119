"""The diagrams of messages show what communicators count, and are the same in every build."""

from __future__ import annotations

import pytest
from mkdocs.exceptions import PluginError

import message_diagrams
from deep5.core.plugins import registered
from deep5.distributed.collectives.algorithms import ALGORITHMS, sent_bytes

# Bytes of each rank in the recorded steps, with n = 68 bytes of parameters; the server is rank 0's.
SENT = {
    "all_reduce": (68, 68, 68),
    "parameter_server": (68 + 64, 68, 68),
    "hierarchical": (136, 68, 136, 68),
    "neighbourhood": (136, 136, 136, 136),
    "asynchronous": (4 * 132, 2 * 132, 2 * 132),
    "stale_synchronous": (3 * 132, 2 * 132, 132),
}


@pytest.mark.parametrize("name", SENT)
def test_the_drawn_bytes_are_those_that_the_communicators_count(name: str) -> None:
    recording = message_diagrams.recorded(name)
    drawn = dict.fromkeys(recording.counted_bytes, 0)
    for lane, events in recording.lanes.items():
        drawn[max(lane, 0)] += sum(event.sent_bytes for event in events)
    assert recording.parameters_bytes == 68
    assert drawn == recording.counted_bytes == dict(enumerate(SENT[name]))


@pytest.mark.parametrize("name", ["hierarchical", "asynchronous", "stale_synchronous"])
def test_two_builds_draw_the_same(name: str) -> None:
    first = message_diagrams.draw(name)
    message_diagrams.recorded.cache_clear()
    assert message_diagrams.draw(name) == first


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_drawn_bytes_of_an_all_reduce_are_those_of_its_formula(name: str) -> None:
    recording = message_diagrams.recorded(name)
    for rank, events in recording.lanes.items():
        drawn = sum(event.sent_bytes for event in events)
        assert drawn == recording.counted_bytes[rank] == sent_bytes(name, rank, 4, 16, 4)


def test_a_message_arrives_below_its_sending() -> None:
    recording = message_diagrams.recorded("gossip")
    places = message_diagrams.rows(recording)
    of = {
        (event.kind, event.key): row
        for lane, events in recording.lanes.items()
        for event, row in zip(events, places[lane], strict=True)
    }
    sent = [key for kind, key in of if kind == "send"]
    assert len(sent) == 8
    assert all(of["receive", key] > of["send", key] for key in sent)


def test_every_scheme_has_a_diagram() -> None:
    assert set(registered("schemes")) <= set(message_diagrams.SETUPS)


def test_an_unknown_subject_is_refused() -> None:
    with pytest.raises(PluginError, match="no diagram of messages 'broadcast'; allowed: all_reduce"):
        message_diagrams.draw("broadcast")
