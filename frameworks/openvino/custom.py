"""Compiled operators in OpenVINO: nodes of an extension operator that call the operators' kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir

from deep5.core.compiler import CPP, load_library
from deep5.core.errors import Deep5Error, Unsupported
from deep5.core.framework import Support
from deep5.frameworks.openvino.library import openvino
from deep5.networks import compiled
from deep5.networks.network import Network
from deep5.operators.kernel import Kernel
from deep5.operators.plan import INCLUDE

__all__ = ["extension", "failure", "supports_custom", "with_kernels"]

_TAKEN = {"float32", "int8", "uint8", "int32", "int64", "bool"}


def supports_custom(node: ir.Node) -> Support:
    """Whether OpenVINO runs a node of a registered operator or of its backward pass, without compiling."""
    reason = compiled.refusal(node, "OpenVINO")
    if reason is not None:
        return Support(False, reason)
    for value in (*node.inputs, *node.outputs):
        if value is None or value.dtype is None:
            continue
        if str(value.dtype.numpy()) not in _TAKEN:
            allowed = ", ".join(sorted(_TAKEN))
            return Support(False, f"OpenVINO computes {value.dtype.name} in another element type; allowed: {allowed}")
    if any(value.shape is None for value in node.outputs):
        return Support(False, f"an output of {node.op_type} has an unknown rank; allowed: a known rank")
    return Support(True)


def with_kernels(network: Network, program: int) -> tuple[Network, dict[str, Kernel]]:
    """The network with nodes of compiled operators replaced by the extension's; see `compiled.with_kernels`.

    Args:
        network: The network; it is not changed.
        program: The number to pass to `failure`.
    """
    return compiled.with_kernels(network, lambda kernel, node: _described(kernel, node, program))


def failure(kernels: Mapping[str, Kernel], program: int) -> Deep5Error | None:
    """The error of the first operator that failed in the last call, returned once; None if none failed.

    Call this after every run: errors are hidden from OpenVINO, since a model must be recompiled after an exception.

    Args:
        kernels: The result of `with_kernels`.
        program: The number passed to `with_kernels`.
    """
    # Clear all failures: the rest would be reported for the next call.
    said = [(kernel, extension().deep5_take_failure(program, kernel.pointer)) for kernel in kernels.values()]
    first = next(((kernel, reported) for kernel, reported in said if reported is not None), None)
    return None if first is None else compiled.failure(first[0], first[1].decode(errors="replace"))


@cache
def extension() -> Any:
    """The extension, compiled against the headers in OpenVINO's package, and loaded.

    Raises:
        Unsupported: The package has no headers here.
    """
    home = Path(openvino.__file__).parent
    libraries = [
        next((path for path in (home / "libs").glob(f"{stem}.so*")), None)
        for stem in ("libopenvino", "libopenvino_onnx_frontend")
    ]
    if not (home / "include" / "openvino").is_dir() or None in libraries:
        raise Unsupported(
            f"the package openvino in {home} has no headers or libraries to compile against, so operators in C++ do "
            "not run; remedy: pip install openvino"
        )
    source = (Path(__file__).with_name("shim.cpp")).read_text(encoding="utf-8")
    linked = ("-Wl,--no-as-needed", *map(str, libraries), f"-Wl,-rpath,{home / 'libs'}")
    # It only calls kernels: optimizing it would cost more time than it saves.
    flags = [flag for flag in CPP.flags or () if flag not in ("-O3", "-march=native", "-fopenmp")]
    language = replace(CPP, flags=(*flags, "-O1", *linked))
    include = (home / "include", INCLUDE)
    library = load_library(source, language, what="the extension for openvino", include=include, as_file=True)
    library.deep5_take_failure.argtypes = (ctypes.c_int64, ctypes.c_int64)
    library.deep5_take_failure.restype = ctypes.c_char_p
    return library


def _described(kernel: Kernel, node: ir.Node, program: int) -> tuple[str, dict[str, Any]]:
    count = len(kernel.dtypes) - kernel.inputs
    shapes = [value.shape for value in node.outputs]
    if len(shapes) != count or any(shape is None for shape in shapes):
        raise Unsupported(
            f"{kernel.name}: node {node.name!r} has {len(shapes)} outputs; allowed, with openvino: all {count} of its "
            "operator, of a known number of axes"
        )
    ranks = [0 if shape is None else len(shape) for shape in shapes]
    return "Compiled", {"kernel": kernel.pointer, "program": program, "ranks": ranks}
