"""Compiled operators in JAX-compiled code: kernels called through XLA's foreign function interface."""

from __future__ import annotations

import ctypes
import functools
import secrets
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from deep5.core.compiler import load_library
from deep5.core.tensors import TensorSpec
from deep5.operators.kernel import Kernel
from deep5.operators.plan import INCLUDE

__all__ = ["TARGET", "call_kernel", "entered"]

TARGET = "deep5_operator"
"""The call target in compiled programs; all operators share it."""

_LOCK, _LOADING = threading.Lock(), threading.Lock()


class _Number(np.int64):
    """The number of a kernel in the shim's table: traced calls hold it, and it keeps the kernel alive."""

    kernel: Kernel


# Every kernel in the table. Before compilation, the number holds it there, as a part of every traced call; after
# compilation, the executables of XLA, which the shim counts. A kernel leaves the table when both are gone.
_ENTERED: dict[int, tuple[Kernel, weakref.ref[_Number]]] = {}
_NUMBERS: weakref.WeakKeyDictionary[Kernel, weakref.ref[_Number]] = weakref.WeakKeyDictionary()


def call_kernel(kernel: Kernel, inputs: Sequence[Any], outputs: Sequence[TensorSpec]) -> tuple[Any, ...]:
    """Call a kernel, in code that JAX traces or eagerly.

    `jax.vmap` converts the call to a loop.

    Args:
        kernel: A kernel for the host.
        inputs: JAX arrays of the kernel's dtypes.
        outputs: Shapes and dtypes of the outputs.
    """
    library = _shim()
    number = _number(kernel, library)
    made = [jax.ShapeDtypeStruct(spec.shape, np.dtype(jax.numpy.dtype(spec.dtype))) for spec in outputs]
    found: Any = jax.ffi.ffi_call(TARGET, made, vmap_method="sequential")(*inputs, kernel=number)
    return tuple(found)


def entered() -> int:
    """Number of kernels held for traced calls and executables."""
    _sweep(_shim())
    return len(_ENTERED)


def _number(kernel: Kernel, library: Any) -> _Number:
    with _LOCK:
        known = _NUMBERS.get(kernel)
        number = known() if known is not None else None
        if number is not None:
            return number
        number = _Number(secrets.randbits(62) + 1)
        number.kernel = kernel
        if library.deep5_enter(int(number), kernel.pointer, kernel.name.encode()):
            raise MemoryError
        _ENTERED[int(number)] = (kernel, weakref.ref(number))
        _NUMBERS[kernel] = weakref.ref(number)
    _sweep(library)
    return number


def _sweep(library: Any) -> None:
    """Release kernels that no traced or compiled code calls any more."""
    with _LOCK:
        gone = [key for key, (_, number) in _ENTERED.items() if number() is None and library.deep5_leave(key)]
        kernels = [_ENTERED.pop(key) for key in gone]
    del kernels  # without the lock: destructors may run arbitrary code


def _shim() -> Any:
    with _LOADING:  # it registers itself on import, which works only once
        return _loaded()


@functools.cache
def _loaded() -> Any:
    source = (Path(__file__).parent / "shim.c").read_text(encoding="utf-8")
    library = load_library(source, what="deep5's handler for XLA", include=(INCLUDE, Path(jax.ffi.include_dir())))
    library.deep5_enter.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
    library.deep5_leave.argtypes = (ctypes.c_int64,)
    state = {
        "type_id": _capsule(ctypes.addressof(ctypes.c_char.in_dll(library, "deep5_state_type"))),
        "type_info": _capsule(ctypes.addressof(ctypes.c_char.in_dll(library, "deep5_state_info"))),
    }
    jax.devices("cpu")  # type registration requires the host's client
    jax.ffi.register_ffi_type("deep5_kernel", state, platform="cpu")
    handlers = {name: jax.ffi.pycapsule(library[f"deep5_{name}"]) for name in ("instantiate", "execute")}
    jax.ffi.register_ffi_target(TARGET, handlers, platform="cpu")
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library["deep5_refuse"]), platform="CUDA")
    return library


def _capsule(address: int) -> Any:
    return jax.ffi.pycapsule(ctypes.c_void_p(address))
