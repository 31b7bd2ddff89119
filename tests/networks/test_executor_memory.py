"""How many copies of the weights a back-end holds: after building, after an inference, after a training step."""

from __future__ import annotations

import subprocess
import sys

import pytest

# At most this much is resident after building, an inference and a step of SGD, in units of the weights. A batch of one
# small image needs next to nothing; half a copy or more is left for workspace.
LIMITS = {
    # A step needs weights and gradients: two copies.
    "reference": (1.5, 1.5, 2.8),
    # Less than one additional copy: workspace of convolutions, and code.
    "pytorch": (1.5, 1.9, 3.0),
    "tensorflow": (1.5, 1.9, 3.0),
    "jax": (1.5, 1.9, 3.0),
    # An inference session keeps a rearranged copy of the constants: one copy more. It is freed when training begins,
    # whose session keeps memory for its largest intermediate results.
    "onnxruntime": (1.5, 2.5, 3.5),
    # Gradients are held twice, in its memory and in the executor's; what else it keeps between calls is internal.
    "openvino": (1.5, 2.5, 7.0),
}
# In units of the weights, each the growth of resident memory since before the executor was built.
MEASURE = """
import ctypes, gc, sys
import numpy as np, psutil
import deep5 as d5

framework, network = d5.framework(sys.argv[1]), d5.networks.resnet18_small()
framework.set_threads(1)  # each has memory of its own
# What loads with the first calls is no copy of the weights.
small, info = framework.executor(d5.networks.mlp(features=3, hidden=2, classes=2)), d5.StepInfo(batch_size=1)
batch = {"input": np.zeros((1, 3), np.float32), "label": np.zeros(1, np.int64)}
small.inference(batch)
small.train_step(d5.SGD(lr=0.0))(batch, info)
small.synchronize()
weights = 4 * sum(spec.size for spec in network.parameter_specs.values())
assert weights > 44e6
process, trim = psutil.Process(), ctypes.CDLL("libc.so.6").malloc_trim

def resident():
    gc.collect()
    trim(0)  # what the allocator keeps of what was freed is no copy
    return process.memory_info().rss

before, found = resident(), []
executor = framework.executor(network)
found.append(resident())
batch = {"input": np.zeros((1, 3, 32, 32), np.float32), "label": np.zeros(1, np.int64)}
if sys.argv[2] == "inference":
    executor.inference(batch)
    executor.synchronize()
found.append(resident())
step = executor.train_step(d5.SGD(lr=0.01))
step(batch, info)
executor.synchronize()
found.append(resident())
print(*((rss - before) / weights for rss in found))
"""


def measured(framework: str, first: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, framework, first], capture_output=True, text=True, timeout=300, check=True
    )
    return [float(word) for word in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("framework", LIMITS)
def test_weights_are_held_as_often_as_they_have_to_be(framework: str) -> None:
    if framework == "openvino":
        pytest.importorskip("openvino")
    found = measured(framework, "inference")
    assert all(copies >= 1 for copies in found), found  # otherwise the measurement is wrong
    assert found[2] >= 1.9, found  # weights and gradients, or values computed from them
    assert all(copies <= limit for copies, limit in zip(found, LIMITS[framework], strict=True)), found


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["onnxruntime", "openvino"])
def test_a_step_needs_no_more_after_an_inference_than_without_one(framework: str) -> None:
    """The copy that an inference session rearranges, a whole one in ONNX Runtime, is freed when training begins."""
    pytest.importorskip(framework)
    after, without = measured(framework, "inference"), measured(framework, "training")
    assert after[2] <= without[2] + 0.5, (after, without)
