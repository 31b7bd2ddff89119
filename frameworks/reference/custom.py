"""Operators on NumPy arrays: inputs are read-only, and outputs are checked against `specs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported, brief
from deep5.core.memo import remember
from deep5.core.operator import Operator
from deep5.core.tensors import Array, TensorSpec, numpy_dtype
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.backward import Backward
from deep5.operators.contract import Expectations, check_gradients, check_outputs, name_of, several
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.plan import check_arrays

__all__ = ["backward_on_arrays", "check_operator", "on_arrays"]


Outputs = tuple[Any, ...]


def check_operator(operator: Operator) -> None:
    """Reject operators that NumPy does not run.

    Raises:
        Unsupported: The operator belongs to another framework.
    """
    if isinstance(operator, NativeOperator) and operator.framework != "reference":
        raise Unsupported(
            f"{name_of(operator)} is a function of {operator.framework}; allowed: functions of NumPy's arrays, and "
            f"operators of deep5; remedy: d5.framework({operator.framework!r})"
        )


def on_arrays(operator: Operator) -> Callable[..., Outputs]:
    """An operator as a function from NumPy arrays to a tuple of them.

    A Python operator gets read-only views: changing its inputs in place fails and has no effect. Infinities and NaNs
    are ordinary values.

    Args:
        operator: Any operator except ONNX operators, which have no code.

    Returns:
        A function that raises ShapeError for inputs that the operator does not accept, and OperatorError if it fails or
        its results differ from its `specs`.
    """
    if isinstance(operator, ONNXOperator):
        raise Unsupported(
            f"{operator.op_type} has no code here; remedy: d5.framework('reference').operator_executor(…)"
        )
    check_operator(operator)
    run = _compiled(operator) if isinstance(operator, CppOperator) else _python(operator)
    quiet: Callable[..., Outputs] = run if isinstance(operator, CppOperator) else np.errstate(all="ignore")(run)
    return quiet


def backward_on_arrays(
    operator: Operator,
    output_grads: Sequence[Array | None],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    needs: Sequence[bool],
) -> tuple[Array | None, ...]:
    """An operator's `backward` on read-only NumPy arrays, with a check of its results.

    Raises:
        OperatorError: It fails, or its results are not gradients of the inputs.
        Unsupported: The operator has no gradient.
    """
    name = name_of(operator)
    grads = [None if gradient is None else _closed(name, gradient) for gradient in output_grads]
    given, made = [_closed(name, value) for value in inputs], [_closed(name, value) for value in outputs]
    try:
        with np.errstate(all="ignore"):
            found = operator.backward(grads, given, made, needs)
    except Deep5Error:
        raise
    except Exception as error:
        raise _failed(operator, "backward", error) from error
    gradients = check_gradients(operator, found, inputs, needs)
    return tuple(None if gradient is None else np.asarray(gradient) for gradient in gradients)


def _compiled(operator: CppOperator) -> Callable[..., Outputs]:
    forward = operator.forward

    def run(*inputs: Any) -> Outputs:
        outputs = forward(*inputs)
        return outputs if type(outputs) is tuple else (outputs,)

    return run


def _python(operator: Operator) -> Callable[..., Outputs]:
    forward, name = operator.forward, name_of(operator)
    says = not isinstance(operator, NativeOperator) or operator.says_specs
    expectations = Expectations(operator)
    # A cache for every call: shape and dtype of the outputs, as NumPy compares them.
    known: dict[Any, tuple[list[tuple[tuple[int, ...], Any]], tuple[TensorSpec, ...]]] = {}

    def expected(inputs: Sequence[Any]) -> tuple[list[tuple[tuple[int, ...], Any]], tuple[TensorSpec, ...]]:
        check_arrays(name, inputs)
        specs = expectations(inputs) if says else ()
        wanted = [(tuple(map(int, spec.shape)), numpy_dtype(spec.dtype)) for spec in specs]
        return remember(known, tuple([(value.shape, value.dtype) for value in inputs]), (wanted, specs))

    def run(*inputs: Any) -> Outputs:
        closed = []
        for value in inputs:
            view = value.view() if type(value) is np.ndarray else _closed(name, value)
            view.setflags(write=False)
            closed.append(view)
        try:
            wanted, specs = known[tuple([(value.shape, value.dtype) for value in closed])]
        except KeyError:
            wanted, specs = expected(closed)
        try:
            outputs = forward(*closed)
        except Deep5Error:
            raise
        except Exception as error:
            raise _failed(operator, "forward", error) from error
        outputs = outputs if type(outputs) is tuple else several(outputs)
        if not says:
            return tuple([_array(name, number, value) for number, value in enumerate(outputs)])
        if len(outputs) == len(wanted):
            for value, (shape, dtype) in zip(outputs, wanted, strict=True):
                if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                    break
            else:
                return outputs
        check_outputs(operator, outputs, specs)
        return tuple([_array(name, number, value) for number, value in enumerate(outputs)])

    return run


def _array(name: str, number: int, value: Any) -> np.ndarray:
    """An output as an array: NumPy returns scalars instead of 0-d arrays."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise OperatorError(
            f"{name}.forward returned {brief(value)} as output {number}; allowed: an array of NumPy's, which it was "
            "called with"
        )
    return np.asarray(value)


def _closed(name: str, value: Any) -> np.ndarray:
    """A read-only view."""
    if not isinstance(value, (np.ndarray, np.generic)) or isinstance(value, np.ma.MaskedArray):
        raise ShapeError(
            f"{name}: got {type(value).__name__} as an input; allowed: a NumPy array; remedy: numpy.asarray(value), or "
            "array.filled(…) where it is masked"
        )
    view = np.asarray(value).view()
    view.setflags(write=False)
    return view


def _failed(operator: Operator, method: str, error: Exception) -> OperatorError:
    of = operator.operator if isinstance(operator, Backward) else operator
    method = "backward" if isinstance(operator, Backward) else method
    text = f"{name_of(of)}.{method} raised {type(error).__name__}: {error}"
    if "read-only" in str(error):
        text += "; what it is given belongs to the network; remedy: a new array, instead of a change in place"
    return OperatorError(text)
