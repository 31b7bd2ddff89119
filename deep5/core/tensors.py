"""Tensors as seen by all levels: specification, device, and exchange between array libraries."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deep5.core.errors import ShapeError, Unsupported, UsageError, suggestion

__all__ = [
    "NAMESPACES",
    "Array",
    "Arrays",
    "CPUDevice",
    "Device",
    "GPUDevice",
    "TensorSpec",
    "aligned_empty",
    "array_namespace",
    "device",
    "dtype_name",
    "is_bfloat16",
    "numpy_dtype",
    "to_numpy",
]

Array = Any
Arrays = Mapping[str, Any]

# Prefixes of the names of ml_dtypes' element types.
_BORROWED = ("bfloat16", "float4_", "float6_", "float8_", "int2", "int4", "uint2", "uint4")

NAMESPACES: dict[str, Callable[[], Any]] = {}
"""Library package to a function that returns its array API namespace, for libraries without one; back-ends add theirs.
"""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape and dtype of a tensor, or of the tensors in a sequence or optional input or output of a network.

    Attributes:
        shape: Dimensions; an `int` is fixed, a `str` names a symbolic dimension (`"N"`, the batch).
        dtype: NumPy name of the element type, such as `"float32"`, `"int64"`; ml_dtypes' name if NumPy has none, such
            as `"bfloat16"`, `"float8_e4m3fn"`, `"int4"`; `"string"` for strings, in arrays of Python objects.
        collection: `""` for a tensor, `"sequence"` for a list of tensors, `"optional"` for a tensor or None, `"optional
            sequence"` for a list or None. The shape of a list's tensors is not checked: in ONNX each may have its own.
        ranked: Whether the number of dimensions is known. If it is not, only a run determines the shape, and `shape`
            holds one symbolic dimension that stands for all.

    Raises:
        ShapeError: The shape is not a tuple.

    >>> import deep5 as d5
    >>> images = d5.TensorSpec(shape=("N", 3, 32, 32))
    >>> str(images), images.mismatch((8, 3, 32, 32), "float32")
    ('float32[N, 3, 32, 32]', None)
    >>> images.mismatch((8, 1, 32, 32), "float32")
    'got shape (8, 1, 32, 32), expected float32[N, 3, 32, 32]'
    >>> d5.TensorSpec(shape=(4, 3), dtype="int64").size
    12
    """

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    collection: str = ""
    ranked: bool = True

    def __post_init__(self) -> None:
        # Dimensions and dtype are checked where they are used: there the message can name the input.
        if not isinstance(self.shape, (tuple, list)):
            raise ShapeError(f"got the shape {self.shape!r}; allowed: a tuple of dimensions, such as shape=('N', 3)")

    @property
    def size(self) -> int:
        """Number of elements.

        Raises:
            ShapeError: A dimension is symbolic or negative.
        """
        total = 1
        for dimension in self.shape:
            if not isinstance(dimension, int):
                raise ShapeError(f"{self} has no known size: dimension {dimension!r} is symbolic; allowed: integers")
            if dimension < 0:
                raise ShapeError(f"{self} has no known size: got the dimension {dimension}; allowed: at least 0")
            total *= dimension
        return total

    def mismatch(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Why a tensor of this shape and dtype does not fit, or None if it does.

        Args:
            shape: The tensor's shape.
            dtype: NumPy name of its element type.
        """
        if dtype != self.dtype:
            return f"got dtype {dtype}, expected {self.dtype}"
        if not self.ranked:
            return None
        if len(shape) != len(self.shape) or any(
            isinstance(want, int) and want != got for want, got in zip(self.shape, shape, strict=True)
        ):
            return f"got shape {tuple(shape)}, expected {self}"
        return None

    def __str__(self) -> str:
        if self.collection:
            return f"{self.collection} of {self.dtype}"
        if not self.ranked:
            return f"{self.dtype} of unknown rank"
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True)
class Device:
    """A compute device.

    Attributes:
        kind: `"cpu"` or `"cuda"`.
        index: Counts devices of one kind, from 0.

    >>> import deep5 as d5
    >>> first, second = d5.CPUDevice(), d5.GPUDevice(1)
    >>> str(first), str(second), second.index
    ('cpu', 'cuda:1', 1)
    >>> executor = d5.framework("reference").executor(d5.networks.lenet(), device=first)
    >>> executor.device == first
    True
    """

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def describe(self) -> str:
        """The canonical string that enters a recipe's hash."""
        return str(self)


def device(text: str | Device) -> Device:
    """Parse a device.

    Args:
        text: `"cpu"`, `"cuda"`, `"cuda:1"`, or a `Device`, returned as it is.

    Raises:
        UsageError: Anything else.

    >>> str(device("cuda:1"))
    'cuda:1'
    """
    if isinstance(text, Device):
        return text
    match = re.fullmatch(r"(cpu|cuda(?::(\d+))?)", str(text))
    if match is None:
        near = suggestion(str(text).partition(":")[0], ("cpu", "cuda"))
        raise UsageError(f"unknown device {text!r}; allowed: cpu, cuda, cuda:N{near}")
    return Device(kind=match[1].partition(":")[0], index=int(match[2] or 0))


def CPUDevice() -> Device:  # noqa: N802 - the name that recipes of the tutorial use
    """The host processor.

    >>> import deep5 as d5
    >>> d5.CPUDevice()
    Device(kind='cpu', index=0)
    """
    return Device()


def GPUDevice(index: int = 0) -> Device:  # noqa: N802 - the name that recipes of the tutorial use
    """A graphics processor; whether it exists is checked where it is used.

    Args:
        index: Counts the graphics processors that the frameworks see, from 0.

    >>> import deep5 as d5
    >>> str(d5.GPUDevice()), str(d5.GPUDevice(1))
    ('cuda:0', 'cuda:1')
    """
    return Device(kind="cuda", index=index)


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialized C-contiguous NumPy array whose memory is aligned to 64 bytes.

    Frameworks that use host memory without a copy require this (JAX by DLPack, ONNX Runtime).
    """
    import numpy as np

    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + 64, dtype=np.uint8)
    start = -raw.__array_interface__["data"][0] % 64  # .ctypes takes ten times as long
    return raw[start : start + size_bytes].view(dtype).reshape(shape)


def array_namespace(*arrays: Array) -> Any:
    """The array API namespace of the arrays (https://data-apis.org/array-api).

    Args:
        arrays: At least one array of NumPy, PyTorch, JAX, `array_api_strict`, or of deep5's tracer; numbers are allowed
            among them.

    Raises:
        Unsupported: No array, arrays of different libraries, or a library without a namespace.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> def softplus(x):
    ...     xp = d5.array_namespace(x)  # the same lines run on NumPy, PyTorch and JAX arrays
    ...     return xp.log1p(xp.exp(x))
    >>> softplus(np.zeros(2)).round(4)
    array([0.6931, 0.6931])
    """
    given = [array for array in arrays if not isinstance(array, (bool, int, float, complex))]
    # NumPy 2 implements the standard; only libraries that do not (PyTorch) need the compatibility layer.
    if given and all(type(array) is type(given[0]) for array in given) and hasattr(given[0], "__array_namespace__"):
        return given[0].__array_namespace__()
    packages = {type(array).__module__.partition(".")[0] for array in given}
    if len(packages) == 1 and (registered := NAMESPACES.get(packages.pop())) is not None:
        return registered()
    import array_api_compat

    try:
        return array_api_compat.array_namespace(*arrays)
    except TypeError as error:
        got = ", ".join(type(array).__name__ for array in arrays) or "no array"
        allowed = ", ".join(["NumPy", "PyTorch", "JAX", *NAMESPACES])
        raise Unsupported(f"no array namespace for {got}; allowed: arrays of one of {allowed}") from error


def numpy_dtype(given: Any) -> Any:
    """NumPy's element type by any of its names, including `"bfloat16"` and others that come from ml_dtypes.

    >>> numpy_dtype("bfloat16").itemsize
    2
    """
    import numpy as np

    if isinstance(given, str) and given.startswith(_BORROWED):
        import ml_dtypes

        given = getattr(ml_dtypes, given)
    return np.dtype(object if isinstance(given, str) and given == "string" else given)


def is_bfloat16(array: Any) -> bool:
    """Whether a NumPy array holds bfloat16.

    NumPy puts a type's name together at each request, which takes longer than to share an array.
    """
    return bool(array.dtype.kind == "V" and array.dtype.name == "bfloat16")


def to_numpy(value: Array) -> Any:
    """The value as a NumPy array; shares memory if the library allows it.

    Args:
        value: Any array; an array on an accelerator is copied to the host.

    Raises:
        Unsupported: The value is not an array.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    >>> outputs = executor.inference({"input": np.ones((5, 4), np.float32), "label": np.zeros(5, np.int64)})
    >>> logits = d5.to_numpy(outputs["logits"])  # a native value of the framework
    >>> type(logits).__name__, logits.shape, logits.dtype.name
    ('ndarray', (5, 2), 'float32')
    """
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "detach"):  # PyTorch: drop autograd and device
            held = value.detach().cpu()
            if (kind := str(held.dtype).removeprefix("torch.")).startswith(_BORROWED):  # torch cannot convert them
                bits = getattr(sys.modules["torch"], f"uint{8 * held.element_size()}")
                return held.contiguous().view(bits).numpy().view(numpy_dtype(kind))
            return held.numpy()
        # JAX's own conversion also shares memory, and takes a quarter of the time when its code is not cached.
        if hasattr(value, "__dlpack__") and not type(value).__module__.startswith("jax"):
            return np.from_dlpack(value)
    except (TypeError, RuntimeError, BufferError):
        pass  # an element type or layout that DLPack does not support, but NumPy may
    try:
        if hasattr(value, "block_until_ready"):
            value.block_until_ready()  # the conversion of an array that JAX failed to compute ends the process
        # TensorFlow's own conversion supports bfloat16, NumPy's does not.
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Unsupported(f"cannot make a NumPy array of {type(value).__name__} ({error})") from error
    if array.dtype.kind in "OSUMm":
        raise Unsupported(f"cannot make a NumPy array of {type(value).__name__}; allowed: arrays and numbers")
    return array


@functools.cache
def dtype_name(dtype: Any) -> str:
    """NumPy's name of an element type of any framework."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")
