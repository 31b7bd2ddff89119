"""Networks in native code, before use: check their description, and determine their outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from deep5.core.errors import Deep5Error, NetworkError, UsageError
from deep5.core.tensors import TensorSpec
from deep5.networks.hashes import hash_of_values
from deep5.networks.native import NativeNetwork

__all__ = [
    "UNFIT",
    "checked_inputs",
    "checked_loss",
    "checked_outputs",
    "checked_seed",
    "misfit",
    "one_tensor",
    "output_specs",
    "probed_network",
    "said_of",
    "tried",
]

_Tensor = TypeVar("_Tensor")
# Values for each symbol, in two runs: an output dimension that takes both values is that symbol.
_TRIED = ((2, 3, 5, 7), (11, 13, 17, 19))
_INPUTS = 'inputs={"input": TensorSpec(shape=("N", 4)), "label": TensorSpec(shape=("N",), dtype="int64")}'

UNFIT = (IndexError, RuntimeError, TypeError, ValueError)
"""The exceptions of frameworks for values that do not fit; a function's other exceptions are not caught."""


def checked_inputs(inputs: Any) -> dict[str, TensorSpec]:
    """The argument `inputs`, checked and copied.

    Raises:
        UsageError: Not a dict of specifications by name, an invalid dimension, or a dtype that is not NumPy's name.

    >>> checked_inputs({"input": (None, 4)})
    Traceback (most recent call last):
        ...
    deep5.core.errors.UsageError: the input 'input': got (None, 4); allowed: a TensorSpec; remedy: \
TensorSpec(shape=('N', 4))
    """
    if not isinstance(inputs, Mapping) or not inputs or not all(isinstance(name, str) and name for name in inputs):
        raise UsageError(f"got {inputs!r:.60} as inputs; allowed: a dict of TensorSpec by name; remedy: {_INPUTS}")
    for name, spec in inputs.items():
        if not isinstance(spec, TensorSpec):
            got = type(spec).__name__ if hasattr(spec, "shape") else f"{spec!r:.60}"
            raise UsageError(f"the input {name!r}: got {got}; allowed: a TensorSpec; remedy: {_written(spec)}")
        if not isinstance(spec.shape, tuple) or not all(map(_is_extent, spec.shape)):
            raise UsageError(
                f"the input {name!r}: got the shape {spec.shape!r:.60}; allowed: a tuple of integers and names of "
                f"symbolic dimensions; remedy: {_written(spec)}"
            )
        if not isinstance(spec.dtype, str) or _element(spec.dtype) != spec.dtype:
            raise UsageError(
                f"the input {name!r}: got the dtype {spec.dtype!r:.60}; allowed: NumPy's name of a number, such as "
                f"'float32'; remedy: {_written(spec)}"
            )
    return dict(inputs)


def checked_outputs(inputs: Mapping[str, TensorSpec], outputs: Any, what: str) -> tuple[str, str]:
    """The names of a model's output and of its loss.

    Args:
        inputs: Inputs of the model, then the label.
        outputs: The argument `outputs`.
        what: The framework's term for a model.

    Raises:
        UsageError: The argument is not two names, or there is no input besides the label.
    """
    if len(inputs) < 2:
        raise UsageError(
            f"got the inputs {list(inputs)}; allowed: inputs of the {what}, then the label; remedy: {_INPUTS}"
        )
    names = tuple(outputs) if isinstance(outputs, (list, tuple)) else ()
    if len(names) != 2 or not all(isinstance(name, str) and name for name in names) or names[0] == names[1]:
        raise UsageError(
            f"got the outputs {outputs!r:.60}; allowed: two outputs by different names, the {what}'s and the loss; "
            'remedy: outputs=("logits", "loss")'
        )
    return names[0], names[1]


