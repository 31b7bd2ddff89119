"""Draws the messages of a communication scheme or of an all-reduce: one lane for each rank, and time downwards.

An event's row is one below the last event that it depends on: the one before it on its lane, and the sending of a
message that it receives. Distances are no times.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterator, Mapping

from mkdocs.exceptions import PluginError

import deep5 as d5
from deep5.distributed.collectives.algorithms import ALGORITHMS
from recorded_messages import SERVER, Event, Recording, Setup, record, record_call

__all__ = ["CALLS", "SETUPS", "draw", "recorded", "rows"]

# What is drawn, by the name of the picture: registered schemes, one in a second form, and two compressions.
SETUPS: dict[str, Setup] = {
    "all_reduce": Setup(scheme=d5.AllReduce(), ranks=3),
    "parameter_server": Setup(scheme=d5.ParameterServer(), ranks=3, before=1),
    "hierarchical": Setup(scheme=d5.Hierarchical(2), ranks=4),
    "hierarchical_every_2": Setup(scheme=d5.Hierarchical(2, every=2), ranks=4, steps=2),
    "local_sgd": Setup(scheme=d5.LocalSGD(2), ranks=3, steps=2),
    "elastic_averaging": Setup(scheme=d5.ElasticAveraging(2), ranks=3, steps=2),
    "neighbourhood": Setup(scheme=d5.Neighbourhood("ring"), ranks=4),
    "gossip": Setup(scheme=d5.Gossip(), ranks=4, steps=2, seed=5),
    # A server would send signs of life to a rank that waits for a quarter of the limit.
    "asynchronous": Setup(scheme=d5.AsynchronousParameterServer(timeout_s=600.0), ranks=3, schedule=(1, 2, 0, 1, 2)),
    "stale_synchronous": Setup(scheme=d5.StaleSynchronous(1, timeout_s=600.0), ranks=3, schedule=(1, 1, 2, 0)),
    "top_k": Setup(scheme=d5.AllReduce(compression=d5.TopKSparsification(k=3)), ranks=3),
    "sparse_all_reduce": Setup(scheme=d5.AllReduce(compression=d5.SparseAllReduce(k=3)), ranks=4),
}
CALLS: Mapping[str, Callable[..., None]] = {
    **ALGORITHMS,
    "pipeline": functools.partial(ALGORITHMS["pipeline"], segment_bytes=16),
}
"""All-reduce algorithms, which are drawn for a buffer of 64 bytes on four ranks."""

# Pixels: between lanes, between rows, above the first row, the height of a box.
_LANE, _ROW, _TOP, _BOX = 150.0, 30.0, 44.0, 20.0
_LINE = "var(--md-default-fg-color--light)"
_ACCENT = "var(--md-typeset-a-color)"
_FILL = "var(--md-code-bg-color)"


@functools.cache
def recorded(name: str) -> Recording:
    """The recording of a picture.

    Raises:
        PluginError: There is no picture of this name.
    """
    if name in CALLS:
        return record_call(CALLS[name], ranks=4, elements=16)
    if name not in SETUPS:
        allowed = ", ".join((*SETUPS, *CALLS))
        raise PluginError(f"no diagram of messages {name!r}; allowed: {allowed}; remedy: one of these")
    return record(SETUPS[name])


def rows(recording: Recording) -> dict[int, list[int]]:
    """The row of each event of each lane, from 0."""
    found: dict[int, list[int]] = {lane: [] for lane in recording.lanes}
    waiting = {lane: list(events) for lane, events in recording.lanes.items()}
    sent: dict[tuple[object, ...], int] = {}
    while any(waiting.values()):
        placed = False
        for lane, events in waiting.items():
            while events and (row := _row(events[0], lane, waiting, found, sent)) is not None:
                event = events.pop(0)
                found[lane].append(row)
                placed = True
                if event.kind == "send":
                    sent[event.key] = row
                for other in event.ranks:
                    if other != lane:
                        waiting[other].pop(0)
                        found[other].append(row)
        if not placed:
            raise ValueError("events that wait for each other")
    return found


def _row(
    event: Event,
    lane: int,
    waiting: dict[int, list[Event]],
    found: dict[int, list[int]],
    sent: dict[tuple[object, ...], int],
) -> int | None:
    """The row of a lane's next event; None if it waits for an event without one."""
    after = max(found[lane], default=-1)
    if event.kind == "receive":
        return max(after, sent[event.key]) + 1 if event.key in sent else None
    if event.kind == "collective":
        if any(not waiting[other] or waiting[other][0].key != event.key for other in event.ranks):
            return None
        after = max(max(found[other], default=-1) for other in event.ranks)
    return after + 1


