"""Products of each sample on JAX: the gradients that deep5 writes itself, against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [((6, 5, 8), (6, 8, 5)), ((2, 3, 5, 4), (2, 3, 4, 7)), ((3, 40, 30), (3, 30, 20)), ((1, 1, 1), (1, 1, 1))],
)
def test_gradients_equal_those_of_numpy(first: tuple[int, ...], second: tuple[int, ...], turned: bool) -> None:
    from deep5.frameworks.jax.kernels.layers import product

    rng = np.random.default_rng(0)
    a, b, dy = (rng.standard_normal(shape) for shape in (first, second, (*first[:-1], second[-1])))

    def loss(a: object, b: object) -> object:
        return (product(a, b.swapaxes(-1, -2) if turned else b) * dy).sum()  # type: ignore[attr-defined]

    given = b.swapaxes(-1, -2) if turned else b
    with jax.enable_x64(True):
        da, db = jax.jit(jax.grad(loss, (0, 1)))(a, given)
        again = jax.jit(jax.grad(lambda a: jax.grad(loss, 1)(a, given).sum()))(a)
    # float64 sums of at most 40 terms in other orders.
    np.testing.assert_allclose(da, dy @ b.swapaxes(-1, -2), rtol=1e-11, atol=1e-12)
    expected = a.swapaxes(-1, -2) @ dy
    np.testing.assert_allclose(db, expected.swapaxes(-1, -2) if turned else expected, rtol=1e-11, atol=1e-12)
    # The sum of all elements of a^T dy, differentiated by a: the sum of each row of dy.
    np.testing.assert_allclose(again, np.broadcast_to(dy.sum(-1, keepdims=True), a.shape), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_have_the_type_of_what_they_belong_to(dtype: str) -> None:
    import jax.numpy as jnp

    from deep5.frameworks.jax.kernels.layers import product

    a, b = jnp.ones((2, 3, 4), dtype), jnp.ones((2, 4, 5), dtype)
    found = jax.grad(lambda a, b: product(a, b).sum(), (0, 1))(a, b)
    assert [str(each.dtype) for each in found] == [dtype, dtype]
    np.testing.assert_array_equal(np.asarray(found[1], np.float32), 3)


def test_integers_and_unequal_samples_are_multiplied_as_before() -> None:
    from deep5.frameworks.jax.kernels.layers import product

    a, b = np.arange(12, dtype=np.int32).reshape(1, 3, 4), np.arange(40, dtype=np.int32).reshape(2, 4, 5)
    np.testing.assert_array_equal(product(a, b), a @ b)
