"""`from_jax`: an executor for networks written in JAX, with any library."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deep5.core.errors import ShapeError, Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.seeds import derive_seed
from deep5.core.tensors import Device, TensorSpec
from deep5.core.tensors import device as read_device
from deep5.frameworks.jax.executor import JAXExecutor
from deep5.frameworks.jax.flax_layers import given_masks
from deep5.frameworks.jax.program import Function
from deep5.frameworks.jax.storage import Storage
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.networks.probing import UNFIT, checked_inputs, checked_seed, misfit, said_of, tried
from deep5.networks.run_modes import TrainingForm, training_form

__all__ = ["StandIn", "draw_as_graph", "from_jax", "in_place_of", "named_leaves"]

Tree = Any
Leaves = tuple[dict[str, Any], Any]
Specs = Mapping[str, TensorSpec]
# Substitutes for symbolic dimensions during output inference: a dimension that differs between the two is symbolic.
_TRIALS = (8, 16)


def from_jax(
    apply: Callable[..., Any],
    parameters: Tree,
    *,
    inputs: Specs,
    outputs: Specs | None = None,
    loss: str = "loss",
    buffers: Tree | None = None,
    device: str | Device = "cpu",
    seed: int = 0,
) -> JAXExecutor:
    """An executor for a network that is a JAX function.

    The function is traced under the process's own setting of 64-bit types, as it would be without deep5: if they are
    disabled, it receives 64-bit integers as 32-bit ones.

    Update rules run the steps, through a `Trainer` or `executor.train_step(rule)`; or Optax's optimizers do
    (`native:adam`).

    Args:
        apply: `apply(parameters, inputs)` returns a dict of outputs by name, including the loss, such as
            `{"logits": ..., "loss": ...}`: it computes the loss itself, from the label among the inputs. `inputs` is a
            dict of arrays by name. With `buffers`, `apply(parameters, buffers, inputs, training=...)` instead returns
            such a dict and the new buffers. It must be pure: noise comes from a key among the buffers
            (`jax.random.key_data`), which it returns split.
        parameters: Any tree of floating-point arrays; names follow from the path, such as `dense/kernel`. Copied.
        inputs: A `TensorSpec` by name for each input that a caller feeds; a string in a shape is a symbolic dimension.
        outputs: The specs of the function's outputs; inferred if omitted.
        loss: Name of the scalar output to minimize.
        buffers: Any tree of arrays that training changes without a gradient. Copied.
        device: The device to run on.
        seed: The executor's seed.

    Returns:
        The executor; its `network` is a `NativeNetwork`.

    Raises:
        UsageError: An argument has the wrong type; duplicate names; no parameters, or some that are not floating-point;
            a function that does not run on such inputs, or returns another type.
        ShapeError: Outputs differ from their declaration.
        Unsupported: The loss is not a floating-point scalar, or a leaf is not an array.

    >>> import jax.numpy as jnp
    >>> def apply(parameters, inputs):
    ...     return {"loss": jnp.mean((inputs["x"] @ parameters["w"] - inputs["y"]) ** 2)}
    >>> specs = {"x": TensorSpec(shape=("N", 2)), "y": TensorSpec(shape=("N",))}
    >>> executor = from_jax(apply, {"w": jnp.zeros(2)}, inputs=specs)
    >>> executor.inference({"x": np.ones((3, 2), np.float32), "y": np.ones(3, np.float32)})["loss"].item()
    1.0
    """
    if not callable(apply):
        raise UsageError(f"got {apply!r} as apply; allowed: a function of parameters and inputs")
    if outputs is not None and not isinstance(outputs, Mapping):
        raise UsageError(f"got {outputs!r} as outputs; allowed: None, or a dict of TensorSpec by name")
    specs = checked_inputs(inputs)
    values, tree = named_leaves(parameters)
    held, held_tree = named_leaves({} if buffers is None else buffers)
    _check_leaves(values, held)
    program = _NativeProgram(apply, (values, tree), None if buffers is None else (held, held_tree))
    found = program.infer(specs)
    if outputs is not None and dict(outputs) != found:
        raise ShapeError(f"the function's outputs: got {_listed(found)}, declared {_listed(outputs)}")
    program.outputs = tuple(found)
    network = NativeNetwork(
        name=said_of(apply),
        inputs=specs,
        outputs=found,
        parameter_specs={name: _spec(value) for name, value in values.items()},
        buffer_specs={name: _spec(value) for name, value in held.items()},
        structure=program.structure,
        values={name: np.asarray(value) for name, value in {**values, **held}.items()},
    )
    executor = JAXExecutor(network, program, device=read_device(device), seed=checked_seed(seed))
    executor._check_loss(loss)
    # The executor has copied the values; from here on only their hash is needed.
    executor.network = replace(network, weights=network.weights_hash(), values={})
    return executor


def in_place_of(graph: Network, apply: Callable[..., Any], *, device: str | Device, seed: int) -> JAXExecutor:
    """The executor of a JAX function in place of the graph to which it was exported.

    Args:
        graph: The graph, whose parameters and buffers the function gets, by name.
        apply: As for `from_jax` with buffers; it also gets `noise`, the key data of a step's random numbers.
        device: As for `from_jax`.
        seed: As for `from_jax`.
    """
    program = StandIn(graph, apply)
    program.infer(graph.inputs)
    program.outputs = tuple(graph.outputs)
    return JAXExecutor(graph, program, device=read_device(device), seed=seed)


def draw_as_graph(executor: JAXExecutor) -> None:
    """Let an executor of `in_place_of` drop by the masks of the graph from now on.

    Raises:
        Unsupported: The masks of the graph are unknown before it runs.
    """
    assert isinstance(executor.program, StandIn)  # noqa: S101 - made by in_place_of
    executor.program.draw_as_graph()


class _NativeProgram:
    """A JAX function as an executor runs it; see `Program`.

    Args:
        apply: The function.
        parameters: Arrays by name, and their tree structure; the arrays are not kept.
        buffers: The same for buffers; None: the function takes none.

    Attributes:
        parameters: Shapes and dtypes by name.
        buffers: Shapes and dtypes by name.
        outputs: Names of the outputs, in the order in which they are returned.
        structure: Listing of the operations.
        fallible: False: the function itself handles what it compiles.
        untraceable: Empty: a function that JAX cannot trace is rejected earlier.
    """

    def __init__(self, apply: Callable[..., Any], parameters: Leaves, buffers: Leaves | None) -> None:
        self._apply, self._buffered, self._said = apply, buffers is not None, f"the function {said_of(apply)}"
        self.x64 = bool(jax.config.jax_enable_x64)
        self.stored: Mapping[str, Storage] = {}
        self.fallible, self.untraceable = False, ""
        self.outputs: tuple[str, ...] = ()
        self.structure = ""
        self.parameters, self._parameter_tree = _abstracted(parameters)
        self.buffers, self._buffer_tree = _abstracted(named_leaves({}) if buffers is None else buffers)
        self.evaluation = Function(lambda *given: self._call(*given, training=False), "")
        self.training = Function(lambda *given: self._call(*given, training=True), "")
        self._inputs: Specs = {}

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """No masks: the function draws its own noise."""
        return []

    def evaluation_key(self, info: StepInfo) -> list[np.ndarray]:
        """No key, for the same reason."""
        return []

    def infer(self, inputs: Specs) -> dict[str, TensorSpec]:
        """Specs of the outputs, inferred from two abstract calls with different dimensions."""
        self._inputs = inputs
        symbols = list(
            dict.fromkeys(extent for spec in inputs.values() for extent in spec.shape if isinstance(extent, str))
        )
        trials = [{symbol: first * (at + 1) for at, symbol in enumerate(symbols)} for first in _TRIALS]
        shapes = [self._abstract(trial) for trial in trials]
        found = {}
        for name, one in shapes[0].items():
            other = shapes[1].get(name)
            if other is None or len(other.shape) != len(one.shape):
                raise UsageError(
                    f"the output {name!r}, or its rank, depends on the sizes of the inputs; allowed: one rank"
                )
            extents: list[int | str] = []
            for axis, pair in enumerate(zip(one.shape, other.shape, strict=True)):
                same = [symbol for symbol in symbols if pair == (trials[0][symbol], trials[1][symbol])]
                extents.append(pair[0] if pair[0] == pair[1] else same[0] if same else f"{name}:{axis}")
            found[name] = TensorSpec(shape=tuple(extents), dtype=str(one.dtype))
        return found

    def _abstract(self, extents: Mapping[str, int]) -> dict[str, Any]:
        """Shapes and dtypes of the outputs with these values of the symbols; stores the listing."""
        given = {
            name: jax.ShapeDtypeStruct(
                tuple(extents[extent] if isinstance(extent, str) else extent for extent in spec.shape),
                np.dtype(spec.dtype),
            )
            for name, spec in self._inputs.items()
        }

        def run(parameters: Any, buffers: Any, feed: Any) -> Any:
            with jax.enable_x64(self.x64):
                return self._results(parameters, buffers, feed, training=True)

        with tried(self._said, given), jax.enable_x64(True):
            traced = jax.jit(run).trace(
                tuple(self.parameters.values()), tuple(self.buffers.values()), list(given.values())
            )
        # The listing may name functions by their addresses, which differ between processes.
        self.structure = re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr))
        found: dict[str, Any] = traced.out_info[0]
        return found

    def _call(self, parameters: Any, buffers: Any, feed: Any, *, training: bool) -> tuple[Any, Any]:
        try:
            outputs, new = self._results(parameters, buffers, feed, training=training)
        except UNFIT as error:
            raise misfit(self._said, dict(zip(self._inputs, feed, strict=True)), error) from error
        return tuple(outputs[name] for name in self.outputs), new

    def _results(self, parameters: Any, buffers: Any, feed: Any, *, training: bool) -> tuple[dict[str, Any], Any]:
        inputs, drawn = feed[: len(self._inputs)], feed[len(self._inputs) :]
        given = {name: _narrowed(value, self.x64) for name, value in zip(self._inputs, inputs, strict=True)}
        own = jax.tree.unflatten(self._parameter_tree, parameters)
        if not self._buffered:
            return _checked(self._apply(own, given)), buffers
        results = self._applied(own, jax.tree.unflatten(self._buffer_tree, buffers), given, training, drawn)
        if not isinstance(results, tuple) or len(results) != 2:
            raise UsageError(f"apply gave {type(results).__name__}; allowed: a dict of outputs, and the new buffers")
        outputs, new = results
        leaves, tree = jax.tree.flatten(new)
        if tree != self._buffer_tree:
            raise UsageError(
                f"apply gave buffers of the structure {tree}; allowed: that of the old ones, {self._buffer_tree}"
            )
        for name, before, after in zip(self.buffers, buffers, leaves, strict=True):
            if (before.shape, before.dtype) != (jnp.shape(after), jnp.result_type(after)):
                raise ShapeError(
                    f"the new buffer {name!r}: got {jnp.result_type(after)}{list(jnp.shape(after))}, "
                    f"expected {before.dtype}{list(before.shape)}"
                )
        return _checked(outputs), tuple(map(jnp.asarray, leaves))

    def _applied(self, own: Any, buffers: Any, given: Any, training: bool, drawn: Sequence[Any]) -> Any:
        return self._apply(own, buffers, given, training=training)


class StandIn(_NativeProgram):
    """A JAX function as it runs in place of a graph.

    Its random numbers in training follow from a key for each step, or are masks of the graph. Arguments are those of
    `in_place_of`.
    """

    def __init__(self, graph: Network, apply: Callable[..., Any]) -> None:
        names = graph.parameter_specs, graph.buffer_specs
        values = [OrderedDict((name, graph.initial(name)) for name in each) for each in names]  # JAX keeps this order
        super().__init__(apply, named_leaves(values[0]), named_leaves(values[1]))
        self._graph = graph
        self._form: TrainingForm | None = None
        self._drops = any(node.op_type == "Dropout" for node in graph.nodes)

    def draw_as_graph(self) -> None:
        """Drop by the masks of the graph from now on."""
        self._form = training_form(self._graph)

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """The masks of a step, or its key."""
        if self._form is not None:
            return self._form.draw(extents, info)
        if not self._drops:
            return []
        return [np.asarray(jax.random.key_data(jax.random.key(derive_seed(info.seed, "module", info.step))))]

    def _applied(self, own: Any, buffers: Any, given: Any, training: bool, drawn: Sequence[Any]) -> Any:
        if not training or self._form is None or not drawn:
            noise = drawn[0] if drawn else None
            return self._apply(own, buffers, given, training=training, noise=noise)
        with given_masks(str(self._graph.model.graph.name), list(zip(self._form.masks, drawn, strict=True))):
            return self._apply(own, buffers, given, training=training, noise=None)


def _checked(outputs: Any) -> dict[str, Any]:
    if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
        raise UsageError(f"apply gave {type(outputs).__name__}; allowed: a dict of outputs by name")
    found = {}
    for name, value in outputs.items():
        try:
            found[name] = jnp.asarray(value)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"apply gave the output {name!r} of type {type(value).__name__}; allowed: an array ({error})"
            ) from error
    return found


def _check_leaves(parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
    if not parameters:
        raise UsageError(
            'got parameters without any array; allowed: a tree of floating-point arrays, such as {"w": jnp.zeros(2)}'
        )
    twice = sorted(parameters.keys() & buffers.keys())
    if twice:
        raise UsageError(f"the names {twice} are those of parameters and of buffers; allowed: each name once")
    whole = [name for name, value in parameters.items() if not jnp.issubdtype(value.dtype, jnp.floating)]
    if whole:
        raise UsageError(f"the parameters {whole} are not floating-point; remedy: hand them over as buffers")


def _narrowed(value: Any, x64: bool) -> Any:
    """The array as JAX creates it when 64-bit types are disabled."""
    return value if x64 else value.astype(_NARROW.get(str(value.dtype), value.dtype))


_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def named_leaves(tree: Tree) -> Leaves:
    """Copies of a tree's leaves by path, and the tree's structure."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    found: dict[str, Any] = {}
    for path, leaf in pairs:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in found:
            raise UsageError(f"two leaves have the path {name!r}; allowed: each once")
        try:
            found[name] = jnp.array(leaf)
            np.dtype(found[name].dtype)
        except (OverflowError, TypeError, ValueError) as error:
            raise Unsupported(
                f"the leaf {name!r} is {type(leaf).__name__}; allowed: arrays of numbers ({error})"
            ) from error
    return found, structure


def _abstracted(leaves: Leaves) -> Leaves:
    """Shapes and dtypes instead of arrays."""
    return {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in leaves[0].items()}, leaves[1]


def _spec(value: Any) -> TensorSpec:
    return TensorSpec(shape=tuple(value.shape), dtype=str(value.dtype))


def _listed(specs: Specs) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in specs.items())
