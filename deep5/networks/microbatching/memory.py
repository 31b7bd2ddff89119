"""Workspace of layers that do not count it: the increase of resident memory in a fresh process."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.errors import RunFailed, Unsupported
from deep5.core.python_child import ask
from deep5.core.tensors import to_numpy
from deep5.networks.network import Network

__all__ = ["resident_workspaces", "serve"]

_TIMEOUT_S = 600.0
# glibc keeps freed blocks of up to 32 MiB. With the initial threshold fixed it returns them, so that the memory of a
# call is visible.
_RETURNING = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def resident_workspaces(
    network: Network, framework: str, threads: int | None, wrt: Sequence[str], sizes: Sequence[int]
) -> dict[int, int]:
    """Bytes that a call takes besides inputs, outputs, their gradients and its results, by batch size.

    Measured in a separate process as the peak of resident memory. The error is some hundred KiB, including
    code pages that a size is the first to need.

    Args:
        network: A network of ONNX operators, with inputs `x0`, `x1`, …, the minibatch as the only symbolic dimension,
            the output `y0` and the scalar output `loss`.
        framework: Name of the back-end.
        threads: Number of threads of the back-end; None: its default.
        wrt: Inputs to differentiate by.
        sizes: Minibatch sizes.

    Raises:
        Unsupported: The system does not report memory in /proc (it is not Linux).
        RunFailed: The process failed.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise Unsupported("the workspace of a framework's own operators is read from /proc; allowed: Linux")
    with tempfile.TemporaryDirectory() as folder:
        network.save(Path(folder) / "layer.onnx")
        request = {
            "network": str(Path(folder) / "layer.onnx"),
            "framework": framework,
            "threads": threads,
            "wrt": list(wrt),
            "sizes": sorted(sizes),
        }
        answer = ask(serve, request, time_limit_s=_TIMEOUT_S, environment={**os.environ, **_RETURNING})
    if answer.fault is not None:
        raise RunFailed(
            f"measuring the memory of a layer on {framework} failed: its process {answer.fault}; allowed: an answer "
            f"within {_TIMEOUT_S:g} s; remedy: smaller minibatches"
        )
    return {int(size): int(count) for size, count in answer.value.items()}


def serve(request: dict[str, Any]) -> dict[str, int]:
    """The work of the child process; returns bytes by size, with the size as a string."""
    from deep5.core import plugins

    framework = plugins.framework(request["framework"])
    if request["threads"] is not None:
        framework.set_threads(request["threads"])
    network = Network.from_onnx(request["network"])
    executor, largest = framework.executor(network), max(request["sizes"])
    feed = {
        name: np.ones([largest if isinstance(extent, str) else extent for extent in spec.shape], spec.dtype)
        for name, spec in network.inputs.items()
    }

    def call(size: int) -> int:
        part = {
            name: value[:size] if isinstance(network.inputs[name].shape[0], str) else value
            for name, value in feed.items()
        }
        outputs = executor.inference_and_backprop(part, "loss", wrt=request["wrt"])
        executor.synchronize()
        returned = [*outputs.values(), *executor.gradients().values()]
        # The gradient of the output, which the next layer would provide, is as large as the output.
        return sum(np.asarray(to_numpy(value)).nbytes for value in (*returned, outputs["y0"]))

    call(1)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    # Back-ends that cache memory still need their total: every size is compared with this value.
    before = _status_bytes("VmRSS")
    found = {}
    for size in request["sizes"]:
        Path("/proc/self/clear_refs").write_text("5")
        returned = call(size)
        found[str(size)] = max(_status_bytes("VmHWM") - before - returned, 0)
    return found


def _status_bytes(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) * 1024
    return 0
