"""Every back-end that runs on a GPU computes and trains there as on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import Unsupported
from deep5.networks import NetworkBuilder
from processors import installed, listed

pytestmark = pytest.mark.gpu

FRAMEWORKS = ["pytorch", "pytorch:compiled", "tensorflow", "tensorflow:xla", "jax", "onnxruntime"]
# TF32 and other reduced-precision products are the frameworks' default there: ten bits of mantissa, and some layers.
SHORT = 2e-2
# Batch normalization amplifies it: by eight layers to 4 % of the first one's gradient (JAX, H100).
AMPLIFIED = 0.1


def pair(name: str, network: d5.Network) -> tuple[Any, Any]:
    """Executors of the network on the host and on the first GPU."""
    framework = processor(name)
    return framework.executor(network), framework.executor(network, device="cuda:0")


def processor(name: str) -> Any:
    """The framework; the test is skipped only where the framework is missing or itself lists no GPU."""
    plain = name.partition(":")[0]
    if not installed(plain):
        pytest.skip(f"{plain} is not installed")
    framework = d5.framework(name)  # the first import: it keeps TensorFlow's reports off the screen
    if not listed(plain):
        pytest.skip(f"{plain} lists no graphics processor: this build of it is not for them")
    return framework


def batch(step: int, size: int = 4, image: int = 32) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    images = draw.standard_normal((size, 3, image, image)).astype("float32")
    return {"input": images, "label": draw.integers(0, 10, size)}


def close(here: Any, there: Any, bound: float = SHORT) -> None:
    assert here.keys() == there.keys()
    for name, value in here.items():
        mine, other = d5.to_numpy(value), d5.to_numpy(there[name])
        assert np.linalg.norm(mine - other) <= bound * np.linalg.norm(mine) + 1e-6, name


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_gradients_and_state(name: str) -> None:
    network = d5.networks.resnet(depth=8)
    here, there = pair(name, network)
    for run in (here, there):
        run.inference_and_backprop(batch(0))
    there.synchronize()
    assert there.settings()["device"] == "cuda:0"
    close(here.gradients(), there.gradients(), AMPLIFIED)
    close(here.inference(batch(1)), there.inference(batch(1)))
    packed = np.empty(10, np.float32)
    there.read(["fc.bias"], packed)
    there.write(["fc.bias"], packed + 1)
    state = there.state_dict()
    np.testing.assert_array_equal(state["fc.bias"], packed + 1)
    here.load_state_dict(state)
    for key, value in here.state_dict().items():
        np.testing.assert_array_equal(value, state[key])


@pytest.mark.parametrize("rule", ["accelegrad", "adam", "lars", "momentum"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_training(name: str, rule: str) -> None:
    runs = pair(name, d5.networks.lenet())
    steps = [run.train_step(d5.core.plugins.load("optimizers", rule)(lr=0.005)) for run in runs]
    for number in range(6):
        draw = np.random.default_rng(number)
        given = {
            "input": draw.standard_normal((8, 1, 28, 28)).astype("float32"),
            "label": draw.integers(0, 10, 8),
        }
        info = d5.StepInfo(step=number, batch_size=8)
        losses = [float(d5.to_numpy(step(given, info)["loss"])) for step in steps]
        assert losses[1] == pytest.approx(losses[0], rel=SHORT)
    for run in runs:
        run.synchronize()
    close(runs[0].state_dict(), runs[1].state_dict())


FLOAT32 = """
import sys
import numpy as np
import deep5 as d5

framework = d5.framework(sys.argv[1])
framework.set_numerics(deterministic=True, tf32=False)
network = d5.networks.resnet(depth=8)
here, there = framework.executor(network), framework.executor(network, device="cuda:0")
draw = np.random.default_rng(0)
images = draw.standard_normal((4, 3, 32, 32)).astype("float32")
for run in (here, there):
    run.inference_and_backprop({"input": images, "label": np.arange(4)})
worst = 0.0
for name, value in here.gradients().items():
    mine, other = d5.to_numpy(value), d5.to_numpy(there.gradients()[name])
    worst = max(worst, float(np.linalg.norm(mine - other) / np.linalg.norm(mine)))
print(worst)
"""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_without_tf32_gradients_are_those_of_float32(name: str) -> None:
    """In its own process: numerics on accelerators must be requested before JAX starts."""
    processor(name)
    done = subprocess.run(
        [sys.executable, "-c", FLOAT32, name], capture_output=True, text=True, timeout=300, check=False
    )
    # Sums in another order, through eight normalized layers: some 1e-5. TF32 gives some 1e-2.
    assert float(done.stdout) < 1e-3, done.stderr[-2000:]


TWICE = """
import sys
import numpy as np
import deep5 as d5

