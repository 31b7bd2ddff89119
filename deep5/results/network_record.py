"""The output of `deep5 show network`: a table of a network's layers and its totals, also as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deep5.core.quantities import count, percent, size
from deep5.core.terminal import counted, plain
from deep5.networks.analysis.analysis import Layer, NetworkAnalysis
from deep5.networks.analysis.layer_summary import LayerTimes
from deep5.networks.analysis.picture import shortened, shown_shape
from deep5.networks.analysis.sizes import is_sized
from deep5.networks.onnx.parameters import Decision
from deep5.results.network_tensors import print_tensors, tensor_document
from deep5.results.network_times import print_times, times_document
from deep5.results.network_values import print_values

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["QUANTITIES", "NetworkRecord", "by_type"]

QUANTITIES = {"parameters": "parameters", "flops": "FLOPs", "activation_bytes": "activation memory"}
"""Quantities broken down by layer and operator, and their names."""

_UNKNOWN = "unknown"
# Maximum number of characters of a name in the table.
_NAME = 60
# If a line is too long: the columns to shorten, in this order, and the characters to leave.
_GIVING_WAY = ((1, 9), (2, 9), (0, 12), (1, 8), (2, 6), (0, 8))


@dataclass(frozen=True, kw_only=True)
class NetworkRecord:
    """Analysis of a network.

    Attributes:
        source: The registered name or the file, as requested.
        arguments: Arguments of the function that created it.
        found: Result of `analyse`.
        decisions: What the tensors of its file are; empty for a network that is not read from a file.
        times: Measured times, one per batch size, if any.
        threads: Requested threads within an operator; None: the framework's default.
    """

    source: str
    found: NetworkAnalysis
    arguments: Mapping[str, Any] = field(default_factory=dict)
    decisions: Sequence[Decision] = ()
    times: Sequence[LayerTimes] = ()
    threads: int | None = None

    def document(self) -> dict[str, Any]:
        """The record in JSON types; unknown counts are null."""
        found = self.found
        return {
            "network": found.name,
            "source": self.source,
            "arguments": {name: _plain(value) for name, value in self.arguments.items()},
            "extents": dict(found.extents),
            "totals": {
                "parameters": found.parameters,
                "parameter_bytes": found.parameter_bytes,
                "buffer_bytes": found.buffer_bytes,
                "macs": found.macs,
                "flops": found.flops,
                "depth": found.depth,
                "average_parallelism": found.average_parallelism,
                "intensity": found.intensity,
                "activation_bytes": found.activation_bytes,
                "peak_training_bytes": found.peak_training_bytes,
            },
            "unknown": dict(found.unknown),
            "unsized": dict(found.unsized),
            "missing": list(found.missing),
            "types": by_type(found),
            "layers": [_layer(layer, found) for layer in found.layers],
            "tensors": [tensor_document(decision) for decision in self.decisions],
            "threads": self.threads,
            "times": [times_document(times) for times in self.times],
        }

    def rows(self) -> list[list[str]]:
        """A row per layer: name, operator, output, parameters, FLOPs, memory, and share of the FLOPs."""
        return [_cells(layer, self.found) for layer in self.found.layers]

    def totals(self) -> list[tuple[str, str]]:
        """Names and values of the totals."""
        return _totals(self.found)

    def notes(self) -> list[str]:
        """What is missing for exact sums, and how to get it."""
        return list(_notes(self.found))

    def print(self, console: Console) -> None:
        """Print a row per layer, the totals, names of values, what the tensors of the file are, and the measured times.

        Args:
            console: The console to print on.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        found = self.found
        extents = ", ".join(f"{name} = {extent}" for name, extent in found.extents.items())
        console.print(Text(plain(f"{found.name}: {counted(len(found.layers), 'layer')}{extents and f', {extents}'}")))
        table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), show_footer=True)
        least = "" if found.exact else "≥ "
        for title, foot in (("layer", "total"), ("operator", ""), ("output", "")):
            table.add_column(Text(title), no_wrap=True, overflow="ellipsis", footer=Text(foot))
        for title, foot in (
            ("parameters", f"{found.parameters:,}"),
            ("FLOPs", f"{least}{count(found.flops)}"),
            ("memory", f"{'≥ ' if found.unsized else ''}{size(found.activation_bytes)}"),
            ("share", "100.0 %" if found.flops else "-"),
        ):
            table.add_column(Text(title), justify="right", no_wrap=True, footer=Text(foot.rstrip()))
        ends = [[str(column.header), str(column.footer)] for column in table.columns]
        around = 2 * len(ends)  # a space after every cell but the last, between columns, and at both edges
        for row in _fitted(self.rows(), ends, console.width - around):
            table.add_row(*map(Text, row))
        console.print(table)
        totals = Table.grid(padding=(0, 2))
        for what, shown in self.totals():
            totals.add_row(Text(what), Text(shown))
        console.print(totals)
        console.print(
            Text(
                "FLOPs and multiply-adds are of one forward pass, memory is that of a layer's outputs (a view's is 0), "
                f"the share is of the FLOPs{' that are known' if not found.exact else ''}."
            )
        )
        if found.unknown:
            names = ", ".join(f"{plain(name)} ({counted(count, 'node')})" for name, count in found.unknown.items())
            console.print(
                Text(
                    f"No formula is known for {names}: sums exclude their cost and are lower bounds.",
                    style="bold",
                )
            )
        for sentence in self.notes():
            console.print(Text(sentence, style="bold"))
        console.print()
        print_values(found.layers, console)
        if self.decisions:
            console.print()
            print_tensors(self.decisions, console)
        if self.times:
            console.print()
            print_times(self.times, console, self.threads)


