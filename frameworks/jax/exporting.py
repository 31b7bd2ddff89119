"""JAX functions as graphs of ONNX: traced by JAX, and converted by jax2onnx from what was traced.

While jax2onnx traces, it replaces functions of JAX and Flax. The user's code runs before that, and computes what it
computes elsewhere. What JAX traced of it is then called equation by equation, with `known_operator` in place of those
for which ONNX has an operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from deep5.core.own_files import is_own_file
from deep5.core.tensors import TensorSpec
from deep5.frameworks.jax.known_operators import known_operator

__all__ = ["as_called", "converted", "needed", "place_of", "reachable", "same_computation"]

# Of this version, ONNX Runtime has the kernels, and deep5 the gradients.
_OPSET = 21
# Primitives that contain the function that they compute, and the parameter that holds it.
_CALLS = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
}


def needed(traced: Any, outputs: int) -> Any:
    """A traced function (`jax.extend.core.ClosedJaxpr`) with only its first outputs, and the equations for them."""
    jaxpr = traced.jaxpr
    kept, live = [], set(map(id, jaxpr.outvars[:outputs]))
    for equation in reversed(jaxpr.eqns):
        if not live.isdisjoint(map(id, equation.outvars)):
            kept.append(equation)
            live |= set(map(id, equation.invars))
    less = jaxpr.replace(
        outvars=jaxpr.outvars[:outputs], eqns=kept[::-1], debug_info=jaxpr.debug_info.with_unknown_names()
    )
    return jax.extend.core.ClosedJaxpr(less, traced.consts)


def same_computation(one: Any, other: Any) -> bool:
    """Whether two traced functions consist of the same equations and constants."""
    # The listing may name functions by their addresses.
    listings = [re.sub(r"0x[0-9a-f]+", "", str(each.jaxpr)) for each in (one, other)]
    return listings[0] == listings[1] and all(
        np.array_equal(mine, theirs, equal_nan=np.issubdtype(np.asarray(mine).dtype, np.floating))
        for mine, theirs in zip(one.consts, other.consts, strict=True)
    )


def reachable(jaxpr: Any) -> Iterator[tuple[Any, Mapping[Any, Any]]]:
    """All equations of a function and of those that it calls, each with the equations that compute its variables."""
    made = _makers(jaxpr)
    for equation in jaxpr.eqns:
        yield equation, made
        for value in equation.params.values():
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(each, (jax.extend.core.ClosedJaxpr, jax.extend.core.Jaxpr)):
                    yield from reachable(getattr(each, "jaxpr", each))


def place_of(equation: Any) -> str:
    """File and line of the user's code that an equation comes from, after ` at `; or ''."""
    traceback = equation.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        if is_own_file(frame.file_name):
            return f" at {frame.file_name}:{frame.line_num}"
    return ""


def converted(name: str, traced: Any, specs: Sequence[Any]) -> Any:
    """A traced function as an `onnx.ModelProto`, whose inputs have the order of the arguments.

    Args:
        name: Name of the function.
        traced: The function.
        specs: Shapes and types of its arguments.

    Raises:
        Exception: Any that jax2onnx raises.
    """
    with _restored(jnp, jax.nn, jax.lax):
        import jax2onnx

        return jax2onnx.to_onnx(
            lambda *given: _evaluated(traced.jaxpr, traced.consts, given),
            list(specs),
            model_name=name,
            opset=_OPSET,
            enable_double_precision=any(spec.dtype == jnp.float64 for spec in specs),
            return_mode="proto",
        )


@contextmanager
def _restored(*modules: Any) -> Iterator[None]:
    """After the context, the modules have what they had: jax2onnx 0.17 does not restore `jnp.cumsum`."""
    before = [dict(vars(module)) for module in modules]
    try:
        yield
    finally:
        for module, held in zip(modules, before, strict=True):
            for name, value in held.items():
                if vars(module).get(name) is not value:
                    setattr(module, name, value)


def as_called(proto: Any, inputs: Mapping[str, TensorSpec]) -> Any:
    """The model with inputs of the types that a caller feeds, converted to those that JAX computes with.

    Args:
        proto: The model; it is changed.
        inputs: The inputs as a caller feeds them.
    """
    import onnx

    for value in proto.graph.input:
        spec, own = inputs[value.name], value.type.tensor_type
        fed = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        if fed == own.elem_type:
            continue
        narrow = f"{value.name}:narrow"
        for node in proto.graph.node:
            node.input[:] = [narrow if name == value.name else name for name in node.input]
        cast = onnx.helper.make_node("Cast", [value.name], [narrow], f"Cast_{value.name}", to=own.elem_type)
        proto.graph.node.insert(0, cast)
        own.elem_type = fed
    return proto


def _makers(jaxpr: Any) -> Mapping[Any, Any]:
    return {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}


def _evaluated(jaxpr: Any, constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True))
    made = _makers(jaxpr)

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jax.extend.core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        known, key = known_operator(equation, made), _CALLS.get(equation.primitive.name)
        if known is not None:
            found = [known(read)]
            _check_type(equation, found[0])
        elif key is not None:
            inner = equation.params[key]
            own = getattr(inner, "consts", ())
            found = _evaluated(getattr(inner, "jaxpr", inner), own, list(map(read, equation.invars)))
        else:
            found = _called(jaxpr, equation, read)
        values |= dict(zip(equation.outvars, found, strict=True))
    return list(map(read, jaxpr.outvars))


def _check_type(equation: Any, found: Any) -> None:
    expected = equation.outvars[0].aval
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise TypeError(f"{equation.primitive.name} became {found.dtype}{found.shape}; expected {expected}")


def _called(jaxpr: Any, equation: Any, read: Callable[[Any], Any]) -> Any:
    """The results of one equation."""
    given = list(dict.fromkeys(each for each in equation.invars if not isinstance(each, jax.extend.core.Literal)))
    only = jaxpr.replace(
        constvars=[],
        invars=given,
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    values = list(map(read, given))
    # What reads nothing may be the size of a batch.
    known = equation.invars and not any(isinstance(value, jax.core.Tracer) for value in values)
    scalar = all(variable.aval.shape == () for variable in equation.outvars)
    # The converter looks for numbers where functions take them.
    with jax.ensure_compile_time_eval() if known and scalar else nullcontext():
        return jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(only, ()))(*values)
