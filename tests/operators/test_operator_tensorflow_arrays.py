"""Arrays of the standard on TensorFlow: operators with sizes that are still unknown, and the namespace."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backend_operators import Broken
from backends import BACKENDS
from deep5.core.errors import ShapeError, Unsupported
from tracing_cases import CASES, arrays

TF: Any = d5.framework("tensorflow")
XLA: Any = d5.framework("tensorflow:xla")

import tensorflow as tf  # noqa: E402

from deep5.frameworks.tensorflow.array import TensorFlowArray  # noqa: E402
from deep5.frameworks.tensorflow.array_namespace import ARRAYS  # noqa: E402
from deep5.frameworks.tensorflow.namespace import NAMESPACE  # noqa: E402

RNG = np.random.default_rng(4)
DOMAIN = "test.tensorflow"
# For elementary float64 operations; and the accuracy of central differences with a step of 1e-6 in 16 digits.
ROUNDING, DIFFERENCES = 1e-13, 1e-7


class Mixing(d5.Operator):
    """(x [N, 2 k], w [3, k]) -> y [N, 6], of halves of x, w^T and the number of rows."""

    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (d5.TensorSpec(shape=(x.shape[0], 6), dtype=x.dtype),)

    def forward(self, *inputs: Any) -> Any:
        (x, w), xp = inputs, d5.array_namespace(*inputs)
        rows, half = x.shape[0], w.shape[1]
        assert (x.ndim, w.size, w.shape, w.T.shape) == (2, 3 * half, (3, half), (half, 3))
        assert x.dtype in (xp.float32, xp.float64)
        pairs = xp.reshape(x, (rows, 2, half)) @ w.T  # [N, 2, 3]
        swapped = xp.reshape(pairs.mT, (rows, 6)) + xp.zeros((rows, 1), dtype=x.dtype)
        scale = xp.broadcast_to(xp.asarray([0.5], dtype=x.dtype), (rows, 6))
        place = xp.astype(xp.arange(rows), x.dtype)[:, None] - xp.full((rows, 6), 1.0, dtype=x.dtype)
        return (1 - scale * swapped) / x.size + 2 * place[..., ::-1] * x[:rows, -1:]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, w), xp, dy = inputs, d5.array_namespace(*inputs), output_grads[0]
        rows, half = x.shape[0], w.shape[1]
        assert outputs[0].ndim == 2
        by_pairs = xp.reshape(-0.5 * dy / x.size, (rows, 3, 2)).mT  # [N, 2, 3]
        place = xp.astype(xp.arange(rows), x.dtype) - 1
        by_last = 2 * xp.sum(dy * place[:, None], axis=1)[:, None]
        dx = xp.reshape(by_pairs @ w, (rows, 2 * half))
        dx = xp.concat([dx[:, :-1], dx[:, -1:] + by_last], axis=1)
        flat = xp.reshape(by_pairs, (2 * rows, 3))
        return dx if needs[0] else None, flat.T @ xp.reshape(x, (rows * 2, half)) if needs[1] else None


d5.register_operator("Mixing", domain=DOMAIN)(Mixing)


@pytest.mark.parametrize("framework", [TF, XLA], ids=["graph", "xla"])
def test_code_of_the_standard_runs_in_a_network_of_any_batch_size(framework: Any) -> None:
    build = d5.NetworkBuilder("mixing")
    y = build.op("Mixing", build.input("x", ("N", 8)), build.parameter("w", (3, 4)), domain=DOMAIN)
    loss = build.op("ReduceSum", build.op("Mul", y, y), keepdims=0)
    network = build.network({"loss": loss, "y": y})
    run, operator, w = framework.executor(network), Mixing(), network.initial("w")
    for size in (5, 2):
        x = RNG.standard_normal((size, 8)).astype(np.float32)
        made = run.inference_and_backprop({"x": x})
        want = operator.forward(x, w)
        _, dw = operator.backward([2 * want], [x, w], [want], [True, True])
        # Sums of a few float32 products, by another library.
        np.testing.assert_allclose(made["y"], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(run.gradients()["w"], dw, rtol=1e-4, atol=1e-5 * np.abs(dw).max())
        # Also by the input, eagerly and with fixed shapes.
        executor = framework.operator_executor(operator)
        tensors = executor.arrays(x, w)
        (alone,), (dx, _) = executor.inference_and_backprop(tensors, executor.inference(*tensors))
        by_x = operator.backward([want], [x, w], [want], [True, False])[0]
        np.testing.assert_allclose(alone, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dx, by_x, rtol=1e-4, atol=1e-5 * np.abs(by_x).max())
        eager, (eager_dx, _) = BACKENDS["tensorflow"].pulled(framework.operator(operator), tensors, [tf.constant(want)])
        np.testing.assert_allclose(eager[0], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(eager_dx, dx, rtol=1e-4, atol=1e-5 * np.abs(by_x).max())


def test_the_operator_is_the_standards_and_differentiated_rightly() -> None:
    import array_api_strict

    operator = Mixing()
    x, w, dy = (RNG.standard_normal(shape) for shape in ((3, 8), (3, 4), (3, 6)))
    y, (dx, dw) = operator.forward(x, w), operator.backward([dy], [x, w], [operator.forward(x, w)], [True, True])
    strict = [array_api_strict.asarray(value) for value in (x, w, y, dy)]
    again = operator.forward(*strict[:2]), *operator.backward(strict[3:], strict[:2], strict[2:3], [True, True])
    for ours, theirs in zip(again, (y, dx, dw), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)
    for number, gradient in enumerate((dx, dw)):
        way, ends = RNG.standard_normal(gradient.shape), []
        for step in (1e-6, -1e-6):
            moved = [x, w]
            moved[number] = moved[number] + step * way
            ends.append(np.sum(dy * operator.forward(*moved)))
        slope = (ends[0] - ends[1]) / 2e-6
        assert slope == pytest.approx(np.sum(gradient * way), rel=DIFFERENCES, abs=DIFFERENCES)


def test_nothing_of_the_arrays_is_left_in_a_graph() -> None:
    from deep5.frameworks.tensorflow.custom import route

    class Written(Mixing):
        def forward(self, *inputs: Any) -> Any:
            (x, w), xp = inputs, d5.array_namespace(*inputs)
            h = xp.reshape(x[:, 1:] @ w.T, (x.shape[0], 2, 3)) + xp.zeros((x.shape[0], 1, 1), dtype=x.dtype)
            return 1 - xp.reshape(xp.exp(h.mT), (x.shape[0], 6)) / x.shape[0]

    def by_hand(x: Any, w: Any) -> Any:
        rows = tf.shape(x)
        h = tf.reshape(tf.matmul(x[:, 1:], tf.transpose(w)), (rows[0], 2, 3)) + tf.zeros((rows[0], 1, 1))
        count = tf.cast(tf.shape(x, out_type=tf.int64)[0], tf.float32)
        return 1 - tf.reshape(tf.exp(tf.linalg.matrix_transpose(h)), (rows[0], 6)) / count

    signature = [tf.TensorSpec([None, 8]), tf.TensorSpec([6, 7])]
    graphs = [
        tf.function(call, input_signature=signature, autograph=False).get_concrete_function().graph
        for call in (route(Written(), TF).forward, by_hand)
    ]
    ours, own = ([each.type for each in graph.get_operations()] for graph in graphs)
    assert Counter(ours) == Counter(own)
    assert "MatMul" in ours


EXTENTS: dict[str, Callable[[Any, Any, int], Any]] = {
    "arithmetic": lambda xp, x, n: x * (n - 1) - (7 - n) * x + x / (n % 3 + 1) + (n // 2) * x + (3 + n) * (x + n),
    "a product": lambda xp, x, n: xp.reshape(x, (n * x.shape[1],)) * (x.size - n),
    "slices": lambda xp, x, n: xp.concat([x[1 : n - 1], x[n // 2 :, ::-1], x[0 - n : n : 2]]),
    "the last one": lambda xp, x, n: x[n - 1] + x[n // 2, None, ...],
    "making": lambda xp, x, n: (
        x + xp.eye(n, 3, dtype=x.dtype) + xp.full(n, 2.5, dtype=x.dtype)[:, None] + xp.ones((n, 1), dtype=x.dtype)
    ),
    "a range": lambda xp, x, n: x * xp.astype(xp.arange(1, n + 1), x.dtype)[:, None],
    "repeating": lambda xp, x, n: xp.concat([xp.tile(x, (n, 1)), xp.repeat(x, n, axis=0), xp.roll(x, n // 2, axis=0)]),
    "filling": lambda xp, x, n: (
        xp.full((2, n), n, dtype=x.dtype) + xp.asarray(n, dtype=x.dtype) + xp.clip(x, 0, n)[0, 0]
    ),
    "places": lambda xp, x, n: xp.take(x, xp.arange(n - 1, -1, -1), axis=0) + x[xp.argmax(x[:, 0]), :],
}


@pytest.mark.parametrize("name", EXTENTS)
def test_unknown_extents_are_computed_with(name: str) -> None:
    call = EXTENTS[name]

    def run(x: Any) -> Any:
        given = TensorFlowArray(x, ARRAYS)
        return call(d5.array_namespace(given), given, given.shape[0]).tensor

    traced = tf.function(run, input_signature=[tf.TensorSpec([None, 3], tf.float64)], autograph=False)
    for size in (5, 2):
        x = RNG.standard_normal((size, 3))
        for made in (traced(x), run(tf.constant(x))):
            want = call(np, x, size)
            assert (made.shape, made.dtype.name) == (want.shape, want.dtype)
            np.testing.assert_allclose(made, want, rtol=ROUNDING, atol=ROUNDING)


DECISIONS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "extent": (lambda xp, x: x if x.shape[0] == 1 else -x, r"it decides by the symbolic dimension .*shape\[0\] and 1"),
    "order": (
        lambda xp, x: x if x.size > 7 else -x,
        r"it decides by the symbolic dimension .*; remedy: fix the dimension",
    ),
    "truth": (
        lambda xp, x: x if xp.any(x > 0) else -x,
        r"it decides by what an array holds \(bool\[\]\); allowed: wha",
    ),
    "number": (lambda xp, x: x * float(x[0, 0]), r"it decides by what an array holds \(float32\[\]\)"),
    "range": (lambda xp, x: next(x for _ in range(x.shape[0])), "it decides by the symbolic dimension"),
    "numpy": (lambda xp, x: np.asarray(x) * 2, r"it decides by what an array holds \(float32\[\?, 3\]\)"),
    "len": (lambda xp, x: sum(row for row in x), r"len of float32\[\?, 3\]; allowed: arrays whose first dimension"),
    "writing": (lambda xp, x: x.__setitem__(0, x[1]), "it writes into an array; allowed: new arrays"),
    "indices": (lambda xp, x: x[xp.argsort(x[:, 0])], "it indexes with int64.*; remedy: xp.take"),
    "share": (lambda xp, x: x * (1 / x.shape[0]), "it divides the symbolic dimension .* as a number; .* remedy: x / n"),
    "kinds": (lambda xp, x: x + xp.astype(x, xp.int64), "float32 meets int64; allowed: pairs for which the array API"),
    "fraction": (lambda xp, x: xp.astype(x, xp.int32) * 0.5, "multiply of int32 and the number 0.5; allowed: a number"),
    "matrix": (lambda xp, x: x[None].T, r"\.T of float32\[1, \?, 3\]; allowed: two axes; remedy: \.mT"),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_what_no_graph_can_follow_is_refused_with_the_reason(name: str) -> None:
    call, said = DECISIONS[name]
    native = TF.operator(Broken(lambda x: call(d5.array_namespace(x), x)))
    with pytest.raises(Unsupported, match=rf"Broken\.forward: {said}"):
        tf.function(native, input_signature=[tf.TensorSpec([None, 3])])(tf.ones((2, 3)))


def test_decisions_have_answers_in_eager_calls() -> None:
    def positive(x: Any) -> Any:
        assert x.shape == (2, 3)
        assert len(x) == 2
        assert int(x[0, 0]) == 1 == float(x[1, 2])
        assert np.asarray(x).shape == (2, 3)
        return x if d5.array_namespace(x).all(x > 0) else -x

    np.testing.assert_array_equal(TF.operator(Broken(positive))(tf.ones((2, 3))), np.ones((2, 3)))
    half = TF.operator(Broken(lambda x: np.float32(0.5) * x + x.shape[0] * x))
    traced = tf.function(half, input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    np.testing.assert_array_equal(traced(tf.ones((2, 3))), np.full((2, 3), 2.5))
    with pytest.raises(ShapeError, match=r"got the index 2 for float32\[2, 3\]; allowed: -2 to 1 on axis 0"):
        TF.operator(Broken(lambda x: x[2]))(tf.ones((2, 3)))


# Results that differ between NumPy and TensorFlow, and that the standard leaves open: extremes with NaN, division of
# integers by zero and of infinities; and functions with as many results as a symbolic size says.
OPEN = re.compile(
    r"arg(max|min) .* of NaN|floor_divide.*|remainder of whole numbers|// and % (0|-1.5|2.0)|iter.*|unstack"
)


def test_functions_of_the_standard_on_arrays_of_unknown_extents() -> None:
    wrapped = lambda x: TensorFlowArray(x, ARRAYS)  # noqa: E731
    xp = wrapped(tf.constant(0)).__array_namespace__()
    names = [name for name in CASES if not OPEN.fullmatch(name)]
    for name in names:
        case = CASES[name]
        dtype = case.dtypes[-1] if len(case.dtypes) > 2 else case.dtypes[0]
        feed = arrays(case, dtype)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of nothing
            want = np.asarray(case.call(np, *feed))
        call = lambda *given, case=case: case.call(xp, *map(wrapped, given)).tensor  # noqa: E731
        signature = [tf.TensorSpec([None] * x.ndim, x.dtype) for x in feed]
        got = tf.function(call, input_signature=signature, autograph=False)(*feed).numpy()
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        if want.dtype.kind == "f":
            # Another library's elementary functions; TensorFlow flushes denormal numbers to zero.
            limits = np.finfo(want.dtype)
            rtol = max(16, 4 * case.ulps) * limits.eps
            np.testing.assert_allclose(got, want, rtol=rtol, atol=limits.smallest_normal, err_msg=name)
        else:
            np.testing.assert_array_equal(got, want, err_msg=name)
    assert len(names) > 240


def test_nan_and_infinity_are_tensorflows_as_the_documentation_says() -> None:
    """If this fails, a newer TensorFlow has fixed it: then remove it from docs/how_to/engines.md."""
    x = tf.constant([1.0, np.nan, 2.0])
    assert (NAMESPACE.argmax(x), NAMESPACE.argmin(x)) == (2, 0)
    assert NAMESPACE.floor_divide(tf.constant(np.inf), 2) == np.inf


A = np.array([[3.0, 1.0, 2.0], [0.5, -1.5, 0.5]])
B = np.array([[1, 0, 2], [3, 1, 1]])
STANDARD: dict[str, Callable[[Any, Any, Any], Any]] = {
    "argsort": lambda xp, x, n: xp.argsort(x) + xp.argsort(n, axis=0),
    "argsort_ties": lambda xp, x, n: xp.argsort(n % 2, axis=1),
    "bitwise": lambda xp, x, n: (
        xp.bitwise_and(n, 1) + xp.bitwise_or(n, 4) * xp.bitwise_xor(n, 3) + xp.bitwise_invert(n)
    ),
    "bitwise_truths": lambda xp, x, n: xp.bitwise_or(x > 0, x < 1) & xp.bitwise_invert(xp.bitwise_xor(x > 0, n > 0)),
    "broadcast_arrays": lambda xp, x, n: xp.broadcast_arrays(x[:1, :], x)[0] + x,
    "copysign": lambda xp, x, n: xp.copysign(x, -x) + xp.copysign(1.0, x),
    "count_nonzero": lambda xp, x, n: xp.count_nonzero(n, axis=1) + xp.count_nonzero(n),
    "cumulative_prod": lambda xp, x, n: xp.cumulative_prod(x, axis=1),
    "cumulative_sum": lambda xp, x, n: xp.cumulative_sum(x, axis=0) * 2,
    "cumulative_whole": lambda xp, x, n: xp.cumulative_sum(n, axis=-1) + xp.trunc(n),
    "cumulative_initial": lambda xp, x, n: xp.cumulative_sum(x, axis=1, include_initial=True),
    "cumulative_flat": lambda xp, x, n: xp.cumulative_sum(x[0, :]),
    "diff": lambda xp, x, n: xp.diff(x) + xp.diff(x, axis=1, n=1),
    "diff_further": lambda xp, x, n: xp.diff(x, axis=0, n=2, prepend=x[:1, :], append=x),
    "diagonal": lambda xp, x, n: xp.linalg.diagonal(x, offset=1) + xp.linalg.trace(x),
    "eye": lambda xp, x, n: xp.eye(2, 3, k=1, dtype=x.dtype) + x,
    "hyperbolic": lambda xp, x, n: xp.asinh(x) + xp.acosh(x * x + 1.5) + xp.atanh(x / 4),
    "hypot": lambda xp, x, n: xp.hypot(x * 1e200, x * 1e-200) + xp.hypot(x, 0.0) + xp.hypot(x, x),
    "inverse": lambda xp, x, n: xp.linalg.inv(x[:, :2]) + xp.linalg.solve(x[:, :2], x[:, 1:]) + xp.linalg.det(x[:, :2]),
    "solve": lambda xp, x, n: xp.linalg.solve(x[:, :2], x[:, 2]),
    "cholesky": lambda xp, x, n: xp.linalg.cholesky(xp.matmul(x, xp.matrix_transpose(x))),
    "linspace": lambda xp, x, n: xp.linspace(0.0, 1.0, 7, dtype=x.dtype),
    "linspace_open": lambda xp, x, n: xp.linspace(-1.0, 1.0, 4, dtype=x.dtype, endpoint=False),
    "logs": lambda xp, x, n: xp.log2(x * x + 1) + xp.log10(x * x + 1),
    "logaddexp": lambda xp, x, n: xp.logaddexp(x * 1000, 1.0) + xp.logaddexp(x, x) + xp.logaddexp(-xp.inf, x),
    "logaddexp_infinite": lambda xp, x, n: xp.logaddexp(x - xp.inf, x - xp.inf),
    "meshgrid": lambda xp, x, n: xp.meshgrid(x[0, :], x[:, 0], indexing="ij")[1],
    "moveaxis": lambda xp, x, n: xp.moveaxis(x[None, :, :], (0, 1), (2, 0)) + xp.moveaxis(x[None, :, :], 0, -1),
    "nextafter": lambda xp, x, n: xp.nextafter(x, xp.zeros_like(x)),
    "norm": lambda xp, x, n: xp.linalg.vector_norm(x, axis=1) + xp.linalg.vector_norm(x, ord=1),
    "norms": lambda xp, x, n: (
        xp.linalg.vector_norm(x, ord=xp.inf, axis=0, keepdims=True)
        + xp.linalg.vector_norm(x, ord=3, axis=0)
        + xp.linalg.vector_norm(x, ord=0, axis=0)
        + xp.linalg.vector_norm(x, ord=-xp.inf)
    ),
    "outer": lambda xp, x, n: xp.linalg.outer(x[0, :], x[1, :]),
    "repeat": lambda xp, x, n: xp.repeat(x, 2, axis=1) + xp.reshape(xp.repeat(xp.repeat(x, 1), 2), (2, 6)),
    "roll": lambda xp, x, n: xp.roll(x, 1) + xp.roll(x, -2, axis=1) + xp.roll(x, (1, 1), axis=(0, 1)),
    "searchsorted": lambda xp, x, n: (
        xp.searchsorted(xp.sort(x[0, :]), x) + xp.searchsorted(x[0, :], x, side="right", sorter=xp.argsort(x[0, :]))
    ),
    "shifts": lambda xp, x, n: xp.bitwise_left_shift(n, 2) + xp.bitwise_right_shift(n, 1),
    "signbit": lambda xp, x, n: xp.signbit(x) ^ xp.signbit(xp.negative(xp.zeros_like(x))),
    "sort": lambda xp, x, n: xp.sort(x) + xp.sort(x, axis=0),
    "sort_whole": lambda xp, x, n: xp.sort(n, axis=1) - xp.sort(-n, axis=0),
    "take_along_axis": lambda xp, x, n: xp.take_along_axis(x, n % 2, axis=0) + xp.take_along_axis(x, n % 3 - 3, axis=1),
    "take_along_wide": lambda xp, x, n: xp.take_along_axis(x, n[:, :1] % 3, axis=1),
    "tile": lambda xp, x, n: xp.tile(x, (2, 2)) + xp.tile(xp.tile(x, (2,)), (1, 2, 1)),
    "trunc": lambda xp, x, n: xp.trunc(x * 1.7),
    "unstack": lambda xp, x, n: xp.unstack(x, axis=1)[2] + xp.unstack(x)[0][0],
    "vecdot": lambda xp, x, n: xp.vecdot(x, x) + xp.linalg.vecdot(x, x, axis=1),
}


@pytest.mark.parametrize("name", STANDARD)
def test_further_functions_of_the_namespace_are_the_standards(name: str) -> None:
    function = STANDARD[name]
    want = np.asarray(function(np, A, B))
    eager = function(NAMESPACE, tf.constant(A), tf.constant(B))
    traced = tf.function(lambda x, n: function(NAMESPACE, x, n), autograph=False)(A, B)
    for got in (eager, traced):
        assert (got.shape, got.dtype.as_numpy_dtype) == (want.shape, want.dtype.type)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)  # float64, a few elementary operations


def test_element_types_of_the_namespace() -> None:
    xp, x = NAMESPACE, tf.constant(A)
    for descending, axis in ((True, 1), (True, 0), (False, 1)):
        order = np.argsort(-B if descending else B, axis=axis, kind="stable")
        np.testing.assert_array_equal(xp.argsort(tf.constant(B), axis=axis, descending=descending), order)
    np.testing.assert_array_equal(xp.sort(x, descending=True), -np.sort(-A))
    np.testing.assert_array_equal(xp.sort(tf.constant([True, False])), [False, True])
    np.testing.assert_array_equal(xp.sort(tf.constant([200, 3, 255], tf.uint8)), [3, 200, 255])
    assert xp.result_type(tf.float32, tf.float64) == tf.float64
    assert xp.result_type(tf.constant(1.0), 2.0, 1) == tf.float32
    assert xp.result_type(tf.uint8, tf.int8) == tf.int16
    assert xp.isdtype(tf.float16, "real floating")
    assert xp.isdtype(tf.uint8, ("bool", "unsigned integer"))
    assert not xp.isdtype(tf.bool, "numeric")
    assert xp.isdtype(tf.int32, "signed integer")
    assert xp.isdtype(tf.uint8, "integral")
    assert not xp.isdtype(tf.uint8, "signed integer")
    assert xp.isdtype(tf.int32, tf.int32)
    with pytest.raises(ValueError, match="got the kind 'float'; allowed: bool, "):
        xp.isdtype(tf.int32, "float")
    for name in ("float32", "float64", "float16"):
        ours, theirs = xp.finfo(getattr(tf, name)), np.finfo(name)
        assert (ours.eps, ours.max, ours.min, ours.bits) == (theirs.eps, theirs.max, theirs.min, theirs.bits)
    assert xp.finfo(x).smallest_normal == np.finfo("float64").smallest_normal
    assert (xp.iinfo(tf.int8).min, xp.iinfo(tf.int8).max) == (-128, 127)
    assert xp.cumulative_sum(tf.constant([1, 2], tf.int32)).dtype == tf.int64
    assert xp.empty((2, 3)).shape == xp.empty_like(x).shape == (2, 3)
    infinite = tf.constant([np.inf, -np.inf, 0.0, np.nan])
    np.testing.assert_array_equal(xp.hypot(infinite, 1.0), np.hypot(infinite.numpy(), np.float32(1)))
