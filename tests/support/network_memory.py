"""Memory for loading, editing and saving a network; run in a separate process, prints megabytes as JSON."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import deep5 as d5


def _megabytes(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def _edited(network: d5.Network) -> d5.Network:
    return network.rename("w0", "first").add_node("Tanh", ["y"], ["z"]).freeze("w*").with_outputs(["z"])


def _build(path: Path, layers: int, width: int) -> None:
    build = d5.NetworkBuilder("wide", seed=0)
    y = build.input("x", ("N", width))
    for layer in range(layers):
        y = build.op("Relu", build.op("Gemm", y, build.parameter(f"w{layer}", (width, width)), transB=1))
    build.network({"y": y}).save(path)


def main(folder: Path) -> None:
    if sys.argv[2] == "build":
        _build(folder / "large.onnx", 8, 4096)
        _build(folder / "small.onnx", 8, 4)
        return
    # One-time imports and allocations do not belong to the network.
    _edited(d5.Network.from_onnx(folder / "small.onnx")).save(folder / "small2.onnx")
    gc.collect()
    before = _megabytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    network = d5.Network.from_onnx(folder / "large.onnx")
    gc.collect()
    loaded = _megabytes("VmRSS") - before
    _edited(network).save(folder / "large2.onnx")
    size = (folder / "large.onnx").stat().st_size / 2**20
    sys.stdout.write(json.dumps({"size": size, "loaded": loaded, "peak": _megabytes("VmHWM") - before}))


main(Path(sys.argv[1]))
