"""The JAX back-end beyond the interface that all executors share: compilation, donation, types, threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.networks import lenet, mlp, resnet
from executor_cases import batch_of, reference
from poison import poisoned

jax = pytest.importorskip("jax")
jnp = jax.numpy


executor_of: Any = d5.framework("jax").executor


def test_weights_of_layers_are_stored_as_xla_reads_them() -> None:
    executor = executor_of(lenet())
    assert set(executor.program.stored) == {"conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight", "fc3.weight"}
    # The compiled program transposes only the incoming images.
    feed, _ = executor._feed(batch_of(executor.network))
    text = jax.jit(executor._evaluation).lower(executor._values, executor._buffers, feed).compile().as_text()
    assert "transpose(" not in text


@pytest.mark.parametrize("shape", [(1, 400, 304, 16), (31, 337, 5), (10007, 3), (1_048_583, 2), (7,), (0, 4, 3)])
def test_sums_of_many_rows_are_those_of_float64(shape: tuple[int, ...]) -> None:
    """Statistics of batches: one row added after the other had an error of 7e-6 of 121,600 rows."""
    from deep5.frameworks.jax.kernels.layers import channel_sums

    rows = (np.random.default_rng(3).standard_normal(shape) + 1).astype(np.float32)
    axes = tuple(range(rows.ndim - 1))
    found = np.asarray(jax.jit(channel_sums)(rows))
    error = np.abs(found - rows.sum(axes, dtype=np.float64))
    # The roundings of up to 1024 sums, which partly cancel: eight times what was observed.
    assert (error <= 1e-6 * np.abs(rows).sum(axes, dtype=np.float64)).all()


def test_no_trace_and_no_compilation_in_a_steady_state() -> None:
    network = mlp(features=5, hidden=4, classes=3, dropout=0.2)
    executor, rule = executor_of(network), d5.Adam(lr=0.1)
    step = executor.train_step(rule)
    feeds = {size: batch_of(network, size) for size in (8, 5)}
    compiled: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        before = step(feeds[8], d5.StepInfo(step=0, batch_size=8))["loss"].item()
        assert (step.traces, bool(compiled)) == (1, True)
        compiled.clear()
        rule.lr = 0.0
        held = step(feeds[8], d5.StepInfo(step=1, batch_size=8)) and executor.state_dict()
        rule.lr = 0.3
        for index in range(2, 5):
            step(feeds[8], d5.StepInfo(step=index, batch_size=8))
        assert (step.traces, compiled) == (1, [])
        assert not np.array_equal(held["fc1.weight"], executor.state_dict()["fc1.weight"])
        step(feeds[5], d5.StepInfo(step=5, batch_size=5))
        assert step.traces == 2
        compiled.clear()
        for index in range(6, 10):
            size = (8, 5)[index % 2]
            after = step(feeds[size], d5.StepInfo(step=index, batch_size=size))["loss"].item()
        assert (step.traces, compiled) == (2, [])
        assert after < before
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_old_arrays_are_donated_and_copies_stay() -> None:
    network = lenet(classes=3)
    executor = executor_of(network)
    step = executor.train_step(d5.SGD(lr=0.1))
    step(batch_of(network), d5.StepInfo(batch_size=4))
    live, copies = executor.parameters(), executor.state_dict()
    kept = {name: value.copy() for name, value in copies.items()}
    step(batch_of(network), d5.StepInfo(batch_size=4))
    executor.synchronize()
    assert live["conv1.bias"].is_deleted()
    for name, value in copies.items():
        np.testing.assert_array_equal(value, kept[name])


@pytest.mark.parametrize("make", [lambda: lenet(classes=3), lambda: resnet(depth=8), lambda: mlp(dropout=0.5)])
def test_float32_stays_float32_and_the_configuration_as_it_was(make: Any) -> None:
    network = make()
    before = jax.config.jax_enable_x64
    executor = executor_of(network)
    step = executor.train_step(d5.AcceleGrad(lr=0.01))
    feed, info = batch_of(network), d5.StepInfo(batch_size=4)
    native, extents = executor._feed(feed)
    with jax.enable_x64(True):
        native += executor.program.draw(extents, info)
        given = step._rule.given(info)
        traced = step._whole.trace(executor._values, executor._buffers, step._states, native, given)
    # Scalars of the rule, and the vector that passes them, are double; arrays of the network never are.
    assert given.shape == (6,)
    assert set(re.findall(r"f64\[([\d,]*)\]", str(traced.jaxpr))) == {"", "1", "6"}
    outputs = {**step(feed, info), **executor.inference(feed), **executor.parameters(), **executor.buffers()}
    assert {str(value.dtype) for value in outputs.values()} == {"float32"}
    executor.inference_and_backprop(feed, info=info)
    assert {str(value.dtype) for value in executor.gradients().values()} == {"float32"}
    assert jax.config.jax_enable_x64 == before
    assert jnp.zeros(2).dtype == jnp.float32


def test_nothing_is_faked() -> None:
    network = resnet(depth=8)
    executor = executor_of(network)
    step = executor.train_step(d5.Adam(lr=0.01))
    feed, info = batch_of(network), d5.StepInfo(batch_size=4)
    with poisoned("jax"), jax.transfer_guard_device_to_host("disallow"):
        outputs = step(feed, info)
        executor.inference_and_backprop(feed, info=info)
        executor.inference(feed)
        executor.synchronize()
        native, _ = executor._feed(feed)
        with jax.enable_x64(True):
            given = (executor._values, executor._buffers, step._states, native, step._rule.given(info))
            text = str(step._whole.trace(*given).jaxpr)
    assert "conv_general_dilated" in text
    assert "callback" not in text
    want = reference(network).train_step(d5.Adam(lr=0.01))(feed, info)
    np.testing.assert_allclose(outputs["loss"], want["loss"], rtol=1e-5)  # one float32 forward pass


def test_settings_are_read_back() -> None:
    settings = executor_of(mlp(features=3, hidden=2, classes=2)).settings()
    assert settings["framework"] == "jax"
    assert settings["version"] == jax.__version__ == d5.framework("jax").version()
    assert (settings["device"], settings["dtype"], settings["tf32"], settings["deterministic"]) == (
        *("cpu", "float32"),
        *(False, True),
    )
    assert settings["x64"] is False
    assert settings["matmul_precision"] == "default"
    with jax.default_matmul_precision("highest"):
        assert executor_of(mlp()).settings()["matmul_precision"] == "highest"


THREADS = """
import sys, os
from pathlib import Path
import numpy as np
import deep5 as d5
from deep5.core.errors import Deep5Error
before = dict(os.environ)
framework = d5.framework("jax")
framework.set_threads(int(sys.argv[1]))
assert dict(os.environ) == before
framework.set_threads(int(sys.argv[1]))
executor = framework.executor(d5.networks.mlp(features=784, hidden=800))
step = executor.train_step(d5.SGD(lr=0.01))
feed = {"input": np.ones((256, 784), np.float32), "label": np.zeros(256, np.int64)}
def work():
    for index in range(20):
        step(feed, d5.StepInfo(batch_size=256))
    executor.synchronize()
