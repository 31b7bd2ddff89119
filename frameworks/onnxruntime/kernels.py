"""`kernel_groups`: the layers that each kernel of an optimized graph computes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from deep5.core.layer_clock import Group
from deep5.networks.analysis.layer_clock import Owners, without_gaps
from deep5.networks.network import Network

__all__ = ["kernel_groups"]

# A node in blocked layout is named after the value that it originally computed.
_BLOCKED = re.compile(r"(.*)_nchwc(_token_\d+)?")
# The number of inputs of a blocked convolution with a fused sum: the last one is the other term.
_WITH_SUM = 4


def kernel_groups(path: Path, run: Network, owners: Owners) -> list[tuple[onnx.NodeProto, Group | None]]:
    """The kernels of an optimized graph in execution order, each with the layers that it computes.

    A kernel computes the nodes between its outputs and the results of earlier kernels. Kernels that ONNX Runtime adds,
    such as a change of layout, belong to the kernel that reads their result.

    Args:
        path: The file of the optimized model; weights are not read.
        run: The network of the session.
        owners: Maps its nodes to layers.
    """
    graph = onnx.load_model(path, load_external_data=False).graph
    made = {str(value.name): node for node in run.nodes for value in node.outputs if value.name}
    results = [list(_results(kernel, made)) for kernel in graph.node]
    stops = {name for names in results for name in names} | {value.name for value in graph.initializer}
    taken: set[ir.Node] = set()
    groups = []
    for names in results:
        nodes = _between(names, stops, made, taken)
        groups.append(owners.group(owners.of(str(node.name)) for node in nodes if node.op_type != "Constant"))
    readers: dict[str, list[int]] = {}
    for number, kernel in enumerate(graph.node):
        for name in kernel.input:
            readers.setdefault(name, []).append(number)
    read = [[number for name in kernel.output for number in readers.get(name, ())] for kernel in graph.node]
    return list(zip(graph.node, without_gaps(groups, read), strict=True))


def _results(kernel: onnx.NodeProto, made: dict[str, ir.Node]) -> Iterator[str]:
    """The values of the network that a kernel computes."""
    for name in kernel.output:
        if name in made:
            yield name
    blocked = _BLOCKED.fullmatch(kernel.name)
    if not kernel.domain or blocked is None or blocked[1] not in made:
        return
    # Operators fused into it later are not in its name.
    name = blocked[1]
    activation = next((each.s.decode() for each in kernel.attribute if each.name == "activation"), None)
    for more in ("Add" if len(kernel.input) >= _WITH_SUM and kernel.op_type == "Conv" else None, activation):
        if more is not None and made[name].op_type != more:
            value = next(value for value in made[name].outputs if value.name == name)
            reader = next((node for node in value.consumers() if node.op_type == more), None)
            name = name if reader is None else str(reader.outputs[0].name)
    yield name


def _between(names: Sequence[str], stops: set[str], made: dict[str, ir.Node], taken: set[ir.Node]) -> list[ir.Node]:
    """The nodes from these values back to `stops`, without those in `taken`, to which they are added."""
    found, waiting = [], [made[name] for name in names]
    while waiting:
        node = waiting.pop()
        if node in taken:
            continue
        taken.add(node)
        found.append(node)
        for value in node.inputs:
            if value is not None and value.name in made and value.name not in stops:
                waiting.append(made[str(value.name)])
    return found