def checked_seed(seed: Any) -> int:
    """Check a seed.

    Raises:
        UsageError: It is not an integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise UsageError(f"got {seed!r:.60} as seed; allowed: an integer; remedy: seed=0")
    return int(seed)


def checked_loss(what: str, spec: TensorSpec) -> None:
    """Reject a loss that cannot be minimized.

    Args:
        what: Name of the loss function in messages.
        spec: Specification of its result.

    Raises:
        UsageError: The result is not a floating-point scalar.
    """
    if spec.shape != () or not spec.dtype.startswith(("float", "bfloat")):
        raise UsageError(
            f"{what} gives {spec}; expected a floating-point scalar, such as float32[]; remedy: its mean over the batch"
        )


def said_of(function: Any) -> str:
    """The name of a function in messages."""
    own = getattr(function, "__qualname__", None) or getattr(function, "name", None)
    return own if isinstance(own, str) else type(function).__name__


@contextmanager
def tried(what: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Within the context, a user's function runs on values that deep5 chose: its exceptions are reported as errors.

    Args:
        what: Name of the function in messages.
        given: Its arguments, in order: arrays, or other objects with a `dtype` and a `shape`.

    Raises:
        UsageError: The function raised an exception.
    """
    try:
        yield
    except Deep5Error:
        raise
    except Exception as error:
        ranks = [len(getattr(value, "shape", ())) for value in given.values()]
        # Keras and Flax expect the channels last.
        images = "; images of deep5's data sets are (N, channels, height, width)" if 4 in ranks else ""
        raise UsageError(
            f"{what} {_failure(given, error)}; remedy: look at the order, the shapes and the element types of what it "
            f"is called with{images}"
        ) from error


def misfit(what: str, given: Mapping[str, Any], error: Exception) -> NetworkError:
    """The error for a user's function that raised one of `UNFIT` on a caller's feed; arguments as for `tried`."""
    return NetworkError(
        f"{what} {_failure(given, error)}; allowed: shapes that fit, labels and indices within their range"
    )


def one_tensor(what: str, output: Any, kind: type[_Tensor]) -> _Tensor:
    """The output of a network or a loss, which must be one tensor.

    Args:
        what: Its name in messages.
        output: The output.
        kind: The framework's tensor class.

    Raises:
        UsageError: The output is not one tensor.
    """
    if not isinstance(output, kind):
        raise UsageError(
            f"{what} gives a {type(output).__name__}; allowed: one tensor; remedy: a function around it that gives one"
        )
    return output


def output_specs(
    what: str, inputs: Mapping[str, TensorSpec], run: Callable[[list[np.ndarray]], Sequence[tuple[Sequence[int], str]]]
) -> list[TensorSpec]:
    """Specifications of a function's outputs, determined by running it on zeros of two sizes.

    Symbolic dimensions of the outputs are those of the inputs.

    Args:
        what: Name of the function in messages.
        inputs: Specifications of its inputs, by name.
        run: Calls the function on arrays, in this order; returns shape and dtype of each output.

    Raises:
        UsageError: More than four symbolic dimensions.

    >>> inputs = {"x": TensorSpec(shape=("N", 3)), "y": TensorSpec(shape=("T", 3))}
    >>> print(*output_specs("x y^T", inputs, lambda feed: [((feed[0] @ feed[1].T).shape, "float32")]))
    float32[N, T]
    """
    symbols = list(
        dict.fromkeys(extent for spec in inputs.values() for extent in spec.shape if isinstance(extent, str))
    )
    if len(symbols) > len(_TRIED[0]):
        raise UsageError(
            f"the inputs of {what} have the symbolic dimensions {symbols}; allowed: up to {len(_TRIED[0])}"
        )
    runs = []
    for extents in _TRIED:
        known = dict(zip(symbols, extents, strict=False))
        shapes = [
            [known[extent] if isinstance(extent, str) else extent for extent in spec.shape] for spec in inputs.values()
        ]
        runs.append(run([np.zeros(shape, spec.dtype) for shape, spec in zip(shapes, inputs.values(), strict=True)]))
    pairs = {(first, second): symbol for symbol, first, second in zip(symbols, *_TRIED, strict=False)}
    specs = []
    for (one, dtype), (other, _) in zip(*runs, strict=True):
        shape = tuple(
            pairs.get((first, second), first if first == second else f"?{axis}")
            for axis, (first, second) in enumerate(zip(one, other, strict=True))
        )
        specs.append(TensorSpec(shape=shape, dtype=dtype))
    return specs


