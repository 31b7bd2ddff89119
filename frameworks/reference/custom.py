"""Operators on NumPy arrays: what they are given cannot be written to, what they give is held to what they said."""

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
    """Refuse what NumPy does not run.

    Raises:
        Unsupported: An operator of another framework.
    """
    if isinstance(operator, NativeOperator) and operator.framework != "reference":
        raise Unsupported(
            f"{name_of(operator)} is a function of {operator.framework}; allowed: functions of NumPy's arrays, and "
            f"operators of deep5; remedy: d5.framework({operator.framework!r})"
        )


def on_arrays(operator: Operator) -> Callable[..., Outputs]:
    """An operator as a function of NumPy arrays that gives a tuple of them.

    An operator in Python gets views that it cannot write to: one that changes its inputs in place fails, and nothing
    else is changed with it. Infinities and NaNs are values like others.

    Args:
        operator: Any but one of ONNX's own, which has no code.

    Returns:
        A function that raises ShapeError on inputs that the operator does not take, and OperatorError where it fails or
        gives something else than its `specs` says.
    """
    if isinstance(operator, ONNXOperator):
        raise Unsupported(
            f"{operator.op_type} has no code of its own; remedy: d5.framework('reference').operator_executor(…)"
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
    """An operator's own `backward` on NumPy arrays that it cannot write to, held to its contract.

    Raises:
        OperatorError: It fails, or gives something else than gradients of the inputs.
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
    # What is looked up at every call: shape and element type of the outputs, as NumPy compares them.
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
    """An output as an array: NumPy gives scalars for arrays of no axes."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise OperatorError(
            f"{name}.forward returned {brief(value)} as output {number}; allowed: an array of NumPy's, which it was "
            "called with"
        )
    return np.asarray(value)


def _closed(name: str, value: Any) -> np.ndarray:
    """A view that cannot be written to."""
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