def draw(subject: str) -> str:
    """The diagram as SVG, in the colors of the page."""
    recording = recorded(subject)
    places = rows(recording)
    lanes = sorted(recording.lanes)
    x = {lane: _LANE * (place + 0.5) for place, lane in enumerate(lanes)}
    bottom = _TOP + _ROW * (1 + max(row for own in places.values() for row in own))
    y = {lane: [_TOP + _ROW * (row + 0.5) for row in own] for lane, own in places.items()}
    width, height = _LANE * len(lanes), bottom + 24
    sent = {lane: sum(event.sent_bytes for event in events) for lane, events in recording.lanes.items()}
    said = ", ".join(f"{_name(lane)} {sent[lane]} B" for lane in lanes)
    title = f"Messages of {subject} on {len(recording.counted_bytes)} ranks; handed over: {said}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" viewBox="0 0 {width:.0f} '
        f'{height:.0f}" width="{width:.0f}" height="{height:.0f}" style="min-width: {0.8 * width:.0f}px" '
        f'font-size="12" text-anchor="middle" fill="currentColor">',
        f"<title>{title}</title>",
        *(_lane(x[lane], bottom, _name(lane), sent[lane]) for lane in lanes),
        *_messages(recording, x, y),
        *_collectives(recording, x, y),
        *_boxes(recording, x, y),
        "</svg>",
    ]
    return "\n".join(parts)


def _name(lane: int) -> str:
    return "server" if lane == SERVER else f"rank {lane}"


def _lane(x: float, bottom: float, name: str, sent_bytes: int) -> str:
    return (
        f'<text x="{x:.0f}" y="20" font-weight="bold">{name}</text>'
        f'<path d="M{x:.0f} 30V{bottom:.0f}" fill="none" style="stroke: {_LINE}"/>'
        f'<text x="{x:.0f}" y="{bottom + 18:.0f}">sent: {sent_bytes} B</text>'
    )


def _messages(recording: Recording, x: dict[int, float], y: dict[int, list[float]]) -> Iterator[str]:
    """Arrows, from the row of the sending to that of the arrival."""
    arrivals = {
        event.key: (x[lane], place)
        for lane, events in recording.lanes.items()
        for event, place in zip(events, y[lane], strict=True)
        if event.kind == "receive"
    }
    for lane, events in recording.lanes.items():
        for event, begin in zip(events, y[lane], strict=True):
            # A message under way at the end of the recording has no arrival.
            if event.kind == "send" and event.key in arrivals:
                to, end = arrivals[event.key]
                yield _arrow(x[lane], begin, to, end, event)


def _arrow(x: float, y: float, to: float, end: float, event: Event) -> str:
    way = 1 if to > x else -1
    # The head points along the line.
    length = ((to - x) ** 2 + (end - y) ** 2) ** 0.5
    along, down = (to - x) / length, (end - y) / length
    back_x, back_y = to - 9 * along, end - 9 * down
    head = (
        f"M{to:.1f} {end:.1f}L{back_x - 4 * down:.1f} {back_y + 4 * along:.1f}"
        f"L{back_x + 4 * down:.1f} {back_y - 4 * along:.1f}z"
    )
    dashes = "" if event.sent_bytes else ' stroke-dasharray="4 3"'
    return (
        f'<path d="M{x:.1f} {y:.1f}L{back_x:.1f} {back_y:.1f}" fill="none"{dashes} style="stroke: {_ACCENT}"/>'
        f'<path d="{head}" style="fill: {_ACCENT}"/>'
        f'<text x="{x + 8 * way:.1f}" y="{y - 3:.1f}" text-anchor="{"start" if way > 0 else "end"}" font-size="11">'
        f"{html.escape(event.label)}</text>"
    )


def _collectives(recording: Recording, x: dict[int, float], y: dict[int, list[float]]) -> Iterator[str]:
    """A bar over the ranks that take part, with a dot on the lane of each."""
    for lane, events in recording.lanes.items():
        for event, place in zip(events, y[lane], strict=True):
            if event.kind != "collective" or event.ranks[0] != lane:
                continue
            left, right = x[event.ranks[0]] - 40, x[event.ranks[-1]] + 40
            dots = "".join(
                f'<circle cx="{x[rank]:.0f}" cy="{place - _BOX / 2:.1f}" r="3.5" style="fill: {_ACCENT}"/>'
                for rank in event.ranks
            )
            yield (
                f'<rect x="{left:.0f}" y="{place - _BOX / 2:.1f}" width="{right - left:.0f}" height="{_BOX:.0f}" '
                f'rx="4" style="fill: {_FILL}; stroke: {_ACCENT}"/>{dots}'
                f'<text x="{(left + right) / 2:.0f}" y="{place + 4:.1f}" font-size="11">{html.escape(event.label)}'
                "</text>"
            )


def _boxes(recording: Recording, x: dict[int, float], y: dict[int, list[float]]) -> Iterator[str]:
    """What a rank computes."""
    for lane, events in recording.lanes.items():
        for event, place in zip(events, y[lane], strict=True):
            if event.kind == "local":
                width = 6.4 * len(event.label) + 14
                yield (
                    f'<rect x="{x[lane] - width / 2:.1f}" y="{place - _BOX / 2:.1f}" width="{width:.1f}" '
                    f'height="{_BOX:.0f}" style="fill: {_FILL}; stroke: {_LINE}"/>'
                    f'<text x="{x[lane]:.0f}" y="{place + 4:.1f}" font-size="11">{html.escape(event.label)}</text>'
                )
