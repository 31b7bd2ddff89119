"""Energy: counters read from files and libraries that the test makes, and "not available here" where there are none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import deep5 as d5
from deep5.core.errors import Unsupported, UsageError
from deep5.metrics import energy_counters
from deep5.metrics.energy_counters import NVML, RAPL, Zeus, counters


class Zone:
    """A RAPL zone, as Linux presents it."""

    def __init__(self, folder: Path, name: str, energy_uj: int, range_uj: int = 1_000_000) -> None:
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
        self.file = folder / "energy_uj"
        self.set(energy_uj)

    def set(self, energy_uj: int) -> None:
        self.file.write_text(f"{energy_uj}\n")


@pytest.fixture
def zones(tmp_path: Path) -> dict[str, Zone]:
    """Two packages, the memory of one, and zones that must not count: cores (part of a package) and the platform."""
    return {
        "package": Zone(tmp_path / "intel-rapl:0", "package-0", 500_000),
        "core": Zone(tmp_path / "intel-rapl:0:0", "core", 100),
        "dram": Zone(tmp_path / "intel-rapl:0:1", "dram", 0),
        "other": Zone(tmp_path / "intel-rapl:1", "package-1", 0),
        "psys": Zone(tmp_path / "intel-rapl:2", "psys", 0),
    }


def test_packages_and_memory_count_once(zones: dict[str, Zone], tmp_path: Path) -> None:
    counter = RAPL(tmp_path)
    assert counter.joules() == 0.0
    for name, energy_uj in {
        "package": 700_000,
        "core": 150_000,
        "dram": 30_000,
        "other": 4_000,
        "psys": 999_000,
    }.items():
        zones[name].set(energy_uj)
    assert counter.joules() == pytest.approx(0.2 + 0.03 + 0.004)


def test_a_counter_that_overflows_goes_on(zones: dict[str, Zone], tmp_path: Path) -> None:
    counter = RAPL(tmp_path)
    zones["package"].set(900_000)
    assert counter.joules() == pytest.approx(0.4)
    zones["package"].set(100_000)  # 100 000 to its end, and as many after it
    assert counter.joules() == pytest.approx(0.6)
    assert counter.joules() == pytest.approx(0.6)


def test_a_machine_without_counters(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="not available here: the machine has no energy counters in"):
        RAPL(tmp_path)


def test_a_counter_that_may_not_be_read(zones: dict[str, Zone], tmp_path: Path) -> None:
    zones["package"].file.unlink()
    zones["package"].file.mkdir()  # unreadable even for root
    with pytest.raises(Unsupported, match=r"the counter of energy cannot be read .*remedy: let the administrator give"):
        RAPL(tmp_path)


# NVIDIA's library, a small one in its place

_NVML = """
#include <string.h>
static unsigned long long energy = 5000;
static char chosen[64];
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(long)(index + 1); return index > 3;
}
int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
    strncpy(chosen, name, 63); *device = (void *)99L; return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy_mj) {
    if ((long)device == 2) return 3;
    energy += 1000 * (long)device; *energy_mj = energy; return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(_NVML)
    built = folder / "libnvml.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, folder / "nvml.c"], check=True, timeout=60)
    return str(built)


def test_a_graphics_processor(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert NVML(0, library).joules() == 1.0  # a thousand millijoules a call
    assert NVML(3, library).joules() == 4.0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    assert NVML(0, library).joules() == 4.0
    assert NVML(1, library).joules() == 99.0


def test_a_graphics_processor_that_does_not_count(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(Unsupported, match="refused nvmlDeviceGetTotalEnergyConsumption with the status 3"):
        NVML(1, library)
    with pytest.raises(Unsupported, match="refused nvmlDeviceGetHandleByIndex_v2 with the status 1"):
        NVML(4, library)
    with pytest.raises(Unsupported, match=r"NVIDIA's driver library libnothing\.so\.1 is not there"):
        NVML(0, "libnothing.so.1")


# Zeus, a monitor in its place


class Monitor:
    """The part of `zeus.monitor.ZeusMonitor` 0.16 in use; a window takes 2 J on a GPU, 3 J and 1 J on the host."""

    def __init__(self, gpu_indices: Any = None, cpu_indices: Any = None) -> None:
        self.gpu_indices, self.cpu_indices = gpu_indices, [0] if cpu_indices is None else cpu_indices
        self.open: set[str] = set()

    def begin_window(self, key: str, sync_execution: bool = True) -> None:
        assert key not in self.open
        assert not sync_execution
        self.open.add(key)

    def end_window(self, key: str, sync_execution: bool = True) -> Any:
        self.open.remove(key)
        gpu = dict.fromkeys(self.gpu_indices, 2.0)
        return SimpleNamespace(gpu_energy=gpu, cpu_energy={0: 3.0} if self.cpu_indices else None, dram_energy={0: 1.0})


def test_zeus_adds_up_its_windows() -> None:
    counter = Zeus(Monitor([], None), None, cpu=True)
    assert (counter.joules(), counter.joules()) == (4.0, 8.0)
    both = Zeus(Monitor([1], None), 1, cpu=True)
    assert both.joules() == 6.0
    gpu = Zeus(Monitor([1], []), 1, cpu=False)
    assert (gpu.joules(), gpu.joules()) == (2.0, 4.0)


def test_zeus_is_asked_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "zeus", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "zeus.monitor", SimpleNamespace(ZeusMonitor=Monitor))
    (counter,) = counters(d5.CPUDevice(), host=False)
    assert (counter.source, counter.joules()) == ("Zeus", 4.0)
    (counter,) = counters(d5.GPUDevice(1), host=False)
    assert counter.joules() == 2.0
    (counter,) = counters(d5.GPUDevice(1), host=True)
    assert counter.joules() == 6.0

    class Blind(Monitor):
        """Installed, but without permission on this machine."""

        def __init__(self, **given: Any) -> None:
            super().__init__([], [])

    monkeypatch.setitem(sys.modules, "zeus.monitor", SimpleNamespace(ZeusMonitor=Blind))
    monkeypatch.setattr(energy_counters, "_POWERCAP", tmp_path)
    monkeypatch.setattr(RAPL.__init__, "__defaults__", (tmp_path,))
    with pytest.raises(Unsupported, match="not available here"):
        counters(d5.CPUDevice(), host=False)


# The metric


class Steady:
    """A counter that has taken 2 J more at each reading."""

    source = "test"

    def __init__(self) -> None:
        self.total = 0.0

    def joules(self) -> float:
        self.total += 2.0
        return self.total


def trainer(**given: Any) -> d5.Trainer:
    data = d5.datasets.synthetic(shape=(4,), classes=2, train=6, test=2)
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    return d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(data.train, 3), d5.OrderedSampler(data.test, 2), **given)


def test_energy_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.metrics.energy.counters", lambda device, host: [Steady()])
    observer = d5.Energy().observer()
    trainer().train(3, [observer])
    values = [sample.value for sample in observer.samples()]
    # Read at the first step, and then at the end of every epoch: no interval of some seconds has passed.
    assert values == [4.0, 6.0, 8.0]
    assert (observer.value(), observer.missing()) == (8.0, None)


class Power:
    """A counter of 10 W."""

    source = "test"

    def __init__(self) -> None:
        self.begin = time.perf_counter()

    def joules(self) -> float:
        return 10.0 * (time.perf_counter() - self.begin)


@pytest.mark.parametrize("late", [False, True])
def test_energy_of_a_run_that_was_stopped_within_its_first_epoch(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of other events after training, even if they run first, does not count for the run."""

    class Stop(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            time.sleep(0.1)
            raise d5.StopTraining("enough")

    class Slow(d5.Event):
        def after_training(self, trainer: Any) -> None:
            time.sleep(0.5)

    monkeypatch.setattr("deep5.metrics.energy.counters", lambda device, host: [Power()])
    observer, run = d5.Energy().observer(), trainer()
    run.train(3, [Slow(), observer, Stop()] if late else [observer, Slow(), Stop()])
    assert run.status == "stopped"
    assert observer.missing() is None
    assert [(sample.step, sample.epoch) for sample in observer.samples()] == [(1, 0)]
    taken, seconds = observer.value() or 0.0, run.elapsed_ns() / 1e9
    # The step after which it stops takes 100 ms, and the counter starts before it.
    assert taken >= 1.0
    assert taken <= 10 * (seconds + 0.2)


def test_energy_of_a_run_that_was_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.metrics.energy.counters", lambda device, host: [Steady()])
    first = d5.Energy().observer()
    trainer().train(1, [first])
    state = json.loads(json.dumps({**first.state_dict(), "_samples": []}))
    second = d5.Energy().observer()
    second.before_training(trainer())
    second.load_state_dict(state)
    second.after_epoch(trainer(), 1)
    assert state["_before"] == 6.0
    assert second.value() == 6.0 + 2.0


def test_energy_that_cannot_be_measured_is_no_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(RAPL.__init__, "__defaults__", (tmp_path,))
    monkeypatch.setitem(sys.modules, "zeus", None)
    observer = d5.Energy().observer()
    trainer().train(1, [observer])
    assert observer.value() is None
    assert observer.samples() == []
    assert (observer.missing() or "").startswith("not available here: ")


def test_a_counter_that_fails_on_the_way_leaves_no_part_of_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Steady):
        def joules(self) -> float:
            if self.total > 3:
                raise Unsupported("not available here: gone")
            return super().joules()

    monkeypatch.setattr("deep5.metrics.energy.counters", lambda device, host: [Failing()])
    observer = d5.Energy().observer()
    trainer().train(3, [observer])
    assert (observer.value(), observer.missing()) == (None, "not available here: gone")


def test_what_is_measured_where(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.setattr(energy_counters, "NVML", lambda index: asked.append(index) or Steady())
    monkeypatch.setattr(energy_counters, "RAPL", lambda: asked.append("host") or Steady())
    for device, host, parts in (
        (d5.CPUDevice(), False, ["host"]),
        (d5.CPUDevice(), True, ["host"]),
        (d5.GPUDevice(2), False, [2]),
        (d5.GPUDevice(2), True, [2, "host"]),
    ):
        asked.clear()
        counters(device, host=host)
        assert asked == parts
    with pytest.raises(UsageError, match="energy of 'gpu'; allowed: 'device', 'all'"):
        d5.Energy("gpu")


@pytest.mark.gpu
def test_a_real_graphics_processor_counts() -> None:
    import torch

    counter = NVML(0)
    matrix = torch.ones(4096, 4096, device="cuda")
    for _ in range(400):
        matrix = matrix @ matrix * 1e-4
    torch.cuda.synchronize()
    # 55 TFLOP take a second or so at hundreds of watts; the counter updates every 100 ms or so.
    assert 1.0 < counter.joules() < 1e5
