"""The recurrent layer in Triton: by its interpreter on the host, and on a GPU; against PyTorch's layers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_recurrent_persistent import CELLS, SIZES, TOLERANCE, by_torch, values

from deep5.core.errors import MissingDependency, UsageError

pytest.importorskip("triton", reason="deep5[triton]")


def found(device: str, dtype: str) -> dict[str, dict[str, float]]:
    """By cell and size, the largest differences of states and gradients from PyTorch's own layer in float64."""
    from deep5.frameworks.pytorch.recurrent_triton import recurrent_triton

    made: dict[str, dict[str, float]] = {}
    for cell, activation in CELLS:
        layer = recurrent_triton(cell, activation).function
        for sizes in SIZES:
            given = values(cell, sizes, dtype)
            tensors = [torch.tensor(value, device=device, requires_grad=True) for value in given]
            y = layer(*tensors)
            dy = np.random.default_rng(9).standard_normal(y.shape).astype(dtype)
            grads = torch.autograd.grad(y, tensors, torch.tensor(dy, device=device))
            pairs = zip("yxwrb", (y, *grads), by_torch(cell, activation, given, dy), strict=True)
            made[f"{cell} {activation} {sizes}"] = {
                name: float(np.abs(got.detach().cpu().numpy() - want).max() / max(1.0, np.abs(want).max()))
                for name, got, want in pairs
            }
    return made


def judge(errors: dict[str, dict[str, float]], dtype: str) -> None:
    assert len(errors) == len(CELLS) * len(SIZES)
    assert {name for each in errors.values() for name in each} == set("yxwrb")
    assert {name: each for name, each in errors.items() if not max(each.values()) <= TOLERANCE[dtype]} == {}


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_kernel_computes_the_layer_in_the_interpreter(dtype: str) -> None:
    """In another process, since Triton decides when it is imported whether it interprets."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    child = subprocess.run(
        [sys.executable, __file__, "cpu", dtype],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    judge(json.loads(child.stdout), dtype)


def test_the_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To machine code for NVIDIA's compute capability 9.0, and within the 227 KiB of shared memory of a block there."""
    import triton
    from triton.backends.compiler import GPUTarget

    from deep5.frameworks.pytorch import recurrent_triton as module

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9's own value, which it announces to change
    made = 0
    for kernel in (module._forward, module._backward):
        pointers = [
            name for name in kernel.arg_names if name not in ("steps", "batch", "hidden") and not name.isupper()
        ]
        for count, relu in ((1, False), (1, True), (3, False), (4, False)):
            given = {"COUNT": count, "RELU": relu, **module._TILES}
            types = {**dict.fromkeys(pointers, "*fp32"), **dict.fromkeys(("steps", "batch", "hidden"), "i32")}
            source = triton.compiler.ASTSource(
                fn=kernel, signature={**types, **dict.fromkeys(given, "constexpr")}, constexprs=given
            )
            compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
            assert len(compiled.asm["cubin"]) > 1000
            assert compiled.metadata.shared <= 227 * 1024
            made += 1
    assert made == 8


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_kernel_computes_the_layer_on_a_gpu(dtype: str) -> None:
    judge(found("cuda", dtype), dtype)


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "deep5.frameworks.pytorch.recurrent_triton", raising=False)
    with pytest.raises(MissingDependency, match=r"pip install 'deep5\[triton\]'"):
        importlib.import_module("deep5.frameworks.pytorch.recurrent_triton")


def test_an_unknown_cell_is_refused() -> None:
    from deep5.frameworks.pytorch.recurrent_triton import recurrent_triton

    given: Any = "GRU2"
    with pytest.raises(UsageError, match="allowed: RNN, GRU, LSTM"):
        recurrent_triton(given)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found(*sys.argv[1:])))
