"""A kernel in another language as a native operator: Triton, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import deep5 as d5

pytestmark = pytest.mark.gpu


def scaled_sum() -> Any:
    """a x + y as a function of torch's tensors, computed by a Triton kernel."""
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def kernel(x, y, out, a, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803 - Triton's custom; it refuses other annotations
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        total = a * tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
        tl.store(out + at, total, mask=inside)

    def call(x: Any, y: Any, *, a: float) -> Any:
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, a, x.numel(), BLOCK=1024)
        return out

    return call


def test_a_triton_kernel_runs_as_an_operator() -> None:
    operator = d5.NativeOperator(scaled_sum(), framework="pytorch", a=2.0)
    executor = d5.framework("pytorch").operator_executor(operator, device="cuda")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(5000).astype(np.float32) for _ in range(2))
    native = executor.arrays(x, y)
    assert all(value.is_cuda for value in native)
    (out,) = executor.inference(*native)
    executor.synchronize()
    assert out.is_cuda
    # One product and one sum of float32 numbers, which may be fused into one rounding.
    np.testing.assert_allclose(out.cpu().numpy(), 2 * x + y, rtol=2e-7, atol=1e-6)
