"""`from_jax`: an executor for networks that are written in JAX, whatever library wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deep5.errors import ShapeError, Unsupported, UsageError
from deep5.events import StepInfo
from deep5.frameworks.jax.emit import Function
from deep5.frameworks.jax.executor import JAXExecutor
from deep5.frameworks.jax.storage import Storage
from deep5.networks.native import NativeNetwork
from deep5.tensors import Device, TensorSpec
from deep5.tensors import device as read_device

__all__ = ["from_jax"]

Tree = Any
Specs = Mapping[str, TensorSpec]
# Extents that stand for symbolic ones while outputs are inferred: what changes from one to the other is symbolic.
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
    """An executor for a network that is a function of JAX.

    The function is traced under the process's own setting of 64-bit types, as it would be without deep5: where they are
    off, whole numbers of 64 bits reach it as 32.

    Args:
        apply: `apply(parameters, inputs)` gives a dict of outputs by name. With `buffers`, instead
            `apply(parameters, buffers, inputs, training=...)` gives such a dict, and the new buffers. It must be pure:
            noise comes from a key among the buffers (`jax.random.key_data`), which it returns split.
        parameters: Any tree of floating-point arrays; names are made of the path, such as `dense/kernel`. Copied.
        inputs: Specifications by name; a string in a shape is a symbolic extent.
        outputs: What the function must give; found out where left out.
        loss: Name of the scalar output to minimise.
        buffers: Any tree of arrays that training changes without a gradient. Copied.
        device: Where it runs.
        seed: Kept as the executor's.

    Returns:
        The executor; its `network` is a `NativeNetwork`.

    Raises:
        UsageError: Names that are used twice, parameters that are not floating-point, symbolic extents that `apply`
            does not keep apart, or a function that gives something else.
        ShapeError: Outputs are not as declared.
        Unsupported: The loss is no floating-point scalar, or a leaf is no array.

    >>> import jax.numpy as jnp
    >>> def apply(parameters, inputs):
    ...     return {"loss": jnp.mean((inputs["x"] @ parameters["w"] - inputs["y"]) ** 2)}
    >>> specs = {"x": TensorSpec(shape=("N", 2)), "y": TensorSpec(shape=("N",))}
    >>> executor = from_jax(apply, {"w": jnp.zeros(2)}, inputs=specs)
    >>> executor.inference({"x": np.ones((3, 2), np.float32), "y": np.ones(3, np.float32)})["loss"].item()
    1.0
    """
    program = _NativeProgram(apply, parameters, buffers)
    found = program.infer(inputs)
    if outputs is not None and dict(outputs) != found:
        raise ShapeError(f"the function's outputs: got {_listed(found)}, declared {_listed(outputs)}")
    program.outputs = tuple(found)
    network = NativeNetwork(
        name=getattr(apply, "__qualname__", type(apply).__name__),
        inputs=dict(inputs),
        outputs=found,
        parameters={name: _spec(value) for name, value in program.parameters.items()},
        buffers={name: _spec(value) for name, value in program.buffers.items()},
        values={name: np.asarray(value) for name, value in {**program.parameters, **program.buffers}.items()},
        structure=program.structure,
    )
    executor = JAXExecutor(network, program, device=read_device(device), seed=seed)
    executor._check_loss(loss)
    return executor


class _NativeProgram:
    """A function of JAX as an executor runs it; see `Program`.

    Attributes:
        parameters: Initial arrays by name.
        buffers: Initial arrays by name.
        outputs: Names of the outputs, in the order in which they are returned.
        structure: Listing of the operations.
    """

    def __init__(self, apply: Callable[..., Any], parameters: Tree, buffers: Tree | None) -> None:
        self._apply, self._buffered = apply, buffers is not None
        self.x64 = bool(jax.config.jax_enable_x64)
        self.stored: Mapping[str, Storage] = {}
        self.outputs: tuple[str, ...] = ()
        self.structure = ""
        self.parameters, self._parameter_tree = _named(parameters)
        self.buffers, self._buffer_tree = _named({} if buffers is None else buffers)
        twice = sorted(self.parameters.keys() & self.buffers.keys())
        if twice:
            raise UsageError(f"the names {twice} are those of parameters and of buffers; allowed: each name once")
        whole = [name for name, value in self.parameters.items() if not jnp.issubdtype(value.dtype, jnp.floating)]
        if whole:
            raise UsageError(f"the parameters {whole} are not floating-point; remedy: hand them over as buffers")
        self.evaluation = Function(lambda *given: self._call(*given, training=False), "")
        self.training = Function(lambda *given: self._call(*given, training=True), "")
        self._inputs: Specs = {}

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """There are no masks: the function's noise is its own."""
        return []

    def infer(self, inputs: Specs) -> dict[str, TensorSpec]:
        """Specifications of the outputs, from two abstract calls with different extents."""
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
                    f"the output {name!r} comes and goes with the extents of the inputs; allowed: one form"
                )
            extents: list[int | str] = []
            for axis, pair in enumerate(zip(one.shape, other.shape, strict=True)):
                same = [symbol for symbol in symbols if pair == (trials[0][symbol], trials[1][symbol])]
                extents.append(pair[0] if pair[0] == pair[1] else same[0] if same else f"{name}:{axis}")
            found[name] = TensorSpec(shape=tuple(extents), dtype=str(one.dtype))
        return found

    def _abstract(self, extents: Mapping[str, int]) -> dict[str, Any]:
        """Shapes and types of the outputs where symbols have these extents; notes the listing."""
        given = [
            jax.ShapeDtypeStruct(
                tuple(extents[extent] if isinstance(extent, str) else extent for extent in spec.shape),
                np.dtype(spec.dtype),
            )
            for spec in self._inputs.values()
        ]

        def run(parameters: Any, buffers: Any, feed: Any) -> Any:
            with jax.enable_x64(self.x64):
                return self._results(parameters, buffers, feed, training=True)

        with jax.enable_x64(True):
            traced = jax.jit(run).trace(tuple(self.parameters.values()), tuple(self.buffers.values()), given)
        # What functions are called inside may be told by their addresses, which differ from process to process.
        self.structure = re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr))
        found: dict[str, Any] = traced.out_info[0]
        return found

    def _call(self, parameters: Any, buffers: Any, feed: Any, *, training: bool) -> tuple[Any, Any]:
        outputs, new = self._results(parameters, buffers, feed, training=training)
        return tuple(outputs[name] for name in self.outputs), new

    def _results(self, parameters: Any, buffers: Any, feed: Any, *, training: bool) -> tuple[dict[str, Any], Any]:
        given = {name: _narrowed(value, self.x64) for name, value in zip(self._inputs, feed, strict=True)}
        own = jax.tree.unflatten(self._parameter_tree, parameters)
        if not self._buffered:
            return _checked(self._apply(own, given)), buffers
        results = self._apply(own, jax.tree.unflatten(self._buffer_tree, buffers), given, training=training)
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


def _checked(outputs: Any) -> dict[str, Any]:
    if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
        raise UsageError(f"apply gave {type(outputs).__name__}; allowed: a dict of outputs by name")
    return {name: jnp.asarray(value) for name, value in outputs.items()}


def _narrowed(value: Any, x64: bool) -> Any:
    """The array as JAX makes it where 64-bit types are off."""
    return value if x64 else value.astype(_NARROW.get(str(value.dtype), value.dtype))


_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def _named(tree: Tree) -> tuple[dict[str, Any], Any]:
    """Copies of a tree's leaves by their path, and the tree's structure."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    found: dict[str, Any] = {}
    for path, leaf in pairs:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in found:
            raise UsageError(f"two leaves have the path {name!r}; allowed: each once")
        try:
            found[name] = jnp.array(leaf)
            np.dtype(found[name].dtype)
        except TypeError as error:
            raise Unsupported(
                f"the leaf {name!r} is {type(leaf).__name__}; allowed: arrays of numbers ({error})"
            ) from error
    return found, structure


def _spec(value: Any) -> TensorSpec:
    return TensorSpec(shape=tuple(value.shape), dtype=str(value.dtype))


def _listed(specs: Specs) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in specs.items())