def probed_network(
    name: str,
    said: tuple[str, str],
    inputs: Mapping[str, TensorSpec],
    outputs: tuple[str, str],
    run: Callable[[list[np.ndarray]], Sequence[tuple[Sequence[int], str]]],
    *,
    parameters: Mapping[str, TensorSpec],
    buffers: Mapping[str, TensorSpec],
    structure: str,
    value: Callable[[str], np.ndarray],
) -> NativeNetwork:
    """The description of a framework's own model with a loss.

    Args:
        name: Name of the network.
        said: Names of the model and of the loss function in messages.
        inputs: Specifications of the inputs and the label.
        outputs: Names of the model's output and of the loss.
        run: As for `output_specs`.
        parameters: Specifications of the trained values.
        buffers: Specifications of the other values.
        structure: Text that identifies the computation.
        value: The present value of a parameter or buffer.

    Raises:
        UsageError: As `output_specs` and `checked_loss`.
    """
    found = dict(zip(outputs, output_specs(said[0], inputs, run), strict=True))
    checked_loss(said[1], found[outputs[1]])
    return NativeNetwork(
        name=name,
        inputs=inputs,
        outputs=found,
        parameter_specs=parameters,
        buffer_specs=buffers,
        structure=structure,
        weights=hash_of_values({**parameters, **buffers}, value),
    )


def _is_extent(extent: Any) -> bool:
    return bool(extent) if isinstance(extent, str) else type(extent) is int and extent >= 0


def _written(given: Any) -> str:
    """The specification that the user probably meant, as Python code."""
    shape = getattr(given, "shape", given)
    if isinstance(shape, int):
        shape = ("N", shape)
    elif not isinstance(shape, Sequence) or isinstance(shape, str):
        shape = ("N",)
    extents = [
        extent if isinstance(extent, str) and extent else int(extent) if _is_whole(extent) else f"N{axis or ''}"
        for axis, extent in enumerate(shape)
    ]
    dtype = _element(getattr(given, "dtype", None))
    return f"TensorSpec(shape={tuple(extents)}" + (f", dtype={dtype!r})" if dtype else ")")


def _is_whole(extent: Any) -> bool:
    return isinstance(extent, (int, np.integer)) and not isinstance(extent, bool) and int(extent) >= 0


def _element(dtype: Any) -> str | None:
    """NumPy's name of a numeric type; None for any other."""
    for form in (dtype, getattr(dtype, "name", None), str(dtype).removeprefix("torch.")):
        try:
            # np.dtype(None) is float64.
            found = np.dtype("" if form is None else form)
        except TypeError:
            continue
        return None if found.kind in "OSUMm" else found.name
    return None


def _failure(given: Mapping[str, Any], error: Exception) -> str:
    """Describe the failure in one line; frameworks use several, and color them."""
    listed = ", ".join(f"{name} {_described(value)}" for name, value in given.items())
    reported = str(error.args[0] if error.args and isinstance(error.args[0], str) else error)
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", reported).splitlines()]
    # Keras puts the name of a method before the actual error.
    informative = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return f"does not run on {listed} ({': '.join([type(error).__name__, *informative[:1]])})"


def _described(value: Any) -> str:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return type(value).__name__
    dtype = getattr(value.dtype, "name", str(value.dtype).removeprefix("torch."))
    try:
        extents = ", ".join(map(str, value.shape))
    except ValueError:  # TensorFlow does not always know the rank
        extents = "?"
    return f"{dtype}[{extents}]"
