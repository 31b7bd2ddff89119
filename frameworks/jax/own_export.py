"""The export of a user's network in JAX to ONNX, by jax2onnx, with its parameters as initial values."""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, get_args

import jax
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np

from deep5.core.errors import MissingDependency, Unsupported, described
from deep5.core.own_files import is_own_file
from deep5.core.own_model import Exported
from deep5.core.tensors import TensorSpec
from deep5.frameworks.jax.exporting import as_called, converted, needed, place_of, reachable, same_computation
from deep5.frameworks.jax.flax_layers import FlaxCalls
from deep5.networks.layer_calls import Trace
from deep5.networks.onnx.converted import with_initial_values

__all__ = ["OwnNetwork", "check_float64", "exported"]


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """A network in JAX as a function.

    Attributes:
        name: Its name.
        parameters: The parameters by name.
        buffers: The other values that it reads or changes, by name.
        inputs: Specifications of the inputs and the label, the label last.
        run: Returns the output, also the loss if the last value is the label, and the new buffers; for the values of
            the parameters, of the buffers and of the inputs, in order, and whether it trains.
        with_loss: Whether the loss is the user's own function, and part of the export.
        noise: Names of the buffers that hold the keys of random numbers.
    """

    name: str
    parameters: Mapping[str, Any]
    buffers: Mapping[str, Any]
    inputs: Mapping[str, TensorSpec]
    run: Callable[[Sequence[Any], Sequence[Any], Sequence[Any], bool], tuple[Sequence[Any], Sequence[Any]]]
    with_loss: bool
    noise: tuple[str, ...]

    @property
    def given(self) -> dict[str, TensorSpec]:
        """The inputs of the export."""
        return dict(list(self.inputs.items())[: None if self.with_loss else -1])

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the export."""
        return ("logits", "loss") if self.with_loss else ("logits",)


def exported(network: OwnNetwork) -> Exported:
    """The export of a network.

    Raises:
        MissingDependency: jax2onnx is not installed.
        Unsupported: The network cannot be exported, or trains otherwise than it evaluates, with the line of the user's
            code if it is known.
    """
    try:
        version = metadata.version("jax2onnx")
    except metadata.PackageNotFoundError as error:
        raise MissingDependency(
            "exporting a JAX model needs the package 'jax2onnx', which is not installed; remedy: pip install "
            "'deep5[jax-export]', or run the model as it is on jax"
        ) from error
    with jax.enable_x64(_is_double(network)):
        specs = _specs(network)
        traced = _traced(network, specs)
        changes = _changes(traced.jaxpr)
        try:
            with _quiet():
                proto = converted(network.name, traced, specs)
        except Exception as error:
            raise Unsupported(_not_converted(network.name, traced.jaxpr, error)) from error
    values = {**network.parameters, **network.buffers}
    proto = with_initial_values(proto, network.name, list(network.given), values, network.outputs)
    stored = {value.name for value in proto.graph.initializer}
    unused = [name for name in network.parameters if name not in stored]
    changes += [f"the parameter {name} is not used, and is omitted" for name in unused]
    return Exported(
        proto=as_called(proto, network.given),
        trained=tuple(name for name in network.parameters if name in stored),
        frozen=(),
        changes=tuple(changes),
        exporter=f"jax2onnx {version}",
    )


def check_float64(network: OwnNetwork) -> None:
    """Check that a network computes in float64 if its parameters and inputs have this type.

    Raises:
        Unsupported: It converts arrays to a shorter type.
    """
    with jax.enable_x64(True):
        doubled = replace(
            network,
            parameters=_doubled(network.parameters),
            buffers=_doubled(network.buffers),
            inputs={
                name: TensorSpec(shape=spec.shape, dtype="float64") if spec.dtype.startswith("float") else spec
                for name, spec in network.inputs.items()
            },
        )
        traced = jax.make_jaxpr(_function(doubled, training=True))(*_specs(doubled))
    for equation, _ in reachable(traced.jaxpr):
        after = equation.outvars[0].aval
        if (
            equation.primitive.name == "convert_element_type"
            and after.ndim
            and _narrows(equation.invars[0].aval, after)
        ):
            raise Unsupported(
                f"{network.name} computes in {after.dtype}{place_of(equation)}, whatever the type of its parameters"
            )


def _doubled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: jnp.asarray(value, "float64") if jnp.issubdtype(value.dtype, jnp.floating) else value
        for name, value in values.items()
    }


def _narrows(before: Any, after: Any) -> bool:
    return before.dtype == np.float64 and jnp.issubdtype(after.dtype, jnp.floating) and after.dtype != np.float64


def _is_double(network: OwnNetwork) -> bool:
    return any(value.dtype == np.float64 for value in network.parameters.values())


def _specs(network: OwnNetwork) -> list[Any]:
    """Specifications of all arguments for JAX: the inputs, with symbolic dimensions; the parameters and buffers."""
    symbols = {extent: None for spec in network.inputs.values() for extent in spec.shape if isinstance(extent, str)}
    dims = dict(zip(symbols, jax.export.symbolic_shape(",".join(symbols)), strict=True)) if symbols else {}
    return [
        *(
            jax.ShapeDtypeStruct(
                [dims[extent] if isinstance(extent, str) else extent for extent in spec.shape],
                jax.dtypes.canonicalize_dtype(spec.dtype),
            )
            for spec in network.given.values()
        ),
        *(
            jax.ShapeDtypeStruct(value.shape, value.dtype)
            for value in (*network.parameters.values(), *network.buffers.values())
        ),
    ]


def _function(network: OwnNetwork, *, training: bool) -> Callable[..., tuple[Any, ...]]:
    """The network as a function of the arguments in the order of `_specs`."""
    held, buffers = len(network.parameters) + len(network.buffers), len(network.buffers)

    def run(*given: Any) -> tuple[Any, ...]:
        inputs, own, state = given[:-held], given[-held : len(given) - buffers], given[len(given) - buffers :]
        outputs, new = network.run(own, state, inputs, training)
        return *outputs, *new

    return run


def _traced(network: OwnNetwork, specs: Sequence[Any]) -> Any:
    """The network as JAX traces it, in training, with an equation for each batch normalization and dropout.

    Raises:
        Unsupported: JAX cannot trace it for batches of any size, it computes another function in evaluation beyond
            these layers, or it reads values that it changes.
    """
    full, calls = dict[Trace, Any](), FlaxCalls()
    for trace in get_args(Trace):
        try:
            with calls.traced(trace):
                full[trace] = jax.make_jaxpr(_function(network, training=trace != "evaluation"))(*specs)
        except Exception as error:
            raise Unsupported(
                f"{network.name} cannot be exported to ONNX{_where(error)}: {_first_line(error)}; remedy: run it as it "
                "is on jax, or write it for batches of any size, and what depends on values with jnp.where or "
                "jax.lax.cond"
            ) from error
    traced = {trace: needed(each, len(network.outputs)) for trace, each in full.items()}
    remedy = "remedy: run it as it is on jax, or leave these layers out"
    if calls.twice:
        raise Unsupported(
            f"{network.name} calls a batch normalization more than once ({calls.twice}), and each call of its training "
            f"changes its statistics; {remedy}"
        )
    if not same_computation(traced["without dropout"], traced["evaluation"]):
        raise Unsupported(
            f"{network.name} computes another function in training than in evaluation, beyond dropout and batch "
            f"normalization as ONNX defines them, and its training is not exported; {remedy}"
        )
    jaxpr = traced["training"].jaxpr
    used = {id(each) for equation in jaxpr.eqns for each in equation.invars} | set(map(id, jaxpr.outvars))
    before = jaxpr.invars[len(jaxpr.invars) - len(network.buffers) :]
    after = full["training"].jaxpr.outvars[len(network.outputs) :]
    for name, old, new in zip(network.buffers, before, after, strict=True):
        if id(old) in used and new is not old:
            raise Unsupported(f"{network.name} reads {name}, which its training changes; {remedy}")
    return traced["training"]


# Between the maximum that a softmax or a logarithm of a sum subtracts, and where JAX stops its gradient.
_PASSED = frozenset(("broadcast_in_dim", "max", "reshape", "select_n", "squeeze", "transpose"))


def _changes(jaxpr: Any) -> list[str]:
    """What the export changes about gradients.

    Raises:
        Unsupported: A gradient stops, which no operator of ONNX does; or random numbers are drawn.
    """
    found: dict[str, None] = {}
    for equation, made in reachable(jaxpr):
        if equation.primitive.name == "custom_vjp_call":
            name = equation.params["call_jaxpr"].jaxpr.debug_info.func_name
            found[f"the derivative that {name} defines (jax.custom_vjp) is that of ONNX's operators"] = None
        if equation.primitive.name.startswith(("random_", "threefry")):
            raise Unsupported(
                f"the network draws random numbers{place_of(equation)}, and deep5 draws others on other frameworks; "
                "remedy: run it as it is on jax"
            )
        if equation.primitive.name == "stop_gradient" and not _is_maximum(equation, made):
            raise Unsupported(
                f"the network stops a gradient{place_of(equation)} (jax.lax.stop_gradient), and ONNX has no operator "
                "that does; remedy: run it as it is on jax"
            )
    return list(found)


def _is_maximum(equation: Any, made: Mapping[Any, Any]) -> bool:
    """Whether a gradient stops at a maximum, which JAX subtracts from and adds to a result: it has none."""
    waiting, found = list(equation.invars), False
    while waiting:
        atom = waiting.pop()
        source = None if isinstance(atom, jax.extend.core.Literal) else made.get(atom)
        if source is not None and source.primitive.name in _PASSED:
            waiting += source.invars
        elif source is not None and source.primitive.name == "reduce_max":
            found = True
        elif not isinstance(atom, jax.extend.core.Literal) and (source is None or source.primitive.name != "is_finite"):
            return False
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without jax2onnx's notes on packages that are missing."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _not_converted(name: str, jaxpr: Any, error: BaseException) -> str:
    message = _first_line(error)
    named = re.search(r"primitive:? '?([\w.-]+)'?", message)
    kinds = [equation for equation, _ in reachable(jaxpr) if named and equation.primitive.name == named[1]]
    where = place_of(kinds[0]) if kinds else ""
    return (
        f"jax2onnx does not convert {name}{where}: {message}; remedy: run it as it is on jax, or write this part with "
        "other functions"
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in described(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own_file(frame.filename)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
