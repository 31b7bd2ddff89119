"""Energy counters: Zeus, Intel's and AMD's RAPL through Linux, and NVIDIA's NVML."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from deep5.core.errors import Unsupported
from deep5.core.tensors import Device

__all__ = ["NVML", "RAPL", "Counter", "Zeus", "counters"]

_POWERCAP = Path("/sys/class/powercap")
_NVML_LIBRARY = "libnvidia-ml.so.1"


class Counter(Protocol):
    """Counts energy from its creation."""

    source: str
    """The source, for the record."""

    def joules(self) -> float:
        """Energy since the counter was made. Read it at least every ten seconds: the hardware counters overflow."""
        ...


def counters(device: Device, *, host: bool) -> list[Counter]:
    """Start the requested counters.

    Args:
        device: The device of the run.
        host: Whether to count the host's CPUs if the device is another one.

    Raises:
        Unsupported: One of them cannot be measured on this machine; the message gives the reason and the remedy.
    """
    gpu = device.index if device.kind == "cuda" else None
    if device.kind not in ("cpu", "cuda"):
        raise Unsupported(f"the energy of a {device.kind} cannot be measured")
    zeus = _zeus(gpu, cpu=gpu is None or host)
    if zeus is not None:
        return [zeus]
    found: list[Counter] = []
    if gpu is not None:
        found.append(NVML(gpu))
    if gpu is None or host:
        found.append(RAPL())
    return found


class RAPL:
    """The CPU packages and their memory, including all programs on the machine.

    Args:
        folder: Linux's folder of power zones.

    Raises:
        Unsupported: The machine has no zones, or this user may not read them.

    References:
        Linux kernel, Power Capping Framework; Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3,
        section 15.10.
    """

    source = "RAPL"

    def __init__(self, folder: Path = _POWERCAP) -> None:
        # Packages include their cores; psys includes the packages; a dram zone is nested in its package by name only.
        zones = sorted(path for path in folder.glob("intel-rapl:*") if path.is_dir())
        named = [(path, _text(path / "name")) for path in zones]
        wanted = [path for path, name in named if name.startswith("package") or name == "dram"]
        if not any(name.startswith("package") for _, name in named):
            raise Unsupported(f"not available here: the machine has no energy counters in {folder}")
        self._files = [path / "energy_uj" for path in wanted]
        self._ranges = [float(_text(path / "max_energy_range_uj") or 0) for path in wanted]
        self._last = self._read()
        self._sum_uj = 0.0

    def joules(self) -> float:
        """Energy of all packages and their memory since the counter was made."""
        now = self._read()
        for new, old, span in zip(now, self._last, self._ranges, strict=True):
            if new < old and not span:
                raise Unsupported("not available here: a counter of energy overflowed, and does not say where")
            self._sum_uj += new - old if new >= old else new - old + span
        self._last = now
        return self._sum_uj / 1e6

    def _read(self) -> list[float]:
        try:
            return [float(file.read_text()) for file in self._files]
        except (OSError, ValueError) as error:
            raise Unsupported(
                f"not available here: the counter of energy cannot be read ({error}); remedy: let the administrator "
                f"give read permission on {self._files[0]}"
            ) from error


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


class NVML:
    """One NVIDIA GPU, as counted by its driver.

    Args:
        index: CUDA's index of the GPU, respecting `CUDA_VISIBLE_DEVICES`.
        library: The file name of NVIDIA's library.

    Raises:
        Unsupported: There is no driver or no such GPU, or it does not count energy.

    References:
        NVIDIA, NVML API Reference Guide, nvmlDeviceGetTotalEnergyConsumption.
    """

    source = "NVML"

    def __init__(self, index: int = 0, library: str = _NVML_LIBRARY) -> None:
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError as error:
            raise Unsupported(f"not available here: NVIDIA's driver library {library} is not there") from error
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
        names = [name.strip() for name in visible.split(",")] if visible else []
        name = names[index] if index < len(names) else str(index)
        if name.isdigit():
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(self._handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(name.encode()), ctypes.byref(self._handle))
        self._begin = self._read()

    def joules(self) -> float:
        """Energy of the GPU and its memory since the counter was made."""
        return (self._read() - self._begin) / 1e3

    def _read(self) -> int:
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(millijoules))
        return millijoules.value

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._nvml, name)(*arguments)
        if status:
            raise Unsupported(f"not available here: NVIDIA's driver refused {name} with the status {status}")


class Zeus:
    """Measurements by Zeus: NVIDIA's and AMD's GPUs, and CPUs through RAPL.

    Args:
        monitor: A `zeus.monitor.ZeusMonitor`.
        gpu: CUDA's index of the GPU to count, or None.
        cpu: Whether to count the host's CPUs.

    References:
        You, Chung and Chowdhury, Zeus: Understanding and optimizing GPU energy consumption of DNN training, NSDI'23.
    """

    source = "Zeus"
    _WINDOW = "deep5"

    def __init__(self, monitor: Any, gpu: int | None, *, cpu: bool) -> None:
        self._monitor, self._gpu, self._cpu, self._sum = monitor, gpu, cpu, 0.0
        monitor.begin_window(self._WINDOW, sync_execution=False)

    def joules(self) -> float:
        """Energy since the counter was made."""
        with warnings.catch_warnings():
            # A window shorter than the driver's interval adds nothing; the next one includes its energy.
            warnings.simplefilter("ignore")
            seen = self._monitor.end_window(self._WINDOW, sync_execution=False)
        self._monitor.begin_window(self._WINDOW, sync_execution=False)
        if self._gpu is not None:
            self._sum += seen.gpu_energy[self._gpu]
        if self._cpu:
            self._sum += sum((seen.cpu_energy or {}).values()) + sum((seen.dram_energy or {}).values())
        return self._sum


def _zeus(gpu: int | None, *, cpu: bool) -> Zeus | None:
    """Zeus, if it is installed and measures everything requested."""
    try:
        from zeus.monitor import ZeusMonitor
    except ModuleNotFoundError:
        return None
    make: Callable[..., Any] = ZeusMonitor
    try:
        monitor = make(gpu_indices=[] if gpu is None else [gpu], cpu_indices=None if cpu else [])
        if (cpu and not monitor.cpu_indices) or (gpu is not None and gpu not in monitor.gpu_indices):
            return None
        return Zeus(monitor, gpu, cpu=cpu)
    except Exception:  # on any error Zeus cannot measure this; the other counters report why
        return None