def by_type(found: NetworkAnalysis) -> dict[str, dict[str, int | None]]:
    """Sums over the layers of each operator: nodes, parameters, FLOPs (None if unknown) and activation memory."""
    sums: dict[str, dict[str, int | None]] = {}
    for layer in found.layers:
        own = sums.setdefault(layer.op_type, {"nodes": 0, "parameters": 0, "flops": 0, "activation_bytes": 0})
        flops = None if layer.arithmetic is None else layer.arithmetic.flops
        for name, value in (("nodes", 1), ("parameters", layer.parameters), ("flops", flops)):
            before = own[name]
            own[name] = None if before is None or value is None else before + value
        own["activation_bytes"] = (own["activation_bytes"] or 0) + layer.activation_bytes
    return sums


def _layer(layer: Layer, found: NetworkAnalysis) -> dict[str, Any]:
    known = layer.arithmetic
    return {
        "name": layer.name,
        "op_type": layer.op_type,
        "outputs": [
            {"shape": list(spec.shape) if spec.ranked else None, "dtype": spec.dtype} for spec in layer.outputs
        ],
        "values": list(layer.values),
        "sized": layer.sized,
        "parameters": layer.parameters,
        "parameter_bytes": layer.parameter_bytes,
        "macs": None if known is None else known.macs,
        "flops": None if known is None else known.flops,
        "depth": None if known is None else known.depth,
        "share": None if known is None or not found.flops else known.flops / found.flops,
        "activation_bytes": layer.activation_bytes,
        "moved_bytes": layer.moved_bytes,
        "kept_bytes": layer.kept_bytes,
        "intensity": layer.intensity,
    }


def _cells(layer: Layer, found: NetworkAnalysis) -> list[str]:
    shapes = [shown_shape(spec) for spec in layer.outputs]
    known = layer.arithmetic
    flops, share = _UNKNOWN, _UNKNOWN
    if known is not None:
        flops = count(known.flops) if known.flops else "0"
        share = percent(known.flops / found.flops, 1) if found.flops else "-"
    return [
        layer.name,
        layer.op_type,
        (shapes[0] if shapes else "-") + (f" +{len(shapes) - 1}" if len(shapes) > 1 else ""),
        f"{layer.parameters:,}" if layer.parameters else "",
        flops,
        _memory(layer),
        share,
    ]


def _memory(layer: Layer) -> str:
    if not layer.activation_bytes:
        return "0" if layer.sized or all(map(is_sized, layer.outputs)) else _UNKNOWN
    return f"{'' if layer.sized else '≥ '}{size(layer.activation_bytes)}"


def _notes(found: NetworkAnalysis) -> Iterator[str]:
    """What is missing for exact sums, and how to get it."""
    if found.missing:
        names = ", ".join(map(plain, found.missing))
        options = " ".join(f"--extent {plain(name)}=…" for name in found.missing)
        yield f"The inputs' sizes {names} are not given; what depends on them is unknown. Remedy: {options}"
    elif found.unsized:
        names = ", ".join(f"{plain(name)} ({counted(count, 'node')})" for name, count in found.unsized.items())
        yield (
            f"Only a run determines the sizes of {names}: sums exclude what is unknown and are lower bounds. Remedy: "
            "--run, which measures them by one run"
        )


def _fitted(rows: Sequence[list[str]], ends: Sequence[Sequence[str]], room: int) -> Iterator[list[str]]:
    """Rows whose strings fit next to their counts: the middle of operators is cut first, then shapes, then names.

    Args:
        rows: Name, operator, shape, and counts.
        ends: The first and the last line of each column.
        room: Width of a line in characters.
    """
    shown = [[*(shortened(text, _NAME) for text in row[:3]), *row[3:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, *zip(*ends, strict=True), strict=True)]
    excess = sum(widths) - room
    for place, least in _GIVING_WAY:
        cut = max(0, min(excess, widths[place] - least))
        widths[place] -= cut
        excess -= cut
    names = [shortened(row[0], min(_NAME, widths[0])) for row in rows]
    often = Counter(names)
    for place, (row, name) in enumerate(zip(rows, names, strict=True)):
        mark = f" [{place + 1}]" if often[name] > 1 else ""
        own = shortened(row[0], max(3, min(_NAME, widths[0]) - len(mark))) + mark
        yield [own, *(shortened(row[column], min(_NAME, widths[column])) for column in (1, 2)), *row[3:]]


def _totals(found: NetworkAnalysis) -> list[tuple[str, str]]:
    least = "" if found.exact else "at least "
    rates = "" if found.exact else "of what is known "
    bytes_of = {
        name: f"{'at least ' if found.unsized and name != 'parameter_bytes' else ''}{size(getattr(found, name))}"
        for name in ("parameter_bytes", "activation_bytes", "peak_training_bytes")
    }
    parallel, intensity = found.average_parallelism, found.intensity
    return [
        ("parameters", f"{found.parameters:,} ({bytes_of['parameter_bytes']})"),
        ("multiply-adds", f"{least}{found.macs:,}"),
        ("FLOPs, work W", f"{least}{found.flops:,}"),
        ("depth D", f"{least}{found.depth:,}"),
        ("average parallelism W/D", "-" if parallel is None else f"{rates}{parallel:,.0f}"),
        ("arithmetic intensity", "-" if intensity is None else f"{rates}{intensity:.3g} FLOPs per byte"),
        ("activation memory", bytes_of["activation_bytes"]),
        ("peak training memory", f"{bytes_of['peak_training_bytes']}, without an optimizer's state and workspaces"),
    ]


def _plain(value: Any) -> Any:
    """An argument in JSON types; other values as their `repr`."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return repr(value)
