"""Operators on every back-end: contract violations, unsuitable inputs and failures are reported by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backend_operators import (
    THIRTEEN,
    Broken,
    CppMixed,
    CppPow,
    InPlace,
    NoBackward,
    PyPow,
    draw,
    mixed,
    mixed_values,
    power,
)
from backends import BACKENDS, COMPUTING, ENGINES, Backend, parametrized
from deep5.core.errors import OperatorError, ShapeError, Unsupported
from deep5.operators.backward import Backward
from deep5.operators.native import NativeOperator

KINDS = pytest.mark.parametrize("kind", ["Py", "Cpp"])
CALLING = (*COMPUTING, "reference")


def raising(*inputs: Any) -> Any:
    raise ValueError("an accident")


def narrow(x: Any) -> Any:
    xp = d5.array_namespace(x)
    return xp.astype(x, xp.float64)


# Results of a forward or backward pass of x float32[3, 2], and their messages.
FORWARDS: dict[str, tuple[Callable[..., Any], str]] = {
    "count": (lambda x: (x, x), r"Broken\.forward returned 2 outputs; allowed: 1"),
    "shape": (lambda x: x[:1, :], r"Broken\.forward: output 0: got shape .*1, 2.*, expected float32\[3, 2\]"),
    "dtype": (narrow, r"Broken\.forward: output 0: got dtype float64, expected float32"),
    "kind": (lambda x: np.ones((3, 2), "float32"), r"as output 0; allowed: {array}|returned array.* allowed: {array}"),
    "nothing": (lambda x: None, r"Broken\.forward returned None"),
    "raises": (raising, r"Broken(\.forward raised| failed on tensorflow:) ValueError: an accident"),
}
BACKWARDS: dict[str, tuple[Callable[..., Any], str]] = {
    "count": (lambda x: (), r"Broken\.backward returned 0 gradients; allowed: one per input, 1"),
    "shape": (lambda x: (x[:1, :],), r"gradient by input 0: got float32\[1, 2\], expected float32\[3, 2\]"),
    "dtype": (lambda x: (narrow(x),), r"gradient by input 0: got float64"),
    "none": (lambda x: (None,), r"backward returned None as the gradient by input 0"),
    "single": (lambda x: x, r"backward returned"),
    "raises": (raising, r"Broken(\.backward raised| failed on tensorflow:) ValueError: an accident"),
}


def cases(table: dict[str, Any], lacks: set[tuple[str, str]]) -> list[Any]:
    """All cases of all back-ends that call operators, every day."""
    return [
        pytest.param(BACKENDS[name], case, id=f"{name}-{case}", marks=pytest.mark.daily)
        for name in CALLING
        for case in table
        if (name, case) not in lacks
    ]


# NumPy accepts what the others have to refuse.
@pytest.mark.parametrize(("backend", "case"), cases(FORWARDS, {("reference", "kind")}))
def test_a_wrong_forward_is_named(backend: Backend, case: str) -> None:
    wrong, message = FORWARDS[case]
    operator, x = Broken(wrong), np.ones((3, 2), "float32")
    native, executor = backend.framework.operator(operator), backend.framework.operator_executor(operator)
    calls: list[Callable[[], Any]] = [
        lambda: native(backend.native(x)),
        lambda: executor.inference(*executor.arrays(x)),
        lambda: executor.inference_and_backprop(executor.arrays(x), executor.arrays(x)),
    ]
    if backend.name != "reference":
        traced = backend.traced(native)
        calls += [lambda: traced(backend.native(x))]
    if (backend.name, case) == ("tensorflow", "raises"):
        calls = calls[1:3]  # a TensorFlow function raises the error of the code that it calls
    for call in calls:
        with pytest.raises(OperatorError, match=message.format(array=backend.array) if case == "kind" else message):
            call()


@pytest.mark.parametrize(("backend", "case"), cases(BACKWARDS, set()))
def test_a_wrong_backward_is_named(backend: Backend, case: str) -> None:
    wrong, message = BACKWARDS[case]
    operator, x = Broken(None, wrong), np.ones((3, 2), "float32")
    executor = backend.framework.operator_executor(operator)
    with pytest.raises(OperatorError, match=message):
        executor.inference_and_backprop(executor.arrays(x), executor.arrays(x))
    if backend.name == "reference" or (backend.name, case) == ("tensorflow", "raises"):
        return  # NumPy does not differentiate; as above
    native, given = backend.framework.operator(operator), backend.native(x)
    for run in (native, backend.traced(native)):
        with pytest.raises(OperatorError, match=message):
            backend.pulled(run, [given], [given])


@parametrized(*CALLING)
def test_what_specs_raises_and_returns_is_named(backend: Backend) -> None:
    x = backend.native(np.ones(2, "float32"))
    for wrong, message in (
        (lambda x: (1 // 0,), r"Broken\.specs raised ZeroDivisionError"),
        (lambda x: [x], "specs ret"),
    ):
        with pytest.raises(OperatorError, match=message):
            backend.framework.operator(Broken(specs=wrong))(x)


@KINDS
@parametrized(*COMPUTING, *ENGINES, daily=True)
def test_inputs_that_an_operator_does_not_take(backend: Backend, kind: str) -> None:
    native, executor = backend.framework.operator(power(kind)), backend.framework.operator_executor(power(kind))
    one, deep = np.ones(2, "float32"), np.ones((1, 1, 1, 1, 1), "float32")
    for call in (
        lambda *x: native(*map(backend.native, x)),
        lambda *x: backend.traced(native)(*map(backend.native, x)),
        lambda *x: executor.inference(*executor.arrays(*x)),
    ):
        with pytest.raises(ShapeError, match=r"got (2 inputs; allowed: |inputs of float32, float32; allowed)"):
            call(one, one)
        with pytest.raises(ShapeError, match="allowed: at most 4 axes"):
            call(deep)
    with pytest.raises(ShapeError, match=r"got (list|object) as (an input|input 0)"):
        native(object() if backend.name == "tensorflow" else [1.0])
    remedies = r"executor\.arrays|torch\.as_tensor|numpy\.asarray|d5\.framework"
    with pytest.raises(ShapeError, match=rf"got list as (an )?input.*; allowed: .*; remedy: ({remedies})"):
        executor.inference([1.0])
    with pytest.raises(ShapeError, match=r"value 0: .* str|got str as value 0"):
        executor.arrays("text")
    both = backend.framework.operator(mixed(kind))
    with pytest.raises(ShapeError, match=rf"{kind}Mixed: got .* and .*; allowed: a matrix and a row"):
        both(*map(backend.native, (np.ones(2, "f4"), np.ones(3, "f4"), np.array([1]))))


@parametrized(*COMPUTING, *ENGINES)
def test_element_types_that_an_operator_in_cpp_does_not_take(backend: Backend) -> None:
    run = backend.framework.operator(CppMixed())
    with pytest.raises(ShapeError, match="got inputs of float32, float32, int32; allowed"):
        run(*map(backend.native, (np.ones((2, 2), "f4"), np.ones(2, "f4"), np.array([1], "i4"))))
    with pytest.raises((ShapeError, Unsupported), match=r"(?i)complex64"):
        backend.framework.operator(CppPow(2))(backend.native(np.ones(2, "complex64")))


@KINDS
@parametrized(*COMPUTING, *ENGINES, daily=True)
def test_gradients_that_are_asked_for_are_checked(backend: Backend, kind: str) -> None:
    dtype = backend.floats[-1]
    executor = backend.framework.operator_executor(mixed(kind))
    inputs = executor.arrays(*mixed_values(dtype))
    grads = [*executor.arrays(draw(4, 3, dtype=dtype)), None, *executor.arrays(draw(3, dtype=dtype))]
    (other,) = executor.arrays(np.ones((4, 3), "float32" if dtype == "float64" else "float16"))
    asked: list[tuple[Any, Any, str]] = [
        (grads[:2], None, r"got 2 output.grad.*; allowed: one per output, 3"),
        ([None, None, grads[2]], None, r"gradient (by output 0: got no array|0 is None)"),
        ([grads[2], None, grads[2]], None, rf"gradient (by output )?0: got {dtype}.*3.*, expected {dtype}.*4, 3"),
        ([other, None, grads[2]], None, rf"gradient (by output )?0: got float(32|16).*, expected {dtype}"),
        (grads, (True,), "got 1 needs; allowed: one per input, 3"),
        (grads, (True, True, True), "a gradient is requested by input 2, which is int64"),
    ]
    for given, needs, text in asked:
        with pytest.raises(ShapeError, match=text):
            executor.inference_and_backprop(inputs, given, needs=needs)
    # The gradient by an integer output may be given, and changes nothing.
    rows = executor.arrays(np.zeros(1, "int64"))[0] if backend.name == "tensorflow" else None
    executor.inference_and_backprop(inputs, [grads[0], rows, grads[2]])


@parametrized(*COMPUTING, *ENGINES)
def test_what_an_operator_in_cpp_throws_arrives(backend: Backend) -> None:
    operator = CppPow(2)
    native, executor = backend.framework.operator(operator), backend.framework.operator_executor(operator)
    x = np.ones(13, "float32")
    given = executor.arrays(x)

    def run() -> Any:
        made = executor.inference(*given)
        executor.synchronize()
        return made

    for _ in range(2):
        for call in (
            run,
            lambda: backend.finished(lambda: native(backend.native(x))),
            lambda: (executor.inference_and_backprop(given, given), executor.synchronize()),
        ):
            with pytest.raises(OperatorError, match=THIRTEEN):
                call()
        small = draw(12)
        np.testing.assert_allclose(executor.inference(*executor.arrays(small))[0], small**2, rtol=1e-6)


@parametrized(*COMPUTING, "pytorch:compiled", *ENGINES)
def test_without_a_backward_only_values_are_to_be_had(backend: Backend) -> None:
    x = np.ones(2, "float32")
    executor = backend.framework.operator_executor(NoBackward())
    given = executor.arrays(x)
    assert backend.numpy(executor.inference(*given)[0]).tolist() == [2, 2]
    with pytest.raises(Unsupported, match=r"NoBackward has no backward in C\+\+"):
        executor.inference_and_backprop(given, given)
    if backend.name in COMPUTING:
        native = backend.framework.operator(NoBackward())
        assert backend.numpy(native(backend.native(x))).tolist() == [2, 2]
        with pytest.raises(Unsupported, match=r"NoBackward has no backward in C\+\+"):
            backend.pulled(native, [backend.native(x)], [backend.native(x)])


@parametrized("pytorch", "reference")
def test_a_method_that_writes_to_what_it_is_given(backend: Backend) -> None:
    x = np.zeros(3)
    for method in ("forward", "backward"):
        executor = backend.framework.operator_executor(InPlace(method))
        message = (
            rf"InPlace\.{method} changed its argument {int(method == 'backward')} in place"
            if backend.name == "pytorch"
            else rf"(?s)InPlace\.{method} raised ValueError: .*read-only.*remedy: a new array"
        )
        with pytest.raises(OperatorError, match=message):
            executor.inference_and_backprop(executor.arrays(x), executor.arrays(np.ones(3)))
        native = backend.framework.operator(InPlace(method))
        if method == "forward":
            with pytest.raises(OperatorError, match=message):
                native(backend.native(x))
        elif backend.name == "pytorch":
            with pytest.raises(OperatorError, match=message):
                backend.pulled(native, [backend.native(x)], [backend.native(np.ones(3))])
    x[0] = 2  # the caller may still write


@parametrized(*COMPUTING, *ENGINES)
def test_functions_of_other_frameworks_are_refused(backend: Backend) -> None:
    other = "jax" if backend.name == "pytorch" else "pytorch"
    foreign = NativeOperator(len, framework=other)
    makers = [backend.framework.operator_executor]
    makers += [] if backend.name in ("onnxruntime", "openvino") else [backend.framework.operator]
    if backend.name == "jax":
        makers += [lambda each: backend.framework.operator(Backward(each, (True,), (True,)))]
    for make in makers:
        with pytest.raises(Unsupported, match=rf"len is a function of {other}"):
            make(foreign)
    if backend.name in ("onnxruntime", "openvino"):
        with pytest.raises(Unsupported, match=r"only runs networks; allowed: .*; remedy: d5\.framework\("):
            backend.framework.operator_executor(NativeOperator(len, framework="reference"))


@parametrized(*COMPUTING, *ENGINES)
def test_devices_that_are_not_there_are_refused(backend: Backend) -> None:
    # All operators except those in C++, which not all back-ends run on GPUs.
    for operator in (PyPow(2), CppPow(2)):
        message = r"no device cuda:7|allowed: (cpu|the host)|has no cuda"
        with pytest.raises(Unsupported, match=message):
            backend.framework.operator_executor(operator, device="cuda:7")
