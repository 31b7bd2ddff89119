"""Steps and inference of networks, and how fast executors are built and networks are read, lowered and analyzed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from registry import register

FRAMEWORKS = ("pytorch", "tensorflow", "jax", "onnxruntime", "reference")


def _batch(size: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "input": draw.standard_normal((size, 1, 28, 28)).astype(np.float32),
        "label": draw.integers(0, 10, size),
    }


def _step(framework: str, size: int) -> None:
    @register(f"{framework}.lenet_{size}_step", group=framework, unit="step", quick=framework != "reference")
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        executor, batch = d5.framework(framework).executor(d5.networks.lenet()), _batch(size)
        step, info = executor.train_step(d5.Adam()), d5.StepInfo(batch_size=size)

        def run() -> None:
            step(batch, info)
            executor.synchronize()

        return run


def _inference(framework: str, size: int) -> None:
    @register(f"{framework}.lenet_{size}_inference", group=framework, quick=framework != "reference")
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        executor, batch = d5.framework(framework).executor(d5.networks.lenet()), _batch(size)

        def run() -> None:
            executor.inference(batch)
            executor.synchronize()

        return run


def _built(framework: str) -> None:
    @register(f"{framework}.executor_of_resnet18", group=framework, unit="executor", once=True)
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        found = d5.framework(framework)
        found.executor(d5.networks.mlp(features=3, hidden=2, classes=2)).synchronize()
        network = d5.networks.resnet18_small()
        return lambda: found.executor(network)


def _thousand(folder: Path) -> Any:
    import deep5 as d5

    build = d5.NetworkBuilder("long")
    y = build.input("x", ("N", 16))
    for number in range(1000):
        y = build.op(("Gelu", "Relu", "Tanh", "Sigmoid")[number % 4], y)
    return build.network({"y": y}).to_onnx()


def _read(framework: str) -> None:
    @register(f"{framework}.thousand_nodes", group=framework, unit="network", once=True, quick=framework == "pytorch")
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        proto, found = _thousand(folder), d5.framework(framework)
        found.executor(d5.networks.mlp(features=3, hidden=2, classes=2)).synchronize()
        return lambda: found.executor(d5.Network.from_onnx(proto))


def _chain(folder: Path, count: int) -> Path:
    """A file of a chain: `count` pairs of MatMul and Tanh, and the mean."""
    import deep5 as d5

    build = d5.NetworkBuilder("chain")
    y = build.input("x", ("N", 8))
    for number in range(count):
        y = build.op("Tanh", build.op("MatMul", y, build.parameter(f"w{number}", (8, 8))))
    path = folder / f"chain{count}.onnx"
    build.network({"loss": build.op("ReduceMean", y, keepdims=0)}).save(path)
    return path


def _first_step(framework: str) -> None:
    @register(
        f"{framework}.chain_400_first_step",
        group=framework,
        unit="network",
        once=True,
        quick=framework in ("onnxruntime", "reference"),
    )
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        found, inputs = d5.framework(framework), {"x": np.ones((4, 8), np.float32)}

        def first(path: Path) -> None:
            executor = found.executor(d5.Network.from_onnx(path))
            executor.train_step(d5.SGD(lr=0.1))(inputs, d5.StepInfo(batch_size=4))
            executor.synchronize()

        first(_chain(folder, 1))
        path = _chain(folder, 200)
        return lambda: first(path)


for _framework in FRAMEWORKS:
    _first_step(_framework)
    for _size in (1, 64):
        _step(_framework, _size)
        _inference(_framework, _size)
    _built(_framework)
    _read(_framework)


@register("core.read_thousand_nodes", group="core", unit="network")
def _import(folder: Path) -> Callable[[], object]:
    import deep5 as d5

    proto = _thousand(folder)
    return lambda: d5.Network.from_onnx(proto)


@register("core.lower_resnet18", group="core", unit="network")
def _lowered(folder: Path) -> Callable[[], object]:
    import deep5 as d5
    from deep5.core.framework import Support
    from deep5.networks.transforms.lowering import lowered

    network = d5.networks.resnet18_small()

    def supports(node: Any) -> Support:
        return Support(node.op_type != "SoftmaxCrossEntropyLoss", "left out")

    return lambda: lowered(network, supports)


@register("core.analyse_resnet50", group="core", unit="network")
def _analysed(folder: Path) -> Callable[[], object]:
    import deep5 as d5
    from deep5.networks import analyse

    network = d5.networks.resnet50()
    return lambda: analyse(network, batch=32)


@register("core.layout_of_4000_boxes", group="core", unit="drawing", quick=False, once=True)
def _drawn(folder: Path) -> Callable[[], object]:
    from deep5.networks.analysis.layout import layered

    edges = [(i, j) for i in range(4000) for j in (i + 1, i + 8) if j < 4000]
    return lambda: layered([(80.0, 40.0)] * 4000, edges)
