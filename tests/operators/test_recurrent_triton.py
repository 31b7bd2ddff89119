"""The recurrent layer in Triton: by its interpreter on the host, and on a GPU; against PyTorch's layers."""

from __future__ import annotations

import importlib
import importlib.util
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

from deep5.core.errors import MissingDependency

# Triton stays out of this process and out of the environment: where TensorFlow is loaded, importing it may crash, and
# torch.compile imports it wherever it is installed. `pip install --target FOLDER triton`, and PYTHONPATH=FOLDER.
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


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


def wrong(errors: dict[str, dict[str, float]], dtype: str) -> dict[str, dict[str, float]]:
    """The cases of which a difference, of the states or of a gradient, exceeds the tolerance."""
    return {name: each for name, each in errors.items() if not max(each[key] for key in "yxwrb") <= TOLERANCE[dtype]}


def in_a_child(*words: str, **variables: str) -> Any:
    """What this file prints as a program: Triton decides when it is imported whether it interprets."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    child = subprocess.run(
        [sys.executable, __file__, *words],
        env={**os.environ, "PYTHONPATH": paths, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@needs_triton
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_kernel_computes_the_layer_in_the_interpreter(dtype: str) -> None:
    errors = in_a_child("cpu", dtype, TRITON_INTERPRET="1")
    assert len(errors) == len(CELLS) * len(SIZES)
    assert wrong(errors, dtype) == {}


@needs_triton
def test_a_second_derivative_is_refused() -> None:
    assert "once_differentiable" in in_a_child("twice", TRITON_INTERPRET="1")


@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    """To machine code for NVIDIA's compute capability 9.0, and within the 227 KiB of shared memory of a block there."""
    made = in_a_child("compile", TRITON_CACHE_DIR=str(tmp_path))
    assert len(made) == 8
    assert all(size > 1000 and shared <= 227 * 1024 for size, shared in made)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_kernel_computes_the_layer_on_a_gpu(dtype: str) -> None:
    errors = in_a_child("cuda", dtype)
    assert len(errors) == len(CELLS) * len(SIZES)
    assert wrong(errors, dtype) == {}


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "deep5.frameworks.pytorch.recurrent_triton", raising=False)
    with pytest.raises(MissingDependency, match="remedy: pip install triton"):
        importlib.import_module("deep5.frameworks.pytorch.recurrent_triton").recurrent_triton()


def compiled() -> list[tuple[int, int]]:
    """Bytes of machine code and of shared memory, of both kernels for each cell."""
    import triton
    from triton.backends.compiler import GPUTarget

    from deep5.frameworks.pytorch import recurrent_triton as module

    made = []
    for kernel in (module._forward, module._backward):
        counts = ("steps", "batch", "hidden")
        pointers = [name for name in kernel.arg_names if name not in counts and not name.isupper()]
        for count, relu in ((1, False), (1, True), (3, False), (4, False)):
            given = {"COUNT": count, "RELU": relu, **module._TILES}
            types = {**dict.fromkeys(pointers, "*fp32"), **dict.fromkeys(counts, "i32")}
            source = triton.compiler.ASTSource(
                fn=kernel, signature={**types, **dict.fromkeys(given, "constexpr")}, constexprs=given
            )
            done = triton.compile(source, target=GPUTarget("cuda", 90, 32))
            made.append((len(done.asm["cubin"]), done.metadata.shared))
    return made


def twice() -> str:
    """What PyTorch says of a second derivative."""
    from deep5.frameworks.pytorch.recurrent_triton import recurrent_triton

    tensors = [torch.tensor(value, requires_grad=True) for value in values("GRU", SIZES[1])]
    (dx,) = torch.autograd.grad(
        recurrent_triton("GRU").function(*tensors).square().sum(), tensors[:1], create_graph=True
    )
    try:
        dx.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.stdout.write(json.dumps({"compile": compiled, "twice": twice}.get(words[0], lambda: found(*words))()))
