"""`MicrobatchPlan`: the parts that were chosen for layers, with what was measured of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deep5.measuring.samples import Interval
from deep5.networks.arguments import check_network
from deep5.networks.microbatching.plan import Cost, Division
from deep5.networks.microbatching.transform import micro_batched
from deep5.networks.network import Network

__all__ = ["MicrobatchPlan", "PlannedLayer", "in_parts"]

_KIB, _MIB = 1 << 10, 1 << 20
# A byte in KiB has no more digits than these, and one in MiB is told from the next by fewer.
_MOST_DIGITS = 10


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """A layer in the parts that were chosen for it.

    Attributes:
        division: Its parts, with the time and workspace that were measured of them.
        costs: What was measured, by the size of a micro-batch.
        reason: Why it is divided, or left whole.
        ratio: Time in parts over time undivided, measured as nodes of one network; None where the limit leaves no
            choice, or nothing was faster in parts.
    """

    division: Division
    costs: Mapping[int, Cost]
    reason: str
    ratio: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class MicrobatchPlan:
    """The parts in which layers take the minibatch; `str()` gives it as a table.

    Attributes:
        batch: Samples of the minibatch.
        limit_bytes: The most workspace of each layer, or where it is shared of all together; None: no limit.
        shared: Whether the workspaces of all layers are held at once.
        framework: On which it was measured.
        threads: Of the framework.
        layers: By the node's name.
    """

    batch: int
    limit_bytes: int | None
    shared: bool
    framework: str
    threads: int | None
    layers: Mapping[str, PlannedLayer]

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """By the node's name, the sizes of its parts, as `micro_batched` takes them."""
        return {name: layer.division.parts for name, layer in self.layers.items()}

    @property
    def whole(self) -> bool:
        """Whether every layer is left whole."""
        return all(len(parts) == 1 for parts in self.parts.values())

    @property
    def seconds(self) -> float:
        """Time of all layers, forward and backward, as measured of their parts one by one."""
        return sum(layer.division.seconds for layer in self.layers.values())

    @property
    def undivided_seconds(self) -> float:
        """The same, undivided."""
        return sum(layer.costs[self.batch].seconds for layer in self.layers.values())

    @property
    def workspace_bytes(self) -> int:
        """Of the layer with the most, or where the limit is shared of all together."""
        return self._of_all([layer.division.workspace_bytes for layer in self.layers.values()])

    @property
    def undivided_workspace_bytes(self) -> int:
        """The same, undivided."""
        return self._of_all([layer.costs[self.batch].workspace_bytes for layer in self.layers.values()])

    def applied(self, network: Network) -> Network:
        """The network in these parts; one of the same nodes as that which was measured.

        Raises:
            UsageError: No network.
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
        rows = [("layer", "parts", "ms", "undivided", "workspace", "undivided", "why")]
        for name, layer in self.layers.items():
            whole, division = layer.costs[self.batch], layer.division
            rows.append(
                (
                    name,
                    in_parts(division.parts),
                    f"{division.seconds * 1e3:.3g}",
                    f"{whole.seconds * 1e3:.3g}",
                    shown(division.workspace_bytes),
                    shown(whole.workspace_bytes),
                    layer.reason,
                )
            )
        rows.append(
            (
                "in all",
                "",
                f"{self.seconds * 1e3:.3g}",
                f"{self.undivided_seconds * 1e3:.3g}",
                f"{total} {shown(self.workspace_bytes)}",
                f"{total} {shown(self.undivided_workspace_bytes)}",
                "leave it whole" if self.whole else "",
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
    """Digits behind the point with which what is not the limit does not read as the limit does."""
    others = [] if limit is None else [count for count in counts if count != limit]
    digits = 1
    while digits < _MOST_DIGITS and any(_read(count, digits) == _read(limit, digits) for count in others):
        digits += 1
    return digits


def _unit(count: int) -> tuple[int, str]:
    return (_KIB, "KiB") if count < 10 * _MIB else (_MIB, "MiB")


def _read(count: int | None, digits: int) -> float | None:
    """The bytes that somebody takes a number for who reads it in so many digits."""
    if count is None:
        return None
    unit, _ = _unit(count)
    return float(f"{count / unit:.{digits}f}") * unit


def _shown(count: int, digits: int) -> str:
    unit, name = _unit(count)
    return f"{count / unit:.{digits}f} {name}"
