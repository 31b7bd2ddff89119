"""What a framework or a kernel raises when a network does not run, as an error of deep5 that names the node."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.core.errors import Deep5Error, NetworkError
from deep5.networks.diagnostics.refusals import first_line
from deep5.networks.onnx.element_types import called

__all__ = ["PLACES", "Places", "allowed_for", "culprit", "failed", "is_own", "places_of", "reported_by", "unmakeable"]

PLACES = "deep5_places"
"""The global of a generated program that says which line is which node's."""
# What frameworks say where memory does not suffice.
_MEMORY = re.compile(r"allocat|not enough memory|out of memory|OOM|storage size|too big|overflow", re.IGNORECASE)
# As much of what a framework says; some print whole tensors.
_LONGEST = 300


class Places(NamedTuple):
    """Whose the lines of a generated program are.

    Attributes:
        source: The program.
        nodes: The node that computes what an identifier stands for.
    """

    source: str
    nodes: Mapping[str, ir.Node]

    def at(self, line: int) -> ir.Node | None:
        """The node whose line it is; None where that is not known."""
        lines = self.source.splitlines()
        if not 0 < line <= len(lines):
            return None
        targets = lines[line - 1].partition(" = ")[0].replace(",", " ").split()
        return next((self.nodes[target] for target in targets if target in self.nodes), None)


def is_own(error: BaseException) -> bool:
    """Whether an error is one of deep5's, an assertion in its code, which is deep5's mistake, or a TimeoutError, which
    only a signal handler of the caller raises: none is reworded."""
    if not isinstance(error, AssertionError):
        return isinstance(error, Deep5Error | TimeoutError)
    frames = [frame for frame, _ in _frames(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("deep5.")


def failed(error: Exception, framework: str, said: str | None = None) -> Exception:
    """The error to raise where a network does not run on what it is fed.

    Args:
        error: What was raised.
        framework: Who runs the network.
        said: What the error says; left out: `reported_by(error)`.

    Returns:
        The error itself where it is deep5's own.
    """
    if is_own(error):
        return error
    reported = said or reported_by(error)
    return NetworkError(
        f"{framework} cannot run the network on these inputs ({_where(error)}{reported}); {allowed_for(reported)}"
    )


def allowed_for(reported: str) -> str:
    """What is allowed and the remedy, after what a framework reports of a run that failed."""
    if _MEMORY.search(reported):
        return "allowed: arrays that fit into memory; remedy: smaller inputs, or smaller sizes in them"
    return (
        "allowed: labels and indices within their range, shapes that fit; remedy: compare the inputs with "
        "network.inputs, and indices with the sizes of what they index"
    )


def unmakeable(error: Exception, framework: str, network: str) -> Exception:
    """The error to raise where a network of this name cannot be made runnable; else as `failed`."""
    if is_own(error):
        return error
    return NetworkError(
        f"{framework} cannot run the network {network!r} ({_where(error)}{reported_by(error)}); allowed: "
        "attributes and shapes that fit the operator, and no more memory than there is; remedy: other ones, or another "
        "back-end"
    )


def _where(error: Exception) -> str:
    node = culprit(error)
    return "" if node is None else f"{called(node.name, node.op_type, [value.name for value in node.outputs])}: "


def reported_by(error: Exception) -> str:
    """What an error says, in one line, with its class where it says little without."""
    if isinstance(error, MemoryError):
        return f"there is not enough memory ({first_line(error)})"
    if isinstance(error, RecursionError):
        return "graphs or functions are nested too deeply"
    said = first_line(error)[:_LONGEST]
    return f"{type(error).__name__}: {said}" if isinstance(error, LookupError | AttributeError) else said


def culprit(error: BaseException) -> ir.Node | None:
    """The node at which an error arose: the innermost that a generated program or a function was at work on."""
    found = None
    for frame, line in _frames(error.__traceback__):
        places = frame.f_globals.get(PLACES)
        if isinstance(places, Places) and frame.f_code.co_filename.startswith("<deep5"):
            found = places.at(line) or found
        elif isinstance(node := frame.f_locals.get("node"), ir.Node):
            found = node
    return found


def _frames(trace: types.TracebackType | None) -> Iterator[tuple[types.FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def places_of(source: str, names: Mapping[ir.Value, str]) -> dict[str, Any]:
    """The global that says whose the lines of a program are.

    Args:
        source: The program.
        names: The identifier of each value.
    """
    made = {name: node for value, name in names.items() if (node := value.producer()) is not None}
    return {PLACES: Places(source, made)}
