"""Memory of a training: deep5 and hand-written code, each in separate processes, and the sum by shapes.

`python -m deep5.recipes.overhead.memory` prints the table. Measured is the growth of the peak resident memory from the
construction of the network through three steps of Adam. Before that, the framework is loaded and has trained another,
tiny network, so its libraries, threads and compilers are present. The sum contains weights, gradients, two states of
Adam per weight, the output of every node that is not a view (which a backward pass may keep), and the batches, which
both sides make beforehand. Scratch memory of a framework's kernels and compilers is not in the sum, but in both
measurements.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deep5 as d5
from deep5.core.tensors import numpy_dtype

__all__ = ["FRAMEWORKS", "Memory", "measure", "sum_of_parts"]

FRAMEWORKS = ("pytorch", "tensorflow", "jax")
_MIB = 1 << 20
_VIEWS = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity"))
_STEPS = 3
_PROCESSES = 3
_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one training, in MiB.

    Attributes:
        deep5: Measured with deep5.
        by_hand: Measured with hand-written code for the same network and batches.
        parts: The sum by shapes.
    """

    deep5: float
    by_hand: float
    parts: float


def measure(framework: str, network: str, batch_size: int, *, planted_mib: int = 0) -> Memory:
    """Train in three fresh processes a side, in turn, and take the least of each: fragmentation adds up to a tenth.

    Args:
        framework: One of `FRAMEWORKS`.
        network: Name in `deep5.networks` of a network with a hand-written counterpart.
        batch_size: Samples per batch.
        planted_mib: Additional memory of deep5's process, which a measurement must detect.
    """
    ours, theirs = [], []
    for _ in range(_PROCESSES):
        ours.append(_in_a_process("deep5", framework, network, batch_size, planted_mib))
        theirs.append(_in_a_process("by_hand", framework, network, batch_size, 0))
    parts = sum_of_parts(getattr(d5.networks, network)(), batch_size)
    return Memory(deep5=min(ours), by_hand=min(theirs), parts=parts)


def sum_of_parts(network: d5.Network, batch_size: int) -> float:
    """Weights, gradients, Adam's states, activations and the batches that the timing recipes prepare, in MiB."""
    from deep5.recipes.overhead.by_deep5 import BATCHES

    weights = sum(spec.size * numpy_dtype(spec.dtype).itemsize for spec in network.parameter_specs.values())
    samples = sum(_size(spec.shape, batch_size) * numpy_dtype(spec.dtype).itemsize for spec in network.inputs.values())
    activations = sum(
        4 * _size(value.shape, batch_size)
        for node in network.nodes
        if node.op_type not in _VIEWS
        for value in node.outputs[:1]
    )
    return float((4 * weights + activations + BATCHES * samples) / _MIB)


def _size(shape: Any, batch_size: int) -> int:
    return math.prod(extent if isinstance(extent, int) else batch_size for extent in shape)


def _in_a_process(side: str, framework: str, network: str, batch_size: int, planted_mib: int) -> float:
    words = [side, framework, network, str(batch_size), str(planted_mib)]
    done = subprocess.run(
        [sys.executable, "-m", "deep5.recipes.overhead.memory", "--process", *words],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise d5.Deep5Error(f"the process that trains {network} on {framework} {side} ended: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])) / _MIB


def _process(side: str, framework: str, network: str, batch_size: int, planted_mib: int) -> int:
    """Bytes that a training requires in this process."""
    from importlib import import_module

    from deep5.recipes.overhead import by_deep5

    hand = import_module(f"deep5.recipes.overhead.{framework}_by_hand")

    def work(name: str, size: int) -> Any:
        options: dict[str, Any] = {"steps": _STEPS, "seed": 0, "threads": 1, "batch_size": size}
        options["network"] = getattr(d5.networks, name)
        if side == "deep5":
            return by_deep5.training_step(framework=framework, **options)
        return hand.training_step(**options)

    work("lenet", 2)()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status("VmRSS")
    planted = bytearray(b"\1" * (planted_mib * _MIB))
    train = work(network, batch_size)
    train()
    peak = _status("VmHWM")
    del planted
    return peak - before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise d5.UsageError(f"/proc/self/status has no {name}; allowed: Linux")


def main() -> None:
    """Print the table, or the measurement of one process."""
    parser = argparse.ArgumentParser(description="Memory of a training by deep5 and of a hand-written one.")
    parser.add_argument("frameworks", nargs="*", default=list(FRAMEWORKS), metavar="FRAMEWORK")
    parser.add_argument("--network", default="resnet18_small")
    parser.add_argument("--batch-size", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--process", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        side, framework, network, size, planted = given.process
        print(json.dumps(_process(side, framework, network, int(size), int(planted))))
        return
    print("| framework | network, batch | deep5 | hand-written | sum of parts | deep5 / hand-written | deep5 / sum |")
    print("|---|---|---|---|---|---|---|")
    for framework in given.frameworks:
        for size in given.batch_size:
            found = measure(framework, given.network, size)
            print(
                f"| {framework} | {given.network}, {size} | {found.deep5:.0f} MiB | {found.by_hand:.0f} MiB | "
                f"{found.parts:.0f} MiB | {found.deep5 / found.by_hand:.2f} | {found.deep5 / found.parts:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
