"""`MicrobatchPlan`: the chosen division of each layer, with its measurements."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deep5.core.quantities import seconds
from deep5.measuring.samples import Interval
from deep5.networks.arguments import check_network
from deep5.networks.microbatching.plan import Cost, Division
from deep5.networks.microbatching.transform import micro_batched
from deep5.networks.network import Network

__all__ = ["MicrobatchPlan", "PlannedLayer", "in_parts"]

_KIB, _MIB = 1 << 10, 1 << 20
# A byte count in KiB has at most this many decimals; in MiB fewer distinguish two counts.
_MOST_DIGITS = 10


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """A layer with its chosen division.

    Attributes:
        division: Its parts, with their measured time and workspace.
        costs: The measurements, by micro-batch size.
        reason: Why it is divided or not.
        ratio: Time of the parts over time undivided, measured as nodes of one network; None if the limit leaves no
            choice, or no division was faster.
    """

    division: Division
    costs: Mapping[int, Cost]
    reason: str
    ratio: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class MicrobatchPlan:
    """The division of the minibatch for each layer; `str()` formats it as a table.

    Attributes:
        batch: Samples of the minibatch.
        limit_bytes: Limit on the workspace of each layer or, if shared, of all layers together; None: no limit.
        shared: Whether the workspaces of all layers are allocated at the same time.
        framework: The framework of the measurements.
        threads: Its number of threads.
        layers: By node name.

    >>> import deep5 as d5
    >>> build = d5.NetworkBuilder("filter")
    >>> x, weight = build.input("x", ("N", 8, 32, 32)), build.parameter("weight", (8, 8, 3, 3))
    >>> network = build.network({"y": build.op("Conv", x, weight)})
    >>> plan = d5.networks.plan_microbatches(network, 16, 4 << 20, framework="reference", sizes=[4], rounds=3)
    >>> plan.parts, plan.whole, plan.workspace_bytes <= plan.limit_bytes < plan.undivided_workspace_bytes
    ({'Conv_1': (4, 4, 4, 4)}, False, True)
    >>> str(plan.applied(network).inputs["x"])
    'float32[16, 8, 32, 32]'
    """

    batch: int
    limit_bytes: int | None
    shared: bool
    framework: str
    threads: int | None
    layers: Mapping[str, PlannedLayer]

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """The sizes of the parts by node name, as `micro_batched` takes them."""
        return {name: layer.division.parts for name, layer in self.layers.items()}

    @property
    def whole(self) -> bool:
        """Whether no layer is divided."""
        return all(len(parts) == 1 for parts in self.parts.values())

    @property
    def seconds(self) -> float:
        """Time of all layers, forward and backward, as the sum of the times measured part by part, in seconds."""
        return sum(layer.division.seconds for layer in self.layers.values())

    @property
    def undivided_seconds(self) -> float:
        """The same time for undivided layers, in seconds."""
        return sum(layer.costs[self.batch].seconds for layer in self.layers.values())

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace of a layer or, if the limit is shared, the sum over all layers, in bytes."""
        return self._of_all([layer.division.workspace_bytes for layer in self.layers.values()])

    @property
    def undivided_workspace_bytes(self) -> int:
        """The same workspace for undivided layers, in bytes."""
        return self._of_all([layer.costs[self.batch].workspace_bytes for layer in self.layers.values()])

    def applied(self, network: Network) -> Network:
        """Apply the plan to a network with the same nodes as the measured one.

        Args:
            network: The network; it is not changed.

        Raises:
            UsageError: The argument is not a network.
            NetworkError: As for `micro_batched`.
        """
        check_network(network, "MicrobatchPlan.applied")
        own = {f"{node.domain}.{node.op_type}" for node in network.nodes if node.name in self.layers and node.domain}
        return micro_batched(network, self.parts, own=sorted(own))

    def _of_all(self, workspaces: Sequence[int]) -> int:
        return sum(workspaces) if self.shared else max(workspaces)

    def __str__(self) -> str:
        counts = [self.workspace_bytes, self.undivided_workspace_bytes]
        for layer in self.layers.values():
            counts += [layer.division.workspace_bytes, layer.costs[self.batch].workspace_bytes]
        shown = functools.partial(_shown, digits=_digits(counts, self.limit_bytes))
        kept = "none" if self.limit_bytes is None else shown(self.limit_bytes)
        total = "sum" if self.shared else "largest"
        scope = "all layers together" if self.shared else "each layer"
        rows = [("layer", "parts", "time", "undivided", "workspace", "undivided", "why")]
        for name, layer in self.layers.items():
            whole, division = layer.costs[self.batch], layer.division
            rows.append(
                (
                    name,
                    in_parts(division.parts),
                    seconds(division.seconds),
                    seconds(whole.seconds),
                    shown(division.workspace_bytes),
                    shown(whole.workspace_bytes),
                    layer.reason,
                )
            )
        rows.append(
            (
                "in all",
                "",
                seconds(self.seconds),
                seconds(self.undivided_seconds),
                f"{total} {shown(self.workspace_bytes)}",
                f"{total} {shown(self.undivided_workspace_bytes)}",
                "do not divide" if self.whole else "",
            )
        )
        widths = [max(len(row[place]) for row in rows) for place in range(7)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        threads = "" if self.threads is None else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        title = f"batch {self.batch} on {self.framework}{threads}; limit for {scope}: {kept}"
        return "\n".join([title, *lines])


def in_parts(parts: Sequence[int]) -> str:
    """`(16, 16, 8)` -> `"2 x 16 + 8"`."""
    counts = {size: parts.count(size) for size in dict.fromkeys(parts)}
    return " + ".join(str(size) if count == 1 else f"{count} x {size}" for size, count in counts.items())


def _digits(counts: Sequence[int], limit: int | None) -> int:
    """The fewest decimals with which every count other than the limit prints differently from the limit."""
    others = [] if limit is None else [count for count in counts if count != limit]
    digits = 1
    while digits < _MOST_DIGITS and any(_read(count, digits) == _read(limit, digits) for count in others):
        digits += 1
    return digits


def _unit(count: int) -> tuple[int, str]:
    return (_KIB, "KiB") if count < 10 * _MIB else (_MIB, "MiB")


def _read(count: int | None, digits: int) -> float | None:
    """The number of bytes that the printed value represents with this many digits."""
    if count is None:
        return None
    unit, _ = _unit(count)
    return float(f"{count / unit:.{digits}f}") * unit


def _shown(count: int, digits: int) -> str:
    unit, name = _unit(count)
    return f"{count / unit:.{digits}f} {name}"
