"""Compiled operators in ONNX Runtime: nodes of custom operators that call the operators' kernels."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime

from deep5.core.compiler import load_library
from deep5.core.errors import Deep5Error, Unsupported
from deep5.core.tensors import Device
from deep5.networks import compiled
from deep5.networks.network import Network
from deep5.operators.kernel import Kernel
from deep5.operators.plan import CODES, INCLUDE

__all__ = ["failure", "register_shim", "with_kernels"]

_LOADING = threading.Lock()


def with_kernels(network: Network, device: Device) -> tuple[Network, dict[str, Kernel]]:
    """The network with nodes of compiled operators replaced by custom operators; see `compiled.with_kernels`.

    Raises:
        OperatorError: See `compiled.with_kernels`.
        Unsupported: The device is not the host.
    """
    suited, kernels = compiled.with_kernels(network, _described)
    if kernels and device.kind != "cpu":
        names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels.values()))
        raise Unsupported(
            f"onnxruntime runs operators in C++ only on the host; got the device {device} and {names}; allowed: cpu"
        )
    return suited, kernels


def register_shim(options: onnxruntime.SessionOptions) -> None:
    """Register the custom operators of all kernels so far with sessions of these options."""
    options.register_custom_ops_library(_shim()._name)


def failure(error: Exception, kernels: Mapping[str, Kernel]) -> Deep5Error | None:
    """The error that an operator raised, with its own message; None if the error is not an operator's.

    Args:
        error: The error of ONNX Runtime.
        kernels: The result of `with_kernels`.
    """
    found = re.search(r"while running deep5_\w+ node\. Name:'(.*?)' Status Message: (.*)", str(error), re.DOTALL)
    kernel = kernels.get(found[1]) if found else None
    return None if found is None or kernel is None else compiled.failure(kernel, found[2])


def _described(kernel: Kernel, node: ir.Node) -> tuple[str, dict[str, Any]]:
    """The custom operator for the kernel's combination of dtypes."""
    codes = [CODES[dtype] for dtype in kernel.dtypes]
    name = "_".join(["deep5", *map(str, codes[: kernel.inputs]), "to", *map(str, codes[kernel.inputs :])])
    given = (ctypes.c_int32 * len(codes))(*codes)
    if _shim().deep5_signature(name.encode(), kernel.inputs, len(codes) - kernel.inputs, given):
        raise Deep5Error(f"{kernel.name}: no memory for a custom operator of onnxruntime")
    return name, {"kernel": kernel.pointer}


def _shim() -> Any:
    with _LOADING:  # one library holds all signatures
        return _loaded()


@cache
def _loaded() -> Any:
    source = Path(__file__).with_name("shim.c").read_text(encoding="utf-8")
    library = load_library(source, what="the shim for onnxruntime", include=(INCLUDE,))
    library.deep5_signature.argtypes = (ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    return library
