"""Measured times of a network's layers, by batch size: as a table and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from deep5.core.quantities import seconds
from deep5.core.terminal import counted, plain
from deep5.networks.analysis.layer_summary import LayerTimes
from deep5.networks.analysis.picture import shortened

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_times", "times_document"]


def times_document(times: LayerTimes) -> dict[str, Any]:
    """The times of one batch size in JSON types; unmeasured values are null."""
    document = asdict(times)
    return {**document, "layers": list(document["layers"])}


def print_times(measured: Sequence[LayerTimes], console: Console, threads: int | None = None) -> None:
    """Print the sum of the parts next to the whole, and the time of each operator, at every batch size.

    Args:
        measured: One per batch size, of one network and framework.
        console: The console to print on.
        threads: Requested threads within an operator.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("batch", "inference: parts", "whole", "ratio", "step: parts", "whole", "ratio"):
        table.add_column(Text(title), justify="right")
    for times in measured:
        # Interruptions by other programs affect both: sums of the layers' own medians would be smaller.
        both = (
            (times.instrumented_forward_s, times.whole_forward_s),
            (times.instrumented_step_s, times.whole_step_s),
        )
        cells = [cell for parts, whole in both for cell in (seconds(parts), seconds(whole), _ratio(parts, whole))]
        table.add_row(*map(Text, (str(times.batch), *cells)))
    first = measured[0]
    requested = "" if threads is None else f" with {counted(threads, 'thread')}"
    console.print(
        Text(plain(f"Measured on {first.framework}{requested}, medians of {first.repetitions}; ratio: parts / whole"))
    )
    console.print(table)
    for side, what in enumerate(("forward_s", "backward_s")):
        if all(getattr(times, what) is None for times in measured):
            continue
        table = Table(box=box.SIMPLE, pad_edge=False)
        table.add_column(Text("backward" if side else "forward, in inference"), no_wrap=True)
        for times in measured:
            table.add_column(Text(f"batch {times.batch}"), justify="right", overflow="fold")
        types = [times.by_type() for times in measured]
        for name in dict.fromkeys(name for own in types for name in own):
            cells = [
                _host(times, name, what) or seconds(own.get(name, (None, None))[side])
                for own, times in zip(types, measured, strict=True)
            ]
            table.add_row(*map(Text, (shortened(name), *cells)))
        console.print(table)
    for reason in dict.fromkeys(times.unavailable for times in measured if times.unavailable):
        batches = ", ".join(str(times.batch) for times in measured if times.unavailable == reason)
        console.print(Text(plain(f"Not available at batch {batches}: {reason}")))


def _host(times: LayerTimes, op_type: str, what: str) -> str:
    """The operators whose time includes that of all layers of an operator; empty if a layer has its own time."""
    own = [layer for layer in times.layers if layer.op_type == op_type]
    if not own or any(getattr(layer, what) is not None or layer.within is None for layer in own):
        return ""
    names = {layer.within for layer in own}
    return f"in {plain(', '.join(dict.fromkeys(layer.op_type for layer in times.layers if layer.name in names)))}"


def _ratio(parts: float | None, whole: float | None) -> str:
    return "-" if parts is None or not whole else f"{parts / whole:.2f}"
