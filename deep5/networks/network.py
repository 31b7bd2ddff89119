"""`Network`: an ONNX model in onnx-ir, with the names that executors, gradients and recipes need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from deep5.core.deep500 import missing_attribute
from deep5.core.tensors import TensorSpec
from deep5.networks.constants import separate_roles
from deep5.networks.diagnostics.failures import unmakeable
from deep5.networks.edit import editing, freezing, initials, subnetwork
from deep5.networks.edit import loss as losses
from deep5.networks.hashes import hash_of_graph, hash_of_values
from deep5.networks.onnx.importing import import_model
from deep5.networks.onnx.initial_values import InitialValues, initial_value
from deep5.networks.onnx.name_lists import DEFAULTS, listed_names
from deep5.networks.onnx.overrides import overrides_of
from deep5.networks.onnx.parameters import Decision
from deep5.networks.onnx.specs import initial_specs, named_specs
from deep5.networks.onnx.weights import read_weights, write_weights
from deep5.networks.onnx.writing import model_proto, save_model

__all__ = ["Network"]


class Network:
    """A graph of ONNX operators with its initial weights.

    Initial values are read from the file, or drawn from their seed, only when requested; executors hold the live
    values. A network is immutable.

    Parameters (trained): the floating-point initial values that some node uses. Not trained: Constant nodes; inputs
    that configure an operator (bounds, a padding value, a ratio, class weights, the initial state of a recurrent
    layer), which are constants; and running statistics, which are buffers. Five rules
    (`deep5.networks.onnx.parameters`) decide which tensors of a file become which of these.

    Args:
        model: The model; the network takes ownership and does not copy it.
        decisions: What the tensors of its file are, and why.

    Raises:
        NetworkError: The model is not valid ONNX.

    Attributes:
        model: The `onnx_ir.Model`.
        nodes: Its nodes in execution order.
        inputs: Specifications of the inputs that a caller feeds, by name.
        outputs: Specifications of the outputs, by name.
        parameter_specs: Specifications of the trainable initial values, in the order of first use.
        frozen: Names of the parameters without a gradient, which optimizers do not change.
        trained_specs: `parameter_specs` without the frozen ones.
        buffer_specs: Specifications of values that training changes without a gradient (running statistics).
        default_specs: Specifications of the initial values that a call of `inference` may replace, because the file
            lists them as inputs, too: parameters, buffers or constants.
        decisions: For a network that `from_onnx` read: which tensors of the file are trained, which are not, why, and
            whether that is a guess; empty for others, also after an edit.

    >>> import deep5 as d5
    >>> network = d5.networks.mlp(features=4, hidden=3, classes=2)
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'input': 'float32[N, 4]', 'label': 'int64[N]'}
    >>> {name: value.shape for name, value in network.parameters().items()}
    {'fc1.weight': (3, 4), 'fc1.bias': (3,), 'fc2.weight': (2, 3), 'fc2.bias': (2,)}
    >>> list(network.freeze("fc1.*").trained_specs)  # a copy: a network never changes
    ['fc2.weight', 'fc2.bias']
    >>> again = d5.Network.from_onnx(network.to_onnx())
    >>> again.weights_hash() == network.weights_hash()
    True
    """

    if not TYPE_CHECKING:  # otherwise every attribute would be known to a type checker
        __getattr__ = missing_attribute

    def __init__(self, model: ir.Model, decisions: Sequence[Decision] = ()) -> None:
        self.model = model
        self.decisions = tuple(decisions)
        graph = model.graph
        self.inputs = named_specs([value for value in graph.inputs if value.name not in graph.initializers])
        self.outputs = named_specs(graph.outputs)
        copied = separate_roles(graph)
        self.nodes: tuple[ir.Node, ...] = tuple(graph)
        self.parameter_specs, self.buffer_specs = initial_specs(graph)
        self.frozen: frozenset[str] = freezing.frozen_names(model, self.parameter_specs)
        self.trained_specs = {name: spec for name, spec in self.parameter_specs.items() if name not in self.frozen}
        fed = frozenset(listed_names(model, DEFAULTS)) - copied
        self.default_specs = named_specs(value for name, value in graph.initializers.items() if name in fed)

    def __repr__(self) -> str:
        def shown(specs: Mapping[str, TensorSpec]) -> str:
            return ", ".join(f"{name} {spec}" for name, spec in specs.items()) or "nothing"

        count = sum(spec.size for spec in self.parameter_specs.values())
        name, frozen = self.model.graph.name, f", {len(self.frozen)} of them frozen" if self.frozen else ""
        return (
            f"<Network {name!r}: {shown(self.inputs)} -> {shown(self.outputs)}; {len(self.model.graph)} nodes, "
            f"{len(self.parameter_specs)} parameters of {count:,} numbers{frozen}>"
        )

    @classmethod
    def from_onnx(
        cls,
        path_or_model: str | Path | onnx.ModelProto,
        *,
        parameters: Mapping[str, bool] | Iterable[str] | None = None,
    ) -> Network:
        """Read a network; the result has opset 20 or newer, with functions inlined and constants folded.

        Args:
            path_or_model: An ONNX file, or a model in memory (copied).
            parameters: Which tensors of the file are trained. A mapping from names to True or False changes only these;
                a list of names means exactly these. Names may contain `*`, `?` and `[…]` as in file names: an exact
                name takes precedence, then the first pattern that matches. By default deep5 decides (`decisions`).

        Raises:
            NetworkError: A missing file, an invalid ONNX model, weights outside the model's folder, or a name in
                `parameters` that no tensor has, or that is of a tensor without a gradient.
        """
        return cls(*import_model(path_or_model, overrides_of(parameters)))

    @property
    def opset(self) -> int:
        """The version of the network's ONNX operator set."""
        return self.model.graph.opset_imports[""]

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Initial values that are neither parameters nor buffers (shapes, axes, indices), by name."""
        owned = self.parameter_specs.keys() | self.buffer_specs.keys()
        return {name: self.initial(name) for name in self.model.graph.initializers if name not in owned}

    def parameters(self) -> Mapping[str, np.ndarray]:
        """The initial values of the parameters by name, in the order of first use, each read on access."""
        return InitialValues(self.initial, self.parameter_specs)

    def buffers(self) -> Mapping[str, np.ndarray]:
        """The initial values of the buffers by name, each read on access."""
        return InitialValues(self.initial, self.buffer_specs)

    def initial(self, name: str) -> np.ndarray:
        """The initial value of a parameter, buffer or constant, as a fresh, writable array.

        Args:
            name: Name of the value.

        Raises:
            NetworkError: The name is unknown.
        """
        return initial_value(self.model, name)

    def with_values(self, values: Mapping[str, np.ndarray]) -> Network:
        """A copy of this network with other initial values.

        Args:
            values: New values by name, with the same shapes and dtypes; other values stay.

        Raises:
            NetworkError: The argument is not a mapping, a name is unknown, or a value does not fit.
        """
        return Network(initials.with_values(self.model, values))

    def with_outputs(self, names: Iterable[str]) -> Network:
        """A copy of this network that returns these values, in this order.

        Args:
            names: Names of computed values.

        Raises:
            NetworkError: A name that no node computes, a duplicate name, or no names.
        """
        return Network(subnetwork.with_outputs(self.model, names))

    def add_parameter(self, name: str, value: np.ndarray) -> Network:
        """A copy with one more initial value: a parameter, if it is floating-point and a node uses it as one.

        Args:
            name: An unused name.
            value: A numeric array; copied.

        Raises:
            NetworkError: The name is taken, or the array is not numeric.
        """
        return Network(initials.add_parameter(self.model, name, value))

    def add_node(
        self,
        op_type: str,
        inputs: Sequence[str | None],
        outputs: Sequence[str] | None = None,
        *,
        name: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Network:
        """A copy with one more node; its outputs are unused until `add_edge` or `with_outputs`.

        Args:
            op_type: An ONNX operator, or a registered one.
            inputs: Names of values; None for an omitted input.
            outputs: Names of its outputs; by default one, named after the node.
            name: Name of the node; by default the operator and a number.
            domain: Domain of a registered operator.
            attributes: Attributes of the node.

        Raises:
            NetworkError: An unknown operator or value, a taken name, or inputs that the operator does not accept.
        """
        return Network(editing.add_node(self.model, op_type, inputs, outputs, name, domain, attributes))

    def remove_node(self, name: str, *, bypass: str | None = None) -> Network:
        """A copy without a node, and without initial values that only this node used.

        Args:
            name: Name of the node.
            bypass: The input of the node that replaces its output in all readers; by default there may be no readers.

        Raises:
            NetworkError: An unknown node or input, a reader that would be left without an input, or shapes that do not
                fit.
        """
        return Network(editing.remove_node(self.model, name, bypass))

    def add_edge(self, value: str, node: str, position: int | None = None) -> Network:
        """A copy in which a node reads a value as an input, in place of its previous input.

        Args:
            value: The value.
            node: The node.
            position: Index of the node's input; by default a new one after the others.

        Raises:
            NetworkError: An unknown value or node, a cycle, or an input that the operator does not accept.
        """
        return Network(editing.add_edge(self.model, value, node, position))

    def remove_edge(self, node: str, position: int) -> Network:
        """A copy in which a node lacks an optional or variadic input, such as a bias.

        Args:
            node: Name of the node.
            position: Index of the input.

        Raises:
            NetworkError: An unknown node or input, or an input that the operator requires.
        """
        return Network(editing.remove_edge(self.model, node, position))

    def replace_node(
        self,
        name: str,
        op_type: str,
        inputs: Sequence[str | None] | None = None,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> Network:
        """A copy in which another operator replaces a node; the names of node and outputs stay.

        Args:
            name: Name of the node.
            op_type: The new operator.
            inputs: Names of values; by default those of the node.
            domain: Domain of a registered operator.
            attributes: Attributes of the new node; the previous node's attributes are dropped.

        Raises:
            NetworkError: An unknown node, operator or value, a cycle, or shapes that do not fit.
        """
        return Network(editing.replace_node(self.model, name, op_type, inputs, domain, attributes))

    def rename(self, old: str, new: str) -> Network:
        """A copy in which a value (an input, output, parameter or intermediate value), else a node, is renamed.

        Args:
            old: The name to replace.
            new: An unused name.

        Raises:
            NetworkError: The old name is unknown, or the new one is taken.
        """
        return Network(editing.rename(self.model, old, new))

    def freeze(self, *patterns: str) -> Network:
        """A copy in which parameters are frozen; they stay parameters.

        They have no gradient unless `wrt` names them, and no optimizer changes them. `save` stores the frozen names in
        the file.

        Args:
            patterns: Names of parameters, with `*`, `?` and `[…]` as in file names; none: all parameters.

        Raises:
            NetworkError: A pattern matches no parameter.
        """
        return Network(freezing.freeze(self.model, self.parameter_specs, patterns))

    def unfreeze(self, *patterns: str) -> Network:
        """A copy in which parameters are trained again.

        Args:
            patterns: As for `freeze`.

        Raises:
            NetworkError: As for `freeze`.
        """
        return Network(freezing.unfreeze(self.model, self.parameter_specs, patterns))

    def add_loss(
        self,
        scores: str = "logits",
        loss: str = "cross_entropy",
        *,
        label: str = "label",
        name: str = "loss",
        label_spec: TensorSpec | None = None,
    ) -> Network:
        """A copy with a loss as its last output.

        Args:
            scores: A value of type float: (N, classes, …) for the cross entropy, else of any shape.
            loss: A key of `deep5.networks.edit.loss.LOSSES`, which has the definitions: `"cross_entropy"`, `"mse"`, or
                `"binary_cross_entropy"`, which takes logits.
            label: An input of the network. A missing one is declared: (N, …) int64, or like the scores.
            name: Name of the loss.
            label_spec: Shape and element type of a missing label, with the batch dimension. For the last two losses,
                integers are converted, and a last dimension of size 1 may be missing.

        Raises:
            NetworkError: An unknown value or loss, a taken name, or shapes that do not fit.
        """
        return Network(losses.add_loss(self.model, scores, loss, label, name, label_spec))

    def subnetwork(self, inputs: Sequence[str], outputs: Sequence[str]) -> Network:
        """The part that computes some values from others, as a separate network with the parameters that it uses.

        Args:
            inputs: All values that the part needs; they become its inputs.
            outputs: The values that the part computes; they become its outputs.

        Raises:
            NetworkError: An unknown value, or a network input that the part needs but `inputs` does not name.
        """
        return Network(subnetwork.subnetwork(self.model, inputs, outputs))

    def refused_by(self, framework: str, error: Exception) -> Exception:
        """The error to raise if a back-end raised another one while it made the network runnable.

        Args:
            framework: The back-end's name.
            error: The error that it raised.
        """
        return unmakeable(error, framework, str(self.model.graph.name))

    def to_onnx(self) -> onnx.ModelProto:
        """The network as an `onnx.ModelProto`, all weights inside.

        Raises:
            NetworkError: It is larger than 2 GiB, the limit of such a model.
        """
        return model_proto(self.model)

    def save(self, path: str | Path) -> None:
        """Write the network as one ONNX file, atomically and weight by weight.

        Args:
            path: A file that ends in `.onnx`: `with_weights` recognizes the format by the suffix.

        Raises:
            UsageError: No path, or another suffix.
            NetworkError: It is larger than 2 GiB, the limit of such a file.
            OutputError: It cannot be written.
        """
        save_model(self.model, path)

    def save_weights(self, path: str | Path) -> None:
        """Write the initial values of parameters and buffers as a safetensors file, atomically.

        Args:
            path: A file that ends in `.safetensors`.

        Raises:
            UsageError: No path, or a file that does not end in `.safetensors`.
            MissingDependency: safetensors is not installed.
            OutputError: The file cannot be written.
        """
        write_weights(self, path)

    def with_weights(self, path: str | Path) -> Network:
        """A copy of this network with the initial values of a safetensors or ONNX file, matched by name.

        Args:
            path: A file that ends in `.safetensors` or `.onnx`.

        Raises:
            UsageError: No path, or a file of another type.
            MissingDependency: safetensors is not installed.
            NetworkError: A missing file, or values that are missing, unknown, misshapen or of another dtype.
        """
        untrained = {str(value.name) for node in self.nodes if node.op_type == "Constant" for value in node.outputs}
        untrained |= {decision.name for decision in self.decisions} | self.model.graph.initializers.keys()
        return self.with_values(read_weights({**self.parameter_specs, **self.buffer_specs}, path, untrained))

    def weights_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes of all initial parameters and buffers."""
        return hash_of_values({**self.parameter_specs, **self.buffer_specs}, self.initial)

    def structure_hash(self) -> str:
        """SHA-256 over opset, nodes, attributes, inputs and outputs, without the weights."""
        return hash_of_graph(
            self.model.graph,
            inputs=self.inputs,
            values={**self.parameter_specs, **self.buffer_specs},
            constants=self.constants,
            outputs=self.outputs,
            frozen=self.frozen,
        )
