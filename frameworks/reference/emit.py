"""Compile a network to straight-line Python that calls kernels: a step does not interpret nodes in a loop."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported
from deep5.frameworks.reference.kernels.memory import Array, Scratch
from deep5.frameworks.reference.kernels.text import decoded
from deep5.frameworks.reference.operators import operator_for, supports
from deep5.frameworks.reference.table import Site
from deep5.networks.analysis.layer_clock import Owners
from deep5.networks.diagnostics.failures import places_of
from deep5.networks.network import Network
from deep5.networks.nodes import captures, reads
from deep5.networks.stamps import Stamps

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["Program", "compile_network"]

Notify = Callable[[int, Array], None]


class Program(NamedTuple):
    """A compiled network.

    Attributes:
        run: Takes the inputs in the network's order and `notify`, a callable or None; returns a tuple of outputs.
        source: The generated code.
    """

    run: Callable[..., tuple[Any, ...]]
    source: str


def compile_network(
    network: Network,
    values: Mapping[str, Array],
    scratch: Scratch,
    *,
    announced: Collection[str] = (),
    ranks: RankStatistics | None = None,
    stamps: Stamps | None = None,
) -> Program:
    """Generate and compile the code of a network.

    Names in the code are numbered, never taken from the model: a model file cannot write source text.

    Args:
        network: The network.
        values: Live parameters and buffers by name, bound once: the program reads their values at run time.
        scratch: The buffer for columns.
        announced: Outputs for which `notify` is called with (index of the output, value) as soon as they are computed;
            they are C-contiguous and do not share memory.
        ranks: Exchanges statistics if batch normalization is over the batch of all ranks.
        stamps: Times each node; None: no timing.

    Raises:
        Unsupported: Some nodes cannot run; the message gives the reason for each.
    """
    missing = [(node, answer) for node in network.nodes if not (answer := supports(node)).yes]
    if missing:
        lines = [f"{node.name or node.op_type} ({node.op_type}): {answer.reason}" for node, answer in missing]
        raise Unsupported("the reference cannot run the network; " + "; ".join(lines))
    graph = network.model.graph
    fed = [value for value in graph.inputs if value.name not in graph.initializers]

    def initial(value: ir.Value) -> Array:
        own = value.const_value if value.graph is not graph else None
        return network.initial(str(value.name)) if own is None else own.numpy()

    emitter = _Emitter(graph, fed, _Setting(values, initial, scratch, ranks, stamps), announced)
    if stamps is not None:
        emitter.watch(Owners(stamps.network, network))
    return emitter.program()


class _Setting(NamedTuple):
    """The common settings of the programs of a network and of its subgraphs."""

    values: Mapping[str, Array]
    initial: Callable[[ir.Value], Array]
    scratch: Scratch
    ranks: RankStatistics | None
    stamps: Stamps | None


class _Emitter:
    """Writes the program of a graph.

    Args:
        graph: The network's graph, or a subgraph.
        fed: The values that the program takes, in order.
        setting: The settings of the network.
        announced: The announced outputs.
        constants: Known values of surrounding graphs.
    """

    def __init__(
        self,
        graph: ir.Graph,
        fed: Sequence[ir.Value],
        setting: _Setting,
        announced: Collection[str] = (),
        constants: Mapping[ir.Value, Array] | None = None,
    ) -> None:
        self.nodes, self.setting, self.fed = list(graph), setting, fed
        self.table = {node: operator_for(node) for node in self.nodes}
        self.reads = {node: reads(node) for node in self.nodes}
        self.outputs = list(graph.outputs)
        self.returned = set(self.outputs)
        self.announced = {value: i for i, value in enumerate(self.outputs) if value.name in announced}
        self.names: dict[ir.Value, str] = {}
        self.bound: dict[str, Any] = {"own": _own, "copy": _copy}
        self.constants: dict[ir.Value, Array] = {}
        self.lines: list[str] = []
        self.owners: Owners | None = None
        # Values that own their memory: neither views, nor kept by an operator, nor bound, nor constant.
        shared = {node for node, operator in self.table.items() if operator.view or operator.keeps}
        self.fresh = {value for node in self.nodes if node not in shared for value in node.outputs}
        for value in self.fed:
            self.names[value] = f"v{len(self.names)}"
        for value, array in (constants or {}).items():
            self.hold(value, array)
        for name, value in graph.initializers.items():
            if name in setting.values:
                self.names[value] = self.bind("p", setting.values[name])
            elif value.const_value is not None:
                self.hold(value, setting.initial(value))
        # For every value: its last reader, the value whose memory it may share, and whether a view of it exists; for
        # every value that owns memory: the nodes that read it or a view of it.
        self.last: dict[ir.Value, ir.Node] = {}
        self.root: dict[ir.Value, ir.Value] = {}
        self.viewed: set[ir.Value] = set()
        self.readers: defaultdict[ir.Value, set[ir.Node]] = defaultdict(set)
        for node in self.nodes:
            view = self.table[node].view
            for value in self.reads[node]:
                self.last[value] = node
                self.readers[self.root.get(value, value)].add(node)
                if node in shared:
                    self.viewed.add(value)
            for value in node.outputs:
                source = node.inputs[0] if view else None
                self.root[value] = value if source is None else self.root.get(source, source)
        self.shared = Counter(self.root.get(value, value) for value in self.outputs)

    def watch(self, owners: Owners) -> None:
        """Time each layer."""
        assert self.setting.stamps is not None  # noqa: S101 - set by the caller
        self.owners = owners
        self.lines.append(f"{self.bind('begin', self.setting.stamps.begin)}()")

    def nested(self, node: ir.Node, graph: ir.Graph) -> Callable[..., tuple[Any, ...]]:
        """The program of a subgraph; it takes its inputs, then the captured values of the node's subgraphs."""
        around = [value for value in captures(node) if value not in self.constants]
        known = {value: self.constants[value] for value in captures(node) if value in self.constants}
        program = _Emitter(graph, [*graph.inputs, *around], self.setting._replace(stamps=None), (), known).program()
        return partial(program.run, notify=None)

    def bind(self, kind: str, thing: Any) -> str:
        name = f"{kind}{len(self.bound)}"
        self.bound[name] = thing
        return name

    def hold(self, value: ir.Value, array: Array) -> None:
        array = decoded(array) if isinstance(array, np.ndarray) else array
        self.constants[value] = array
        self.names[value] = self.bind("c", array)
        self.fresh.discard(value)

    def program(self) -> Program:
        for node in self.nodes:
            self.emit(node)
        for value in self.outputs:
            root = self.root.get(value, value)
            # An output must not share memory that a caller or a later step writes to.
            if value not in self.announced and (root not in self.fresh or self.shared[root] > 1):
                self.lines.append(f"{self.local(value)} = copy({self.names[value]})")
        results = "".join(f"{self.local(value)}, " for value in self.outputs)
        arguments = ", ".join([*(self.names[value] for value in self.fed), "notify"])
        body = "\n    ".join([*self.lines, f"return ({results})"])
        source = f"def run({arguments}):\n    {body}\n"
        space: dict[str, Any] = {**self.bound, **places_of(source, self.names)}
        exec(compile(source, "<deep5 reference program>", "exec"), space)  # noqa: S102 - source generated above
        # Infinities and NaNs are ordinary values, as in every engine; if they matter, the loss shows it.
        return Program(np.errstate(all="ignore")(space["run"]), source)

    def local(self, value: ir.Value) -> str:
        """The local variable that returns an output; not its name if that is a bound parameter or constant."""
        name = self.names[value]
        return name if name.startswith("v") else f"r{name}"

    def emit(self, node: ir.Node) -> None:
        operator = self.table[node]
        used = [value for value in node.outputs if value in self.last or value in self.returned]
        if not used:
            return
        count = 1 + max(i for i, value in enumerate(node.outputs) if value in used)
        setting = self.setting
        site = Site(
            node=node,
            given=tuple(i for i, value in enumerate(node.inputs) if value is not None),
            constants=self.constants,
            scratch=setting.scratch,
            outputs=count,
            ranks=setting.ranks,
            nested=partial(self.nested, node),
        )
        call = operator.make(site)
        arguments = [value for value in (node.inputs[i] for i in call.inputs) if value is not None]
        if call.captures:
            arguments += [value for value in captures(node) if value not in self.constants]
        known = all(value in self.constants for value in self.reads[node])
        if known and count == 1 and node.outputs[0] not in self.announced:
            made: Any = call.function(*(self.constants[value] for value in arguments))
            self.hold(node.outputs[0], _copy(made))
            return
        for value in node.outputs[:count]:
            self.names[value] = f"v{len(self.names)}"
        texts = [self.names[value] for value in arguments]
        if operator.in_place and (spare := self.spare(node, arguments)) is not None:
            texts.append(f"out={self.names[spare]}")
        targets = ", ".join(self.names[value] for value in node.outputs[:count])
        self.lines.append(f"{targets} = {self.bind('k', call.function)}({', '.join(texts)})")
        for value in node.outputs[:count]:
            if value in self.announced:
                self.announce(value)
        dead = [value for value in self.reads[node] if self.dies(value, node)]
        dead += [value for value in node.outputs[:count] if value not in used]
        if dead:
            self.lines.append("del " + ", ".join(self.names[value] for value in dead))
        if self.owners is not None and (group := self.owners.group([self.owners.of(str(node.name))])) is not None:
            stamps = setting.stamps
            assert stamps is not None  # noqa: S101 - there are owners
            self.lines.append(f"{self.bind('mark', stamps.mark)}({stamps.number(group)})")

    def announce(self, value: ir.Value) -> None:
        name, root = self.names[value], self.root[value]
        alone = root in self.fresh and self.shared[root] == 1 and self.only_views_end_here(root, value)
        self.lines.append(f"{name} = {'own' if alone else 'copy'}({name})")
        self.lines.append(f"if notify is not None: notify({self.announced[value]}, {name})")

    def only_views_end_here(self, root: ir.Value, value: ir.Value) -> bool:
        """Whether only the chain of views that ends in `value` reads its root."""
        chain, node = set(), value.producer()
        while node is not None and self.table[node].view and node.inputs[0] is not None:
            chain.add(node)
            node = node.inputs[0].producer()
        return self.readers[root] <= chain

    def dies(self, value: ir.Value, node: ir.Node) -> bool:
        return self.last[value] is node and value not in self.returned and self.names[value].startswith("v")

    def spare(self, node: ir.Node, arguments: list[ir.Value]) -> ir.Value | None:
        """An input whose memory may hold the output: it is not read again, and has the same shape and dtype."""
        result = node.outputs[0]
        for value in arguments:
            if (
                value in self.fresh
                and value not in self.viewed
                and self.dies(value, node)
                and value.dtype is not None
                and value.dtype == result.dtype
                and _known(value)
                and _known(result)
                and list(value.shape or ()) == list(result.shape or ())
            ):
                return value
        return None


def _known(value: ir.Value) -> bool:
    """Whether every dimension is a number or symbolic, and the rank is at least 1 (NumPy scalars are immutable)."""
    return bool(value.shape) and all(isinstance(e, int) or e.value is not None for e in value.shape or ())


def _own(value: Any) -> Array:
    """The value as a C-contiguous, writable array; unchanged if it is one."""
    array = np.asarray(value)
    return array if array.flags.c_contiguous and array.flags.writeable else array.copy(order="C")


def _copy(value: Any) -> Any:
    """A copy of an array; for a list, a list of the same arrays, which are never written to."""
    return value if value is None else list(value) if isinstance(value, list) else np.array(value, order="C")