def ran():
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in tasks}
work()
before_s = ran()
work()
each = [time - before_s.get(task, 0) for task, time in ran().items()]
print(executor.settings()["threads"], sum(time > 0.2 * sum(each) for time in each))
try:
    framework.set_threads(3 - int(sys.argv[1]))
except Deep5Error as error:
    print(error)
"""


def run_threads(threads: int) -> tuple[int, int, str]:
    """The threads in the settings, the number of threads with a fifth of the work or more, and what was refused."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(threads)], capture_output=True, text=True, timeout=120, check=True
    )
    first, _, rest = done.stdout.partition("\n")
    count, workers = first.split()
    return int(count), int(workers), rest


def test_threads_are_set_before_jax_starts_and_never_after() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor: any number of threads counts as one")
    for threads in (1, 2):
        count, _, message = run_threads(threads)
        assert count == threads
        assert f"JAX has started with {threads}" in message
        assert "remedy: set the threads before anything uses JAX" in message


def test_one_thread_is_one_thread() -> None:
    assert run_threads(1)[1] == 1


def test_the_opponent_computes_the_same_lenet() -> None:
    from deep5.recipes.overhead.jax_by_hand import _NETWORKS

    network = lenet()
    parameters = {}
    for name in ("conv1", "conv2"):
        kernel = network.initial(f"{name}.weight").transpose(2, 3, 1, 0)
        parameters[name] = {"kernel": kernel, "bias": network.initial(f"{name}.bias")}
    for name in ("fc1", "fc2", "fc3"):
        kernel = network.initial(f"{name}.weight").T
        parameters[name] = {"kernel": kernel, "bias": network.initial(f"{name}.bias")}
    first = parameters["fc1"]
    first["kernel"] = first["kernel"].reshape(16, 5, 5, 120).transpose(1, 2, 0, 3).reshape(400, 120)
    feed = batch_of(network)
    logits, _ = _NETWORKS["lenet"]().apply(parameters, {}, feed["input"], True)
    np.testing.assert_allclose(logits, executor_of(network).inference(feed)["logits"], rtol=1e-4, atol=1e-5)
    for made in (network, d5.networks.resnet18_small()):
        own, _ = _NETWORKS["lenet" if made is network else "resnet18_small"]().init(0)
        count = sum(leaf.size for leaf in jax.tree.leaves(own))
        assert count == sum(spec.size for spec in made.parameter_specs.values())
