"""`Network`: an ONNX model held by onnx-ir, with the names that executors, gradients and recipes need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from deep5.core.tensors import TensorSpec
from deep5.networks.constants import separate_roles
from deep5.networks.diagnostics.failures import unmakeable
from deep5.networks.edit import editing, freezing, initials, subnetwork
from deep5.networks.hashes import hash_of_lines, hash_of_values, node_lines
from deep5.networks.onnx.importing import import_model
from deep5.networks.onnx.initial_values import InitialValues, initial_value
from deep5.networks.onnx.specs import initial_specs, named_specs
from deep5.networks.onnx.weights import read_weights, write_weights
from deep5.networks.onnx.writing import model_proto, save_model

__all__ = ["Network"]


class Network:
    """A graph of ONNX operators with its initial weights.

    Initial values are read from the file, or drawn from their seed, only when asked for; live values belong to
    executors. A network is not changed after it was made.

    What is trained: the floating-point initial values that some node uses, also those that a file writes as Constant or
    ConstantOfShape nodes of more than one element. What is not: single numbers in Constant nodes (a scale, an
    epsilon) and whatever was folded, which stay Constant nodes; inputs that say how an operator works (bounds, a
    padding value, a ratio, the weights of classes, the state that a recurrent layer starts from), which are constants;
    and running statistics, which are buffers. A file of torch.onnx.export says itself what a parameter is.

    Args:
        model: The model; it is taken over, not copied.

    Raises:
        NetworkError: The model is not valid ONNX.

    Attributes:
        model: The `onnx_ir.Model`.
        inputs: Specifications of the inputs that a caller feeds, by name.
        outputs: Specifications of the outputs, by name.
        parameter_specs: Specifications of the trainable initial values, in the order of first use.
        frozen: Names of the parameters that no gradient is taken by and that optimizers leave as they are.
        trained_specs: `parameter_specs` without those that are frozen.
        buffer_specs: Specifications of values that training changes without a gradient (running statistics).
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        graph = model.graph
        self.inputs = named_specs(value for value in graph.inputs if value.name not in graph.initializers)
        self.outputs = named_specs(graph.outputs)
        separate_roles(graph)
        self.parameter_specs, self.buffer_specs = initial_specs(graph)
        self.frozen: frozenset[str] = freezing.frozen_names(model, self.parameter_specs)
        self.trained_specs = {name: spec for name, spec in self.parameter_specs.items() if name not in self.frozen}

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
    def from_onnx(cls, path_or_model: str | Path | onnx.ModelProto) -> Network:
        """Read a network; it comes out in opset 20 or newer, with functions inlined and constants folded.

        Args:
            path_or_model: A file in ONNX's format, or a model in memory (copied).

        Raises:
            NetworkError: No such file, not a valid ONNX model, or weights outside the model's folder.
        """
        return cls(import_model(path_or_model))

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes in the order of execution."""
        return list(self.model.graph)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operator set that the network is written in."""
        return self.model.graph.opset_imports[""]

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Initial values that are neither parameters nor buffers (shapes, axes, indices), by name."""
        owned = self.parameter_specs.keys() | self.buffer_specs.keys()
        return {name: self.initial(name) for name in self.model.graph.initializers if name not in owned}

    def parameters(self) -> Mapping[str, np.ndarray]:
        """The initial values of the parameters by name, in the order of first use, each read when it is asked for."""
        return InitialValues(self.initial, self.parameter_specs)

    def buffers(self) -> Mapping[str, np.ndarray]:
        """The initial values of the buffers by name, likewise."""
        return InitialValues(self.initial, self.buffer_specs)

    def initial(self, name: str) -> np.ndarray:
        """The initial value of a parameter, buffer or constant; a fresh, writable array.

        Raises:
            NetworkError: Nothing has that name.
        """
        return initial_value(self.model, name)

    def with_values(self, values: Mapping[str, np.ndarray]) -> Network:
        """A copy of this network with other initial values.

        Args:
            values: New values by name, of the same shapes and dtypes; what is not named stays.

        Raises:
            NetworkError: No mapping, an unknown name, or a value that does not fit.
        """
        return Network(initials.with_values(self.model, values))

    def with_outputs(self, names: Iterable[str]) -> Network:
        """A copy of this network that returns these values, in this order.

        Raises:
            NetworkError: No node computes such a value, one is named twice, or none is.
        """
        return Network(subnetwork.with_outputs(self.model, names))

    def add_parameter(self, name: str, value: np.ndarray) -> Network:
        """A copy with one more initial value: a parameter, where it is floating-point and a node uses it as one.

        Args:
            name: A name that no value has.
            value: Numbers; copied.

        Raises:
            NetworkError: The name is taken, or these are no numbers.
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
        """A copy with one more node; nothing uses its outputs until `add_edge` or `with_outputs` says so.

        Args:
            op_type: An operator of ONNX's own set, or one that was registered.
            inputs: Names of values; None for an input that is left out.
            outputs: Names for what it computes; left out: one, named after the node.
            name: The node's; left out: the operator and a number.
            domain: Of a registered operator.
            attributes: Of the node.

        Raises:
            NetworkError: No such operator or value, a name that is taken, or inputs that the operator does not take.
        """
        return Network(editing.add_node(self.model, op_type, inputs, outputs, name, domain, attributes))

    def remove_node(self, name: str, *, bypass: str | None = None) -> Network:
        """A copy without a node, and without initial values that it alone used.

        Args:
            name: The node's.
            bypass: The input of the node that those take who took its output; left out: nobody may take it.

        Raises:
            NetworkError: No such node or input, somebody would be left without an input, or the shapes do not fit.
        """
        return Network(editing.remove_node(self.model, name, bypass))

    def add_edge(self, value: str, node: str, position: int | None = None) -> Network:
        """A copy in which a node takes a value as an input, in place of what it took there.

        Args:
            value: What it takes.
            node: Who takes it.
            position: Which of the node's inputs; left out: one more, behind the others.

        Raises:
            NetworkError: No such value or node, a cycle, or an input that the operator does not take.
        """
        return Network(editing.add_edge(self.model, value, node, position))

    def remove_edge(self, node: str, position: int) -> Network:
        """A copy in which a node does without an input that is optional or one of a row, such as a bias.

        Raises:
            NetworkError: No such node or input, or the operator needs it.
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
        """A copy in which another operator computes what a node did; names of node and outputs stay.

        Args:
            name: The node's.
            op_type: The other operator.
            inputs: Names of values; left out: those of the node.
            domain: Of a registered operator.
            attributes: Of the new node; the old one's are not taken over.

        Raises:
            NetworkError: No such node, operator or value, a cycle, or shapes that do not fit.
        """
        return Network(editing.replace_node(self.model, name, op_type, inputs, domain, attributes))

    def rename(self, old: str, new: str) -> Network:
        """A copy in which a value (an input, output, parameter or one between), else a node, has another name.

        Raises:
            NetworkError: Nothing has the old name, or something else has the new one.
        """
        return Network(editing.rename(self.model, old, new))

    def freeze(self, *patterns: str) -> Network:
        """A copy in which parameters are frozen; they stay parameters.

        No gradient is taken by them unless `wrt` names them, and no optimizer changes them. A file that `save` writes
        says so.

        Args:
            patterns: Names of parameters, with `*`, `?` and `[…]` as in file names; none: all parameters.

        Raises:
            NetworkError: A pattern that matches no parameter.
        """
        return Network(freezing.freeze(self.model, self.parameter_specs, patterns))

    def unfreeze(self, *patterns: str) -> Network:
        """A copy in which parameters are trained again; see `freeze`. Raises as that."""
        return Network(freezing.unfreeze(self.model, self.parameter_specs, patterns))

    def add_loss(
        self, scores: str = "logits", loss: str = "cross_entropy", *, label: str = "label", name: str = "loss"
    ) -> Network:
        """A copy with a loss, the mean over the batch or, of the squared error, over all elements, as its last output.

        Args:
            scores: A value (N, classes, …), or, for the squared error, of any shape.
            loss: `"cross_entropy"` or `"mean_squared_error"`.
            label: An input of the network; one that is not there is declared: (N, …) int64, or as the scores.
            name: Of the loss.

        Raises:
            NetworkError: No such value, an unknown loss, a name that is taken, or shapes that do not fit.
        """
        return Network(subnetwork.add_loss(self.model, scores, loss, label, name))

    def subnetwork(self, inputs: Sequence[str], outputs: Sequence[str]) -> Network:
        """What computes some values from others, as a network of its own, with the parameters that it uses.

        Args:
            inputs: Values where it begins, all that it needs; they become its inputs.
            outputs: Values where it ends; they become its outputs.

        Raises:
            NetworkError: No such value, or an input of the network goes into it that is not named.
        """
        return Network(subnetwork.subnetwork(self.model, inputs, outputs))

    def refused_by(self, framework: str, error: Exception) -> Exception:
        """The error to raise where a back-end raised another one while it made the network runnable."""
        return unmakeable(error, framework, str(self.model.graph.name))

    def to_onnx(self) -> onnx.ModelProto:
        """The network as an `onnx.ModelProto`, all weights inside.

        Raises:
            NetworkError: It is larger than the 2 GiB that such a model can be.
        """
        return model_proto(self.model)

    def save(self, path: str | Path) -> None:
        """Write the network as one ONNX file, atomically and weight by weight.

        Args:
            path: A file that ends in `.onnx`: `with_weights` tells the formats apart by that.

        Raises:
            UsageError: Another ending, or no path.
            NetworkError: It is larger than the 2 GiB that such a file can be.
            OutputError: It cannot be written.
        """
        save_model(self.model, path)

    def save_weights(self, path: str | Path) -> None:
        """Write the initial values of parameters and buffers as a safetensors file, atomically.

        Raises:
            UsageError: The file does not end in `.safetensors`, or no path.
            MissingDependency: safetensors is not installed.
            OutputError: It cannot be written.
        """
        write_weights(self, path)

    def with_weights(self, path: str | Path) -> Network:
        """A copy of this network with the initial values of a safetensors or an ONNX file, by their names.

        Raises:
            UsageError: A file of another kind, or no path.
            MissingDependency: safetensors is not installed.
            NetworkError: No such file, or values that are missing, unknown, misshapen or of another dtype.
        """
        return self.with_values(read_weights({**self.parameter_specs, **self.buffer_specs}, path))

    def weights_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes of all initial parameters and buffers."""
        return hash_of_values({**self.parameter_specs, **self.buffer_specs}, self.initial)

    def structure_hash(self) -> str:
        """SHA-256 over opset, nodes, attributes, inputs and outputs, without the weights."""
        lines = [f"opset {domain} {version}" for domain, version in sorted(self.model.graph.opset_imports.items())]
        lines += [f"input {name} {spec}" for name, spec in self.inputs.items()]
        lines += [f"parameter {name} {spec}" for name, spec in {**self.parameter_specs, **self.buffer_specs}.items()]
        lines += [f"constant {name} {array.dtype} {array.tolist()}" for name, array in self.constants.items()]
        lines += node_lines(self.model.graph)
        lines += [f"output {name}" for name in self.outputs]
        lines += [f"frozen {name}" for name in sorted(self.frozen)]
        return hash_of_lines(lines)
