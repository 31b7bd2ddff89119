"""Every way out of a framework raises: code within `poisoned` stays in the framework, from input to output."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import numpy as np
import pytest

__all__ = ["MESSAGE", "WAYS", "native", "poisoned"]

MESSAGE = "a conversion to NumPy between input and output"

_TYPE_NAME, _TYPE_SIZE, _BUFFERS = 24, 32, 160  # in bytes, since CPython 3.5

_NUMBERS = ("__bool__", "__int__", "__index__", "__float__", "__complex__")
# Methods that return NumPy arrays, Python numbers, or memory.
_METHODS = {
    "pytorch": ("numpy", "__array__", "__dlpack__", "tolist", "item", *_NUMBERS),
    "tensorflow": ("numpy", "_numpy", "_numpy_internal", "__array__", "__dlpack__", *_NUMBERS),
    "jax": (
        *("__array__", "__dlpack__", "tolist", "item", "tobytes", "unsafe_buffer_pointer", *_NUMBERS),
        *("_value", "_npy_value", "_single_device_array_to_np_array_did_copy"),
    ),
}
# Functions through which calls back into Python pass, and those that export arrays.
_FUNCTIONS = {
    "pytorch": (("torch.utils.dlpack", "to_dlpack"), ("torch", "to_dlpack")),
    "tensorflow": (
        ("tensorflow.python.ops.script_ops", "_internal_py_func"),
        ("tensorflow.python.dlpack.dlpack", "to_dlpack"),
        ("tensorflow._api.v2.experimental.dlpack", "to_dlpack"),
    ),
    "jax": (("jax._src.callback", "emit_python_callback"),),
}


def forbidden(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError(MESSAGE)


@contextmanager
def poisoned(framework: str) -> Iterator[None]:
    """Every conversion from this framework's arrays to NumPy, the reference and onnx's evaluator raise.

    No patch can see an address (`data_ptr`), which the update kernels on the host use.
    """
    import onnx.reference

    kind = type(next(iter(native(framework, {"x": np.zeros(1, np.float32)}).values())))
    with pytest.MonkeyPatch.context() as patch, _without_buffers(kind):
        patch.setattr(onnx.reference.ReferenceEvaluator, "run", forbidden)
        for module in ("executor", "emit"):  # modules imported now must not bind the patch
            patch.setattr(f"deep5.frameworks.reference.{module}.compile_network", forbidden)
        for module, name in _FUNCTIONS[framework]:
            patch.setattr(import_module(module), name, forbidden)
        for name in _METHODS[framework]:
            patch.setattr(kind, name, property(forbidden) if name in ("_value", "_npy_value") else forbidden)
        yield


def native(framework: str, batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """NumPy's arrays as the framework's, copied."""
    if framework == "pytorch":
        import torch

        return {name: torch.tensor(value) for name, value in batch.items()}
    if framework == "tensorflow":
        import tensorflow as tf

        return {name: tf.constant(value) for name, value in batch.items()}
    import jax

    with jax.enable_x64(True):
        return {name: jax.device_put(value) for name, value in batch.items()}


@contextmanager
def _without_buffers(kind: type) -> Iterator[None]:
    """Remove the type's buffer protocol: NumPy prefers it to `__array__`, and no Python attribute represents it.

    This affects `np.asarray` and all others that make arrays, ufuncs, `memoryview`, and assignment to slices.
    """
    if sys.implementation.name != "cpython":
        pytest.skip("types are patched where CPython has them")
    place = id(kind)
    assert ctypes.c_char_p.from_address(place + _TYPE_NAME).value
    assert ctypes.c_ssize_t.from_address(place + _TYPE_SIZE).value == kind.__basicsize__  # the offset is right
    table = ctypes.c_void_p.from_address(place + _BUFFERS).value
    if table is None:
        yield
        return
    get = ctypes.c_void_p.from_address(table)
    before, get.value = get.value, None
    try:
        yield
    finally:
        get.value = before


def _assigned(x: Any) -> Any:
    array = np.zeros(2, np.float32)
    array[...] = x
    return array


def _to_numpy(x: Any) -> Any:
    import deep5 as d5

    return d5.to_numpy(x)


# Ways out for any array with two elements.
_ANY: dict[str, Callable[[Any], Any]] = {
    "np.asarray": np.asarray,
    "np.array": np.array,
    "np.ascontiguousarray": np.ascontiguousarray,
    "np.from_dlpack": np.from_dlpack,
    "np.copyto": lambda x: np.copyto(np.zeros(2, np.float32), x),
    "np.stack": lambda x: np.stack([x, x]),
    "np.add": lambda x: np.add(np.zeros(2, np.float32), x),
    "assignment": _assigned,
    "to_numpy": _to_numpy,
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0]),
    "complex": lambda x: complex(x[0]),
}


def _torch(name: str) -> Callable[[Any], Any]:
    def way(x: Any) -> Any:
        import torch

        return torch.utils.dlpack.to_dlpack(x) if name == "to_dlpack" else getattr(x, name)()

    return way


def _tensorflow(name: str) -> Callable[[Any], Any]:
    def way(x: Any) -> Any:
        import tensorflow as tf

        if name in ("numpy_function", "py_function"):
            return tf.function(lambda y: getattr(tf, name)(lambda z: z, [y], tf.float32))(x)
        found: Any = {
            "make_tensor_proto": tf.make_tensor_proto,
            "get_static_value": tf.get_static_value,
            "to_dlpack": tf.experimental.dlpack.to_dlpack,
            "Variable": lambda y: tf.Variable(y).numpy(),
        }[name]
        return found(x)

    return way


def _jax(name: str) -> Callable[[Any], Any]:
    def way(x: Any) -> Any:
        import jax
        from jax.experimental import io_callback

        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        calls: dict[str, Callable[[Any], Any]] = {
            "pure_callback": lambda y: jax.pure_callback(lambda z: z, shape, y),
            "io_callback": lambda y: io_callback(lambda z: z, shape, y),
            "debug.callback": lambda y: jax.debug.callback(lambda z: None, y),
            "debug.print": lambda y: jax.debug.print("{}", y),
        }
        if name in calls:
            return jax.block_until_ready(jax.jit(calls[name])(x))
        return jax.device_get(x) if name == "device_get" else x._value

    return way


WAYS: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{(framework, name): way for framework in _METHODS for name, way in _ANY.items()},
    **{("pytorch", name): _torch(name) for name in ("numpy", "tolist", "to_dlpack")},
    ("pytorch", "item"): lambda x: x[0].item(),
    **{
        ("tensorflow", name): _tensorflow(name)
        for name in ("make_tensor_proto", "get_static_value", "to_dlpack", "Variable", "numpy_function", "py_function")
    },
    ("tensorflow", "memoryview"): memoryview,
    **{
        ("jax", name): _jax(name)
        for name in ("_value", "device_get", "pure_callback", "io_callback", "debug.callback", "debug.print")
    },
    **{("jax", name): lambda x, name=name: getattr(x, name)() for name in ("tolist", "tobytes")},
    ("jax", "memoryview"): memoryview,
}
"""By framework and name: ways out, each a function of an array of two elements."""
