"""Measured times of a network's layers, by batch size: as a table and as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from deep5.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Timed", "print_times", "times_document"]


class TimedLayer(Protocol):
    """Seconds of one layer; None where they are not known."""

    @property
    def name(self) -> str:
        """Of the node."""

    @property
    def op_type(self) -> str:
        """Its operator."""

    @property
    def forward_s(self) -> float | None:
        """Seconds of the forward pass."""

    @property
    def backward_s(self) -> float | None:
        """Seconds of the backward pass."""


class Timed(Protocol):
    """Seconds of a network's layers at one batch size, and of the whole without anything measured within it."""

    @property
    def network(self) -> str:
        """Its name."""

    @property
    def framework(self) -> str:
        """What ran it."""

    @property
    def batch(self) -> int:
        """Samples a pass."""

    @property
    def layers(self) -> Sequence[TimedLayer]:
        """In the order of execution."""

    @property
    def forward_s(self) -> float | None:
        """Seconds of the forward pass."""

    @property
    def backward_s(self) -> float | None:
        """Seconds of the backward pass."""

    @property
    def whole_forward_s(self) -> float | None:
        """Seconds of a forward pass in one piece."""

    @property
    def whole_step_s(self) -> float | None:
        """Seconds of forward and backward in one piece."""

    @property
    def repetitions(self) -> int:
        """Of each measurement."""

    @property
    def unavailable(self) -> str | None:
        """Why there are no times, or not all; None where there are."""

    def by_type(self) -> Mapping[str, tuple[float | None, float | None]]:
        """Seconds forward and backward by operator."""


def times_document(times: Timed) -> dict[str, Any]:
    """The times of one batch size in JSON's types; what was not measured is null."""
    return {
        "framework": times.framework,
        "batch": times.batch,
        "repetitions": times.repetitions,
        "forward_s": times.forward_s,
        "backward_s": times.backward_s,
        "whole_forward_s": times.whole_forward_s,
        "whole_step_s": times.whole_step_s,
        "unavailable": times.unavailable,
        "layers": [
            {
                "name": layer.name,
                "op_type": layer.op_type,
                "forward_s": layer.forward_s,
                "backward_s": layer.backward_s,
            }
            for layer in times.layers
        ],
    }


def print_times(measured: Sequence[Timed], console: Console) -> None:
    """The sum of the parts beside the whole, and the time of each type of layer, at every batch size.

    Args:
        measured: Of one network and framework.
        console: Where to print.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("batch", "forward, parts", "whole", "ratio", "step, parts", "whole", "ratio"):
        table.add_column(Text(title), justify="right")
    for times in measured:
        step = None if times.forward_s is None or times.backward_s is None else times.forward_s + times.backward_s
        both = ((times.forward_s, times.whole_forward_s), (step, times.whole_step_s))
        cells = [cell for parts, whole in both for cell in (_told(parts), _told(whole), _ratio(parts, whole))]
        table.add_row(*map(Text, (str(times.batch), *cells)))
    console.print(Text(plain(f"Measured on {measured[0].framework}: parts of {measured[0].network} and the whole")))
    console.print(table)
    types = {times.batch: times.by_type() for times in measured}
    names = list(dict.fromkeys(name for own in types.values() for name in own))
    if names:
        table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(Text("forward + backward"), overflow="fold")
        for batch in types:
            table.add_column(Text(f"batch {batch}"), justify="right")
        for name in names:
            cells = [" + ".join(map(_told, own.get(name, (None, None)))) for own in types.values()]
            table.add_row(*map(Text, (plain(name), *cells)))
        console.print(table)
    for reason in dict.fromkeys(times.unavailable for times in measured if times.unavailable):
        batches = ", ".join(str(times.batch) for times in measured if times.unavailable == reason)
        console.print(Text(plain(f"not available at batch {batches}: {reason}")), overflow="fold")


def _told(seconds: float | None) -> str:
    """Seconds for a reader.

    >>> _told(0.0123), _told(4.5e-05), _told(2.5), _told(None)
    ('12.3 ms', '45 µs', '2.5 s', '-')
    """
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _ratio(parts: float | None, whole: float | None) -> str:
    return "-" if parts is None or not whole else f"{parts / whole:.2f}"