framework = d5.framework(sys.argv[1])
framework.set_numerics(deterministic=True, tf32=False)
found = []
for _ in range(2):
    there = framework.executor(d5.networks.mlp(features=12, hidden=9, classes=4), device="cuda:0")
    step = there.train_step(d5.Adam())
    for number in range(3):
        draw = np.random.default_rng(number)
        given = {"input": draw.standard_normal((8, 12)).astype("float32"), "label": draw.integers(0, 4, 8)}
        step(given, d5.StepInfo(step=number, batch_size=8))
    settings = there.settings()
    assert (settings["deterministic"], settings["tf32"], settings["device"]) == (True, False, "cuda:0"), settings
    found.append(there.state_dict())
for key, value in found[0].items():
    np.testing.assert_array_equal(value, found[1][key])
print("the same")
"""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_repeats_bit_for_bit(name: str) -> None:
    """In its own process: numerics on accelerators must be requested before JAX starts."""
    processor(name)
    done = subprocess.run([sys.executable, "-c", TWICE, name], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "the same\n", done.stderr[-2000:]


@pytest.mark.parametrize("name", ["pytorch", "tensorflow"])
def test_native_optimizers(name: str) -> None:
    _, there = pair(name, d5.networks.mlp(features=12, hidden=9, classes=4))
    optimizer = d5.framework(name).optimizer("adam")(lr=0.01)
    optimizer.bind(there)
    draw = np.random.default_rng(0)
    given = {"input": draw.standard_normal((8, 12)).astype("float32"), "label": draw.integers(0, 4, 8)}
    losses = [float(d5.to_numpy(optimizer.step(given, d5.StepInfo(step=k))["loss"])) for k in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow", "onnxruntime"])
def test_a_recipe_runs_there(framework: str, tmp_path: Path) -> None:
    """In its own process, as above."""
    processor(framework)
    arguments = ["run", "digits_lenet", "--size", "smoke", "--framework", framework, "--device", "cuda:0", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "deep5", *arguments, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # At its smoke size a recipe has no goals, so nothing is rejected.
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.rglob("result.json")
    found = json.loads(file.read_text())
    assert found["status"] == "success"
    assert found["framework"]["device"] == "cuda:0"
    assert (found["numerics"]["deterministic"], found["numerics"]["tf32"]) == (True, False)
    assert json.loads(done.stdout)["status"] == "success"


def chain(width: int, products: int) -> d5.Network:
    """Much work on little data: one number per sample in, many products, one number out."""
    build = NetworkBuilder("chain")
    x = build.input("x", ("N", 1))
    value = build.op("MatMul", x, build.parameter("first", (1, width)))
    weight = build.parameter("weight", (width, width))
    for _ in range(products):
        value = build.op("Tanh", build.op("MatMul", value, weight))
    axes = build.constant("axes", np.array([0, 1]))
    return build.network({"y": build.op("ReduceMean", value, axes, keepdims=0)})


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_synchronize_waits_for_what_the_device_still_does(name: str) -> None:
    there = processor(name).executor(chain(2048, 16), device="cuda:0")
    given = {"x": np.ones((4096, 1), np.float32)}
    there.inference(given)  # compiles
    there.synchronize()
    start = perf_counter()
    for _ in range(20):  # 11 * 10**12 floating-point operations: a tenth of a second on a fast GPU
        outputs = there.inference(given)
    without = perf_counter() - start
    there.synchronize()
    whole = perf_counter() - start
    # The calls only enqueue the work: a clock that is read without waiting sees a part of it.
    assert whole > 2 * without, (without, whole)
    # Nothing is left to wait for: the last result, which depends on all of the work, is there.
    if name.startswith("pytorch"):
        import torch

        assert torch.cuda.current_stream().query()
    if name == "jax":
        assert outputs["y"].is_ready()
    assert np.isfinite(d5.to_numpy(outputs["y"])).all()


def test_tensorflow_runs_nothing_on_the_host_unsaid() -> None:
    framework = processor("tensorflow")
    import tensorflow as tf

    build = NetworkBuilder("whole")
    x = build.input("x", ("N", 3), "int64")
    network = build.network({"y": build.op("MatMul", x, build.constant("w", np.arange(6).reshape(3, 2)))})
    there = framework.executor(network, device="cuda:0")
    assert not tf.config.get_soft_device_placement()
    given = {"x": np.ones((2, 3), np.int64)}
    with pytest.raises(Unsupported, match=r"no kernel for /GPU:0 of MatMul of int64; allowed: .*; remedy: run"):
        there.inference(given)
    np.testing.assert_array_equal(framework.executor(network).inference(given)["y"], [[6, 9], [6, 9]])
