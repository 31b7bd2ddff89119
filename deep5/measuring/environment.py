"""Where a number was measured: machine, software, settings from outside, commit. Plain dictionaries, ready for JSON."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from deep5.core.version import PACKAGE, __version__

__all__ = ["default_threads", "describe_software", "describe_system", "environment_hash", "info"]

PACKAGES = (
    "array-api-compat", "deep5", "jax", "jaxlib", "keras", "ml-dtypes", "mpi4py", "numpy", "onnx", "onnx-ir",
    "onnxruntime", "onnxruntime-gpu", "openvino", "safetensors", "scipy", "tensorflow", "torch", "torchvision",
    "triton",
)  # fmt: skip
"""Distributions whose versions are listed by name; all others enter the hash of the package list."""

_VARIABLE = re.compile(
    r"(OMP|KMP|GOMP|GOTO|MKL|OPENBLAS|BLIS|NUMEXPR|VECLIB|TF|XLA|JAX|CUDA|CUBLAS|CUDNN|NCCL|GLOO|TORCH|PYTORCH|ATEN|ORT|MALLOC|DEEP5)_.*"
    r"|NVIDIA_(TF32_OVERRIDE|VISIBLE_DEVICES)|LD_PRELOAD|PYTHON(HASHSEED|OPTIMIZE|MALLOC|PATH)"
)
# Set by libraries when they are loaded: runs of two frameworks would be of two environments. JAX and TensorFlow set how
# much is logged, scikit-learn, which Keras loads, what OpenMP does in forked processes; and what `start_ranks` sets is
# another for every run.
_BY_LIBRARIES = {"TF_CPP_MIN_LOG_LEVEL", "KMP_INIT_AT_FORK", "DEEP5_RANKS", "DEEP5_LAUNCH"}
# PyTorch has CUDA load its kernels when they are first used, and torchrun has NCCL's errors told, unless the user says
# otherwise.
_WHERE_UNSAID = {("CUDA_MODULE_LOADING", "LAZY"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}
# Result folders are given to others: what looks like a secret stays out, and so do Terraform's TF_VAR_* and TF_CLI_*.
_PRIVATE = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY|^TF_VAR_|^TF_CLI_", re.IGNORECASE)

_ACCELERATOR_FIELDS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "clock_mhz": "clocks.sm",
    "clock_max_mhz": "clocks.max.sm",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
}
_ACCELERATOR_NUMBERS = {"index", "memory_mib", "clock_mhz", "clock_max_mhz", "temperature_c", "power_w"}
_VOLATILE = {"clock_mhz", "temperature_c", "power_w", "index", "uuid"}


def describe_system() -> dict[str, Any]:
    """The machine as it is now; call it before and after a run.

    Returns:
        `host`; `cpu` (`model`, `vendor`, `architecture`, `physical_cores`, `logical_cores`, `clock_mhz`); `affinity`,
        the processors this process may use; `memory_bytes` (`total`, `available`); `load_average` over 1, 5 and 15
        minutes; `accelerators`, one dictionary each, and `accelerators_error`, why they could not be listed. What the
        machine does not tell is None. The first call takes a second or two: the processor's model is looked up once.
    """
    import psutil

    frequency = psutil.cpu_freq()
    memory = psutil.virtual_memory()
    accelerators, error = _accelerators()
    return {
        "host": socket.gethostname(),
        "cpu": {
            **_cpu(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(logical=True),
            "clock_mhz": None if frequency is None else float(frequency.current),
        },
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": {"total": int(memory.total), "available": int(memory.available)},
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "accelerators": accelerators,
        "accelerators_error": error,
    }


def describe_software() -> dict[str, Any]:
    """The software as installed, without importing any of it.

    Returns:
        `python`, `implementation`, `platform`, `deep5`; `packages` (name: version, of those in `PACKAGES` that are
        installed); `package_count` and `package_list_hash` (SHA-256 of all `name==version` lines, sorted);
        `environment_variables` that change how the frameworks compute, less what looks like a secret and what libraries
        set themselves; `commit` (`id`, `dirty`) of the git work tree that deep5 lives in, None where there is none.
    """
    found = [(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in _distributions()]
    packages = dict(reversed(found))  # where a name is found twice, the first on the path is the one that imports
    lines = sorted({f"{name}=={version}" for name, version in found})
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "deep5": __version__,
        "packages": {name: packages[name] for name in PACKAGES if name in packages},
        "package_count": len(lines),
        "package_list_hash": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        "environment_variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if _VARIABLE.fullmatch(name) and not _PRIVATE.search(name) and not _is_by_library(name, value)
        },
        "commit": _commit(PACKAGE),
    }


def _is_by_library(name: str, value: str) -> bool:
    return name in _BY_LIBRARIES or (name, value) in _WHERE_UNSAID


def default_threads(variable: str, *, ranks: int = 1) -> int | None:
    """How many threads a run gives to an operator where its recipe does not say; left alone, frameworks differ.

    Args:
        variable: What the framework reads by itself (`Framework.thread_variable`), or ""; where it is set, it stands.
        ranks: Processes on this machine that train together and share its cores.

    Returns:
        `OMP_NUM_THREADS`, or else one a physical core of its share of those that this process may run on. None where
        the variable is set: then the framework is left alone.
    """
    import psutil

    if variable and os.environ.get(variable):
        return None
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one a level of nesting
    if outermost.isdecimal() and int(outermost) > 0:
        return int(outermost)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(psutil.cpu_count(logical=False) or allowed, allowed) // ranks, 1)


def environment_hash(system: Mapping[str, Any] | None = None, software: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of all that stays the same from run to run on one installation of one kind of machine.

    Left out are host name, load, clock, temperature and free memory; the commit, since source is hashed by itself; and
    where kernels are cached (`DEEP5_CACHE`). Of the affinity only the number of processors counts.

    Args:
        system: As `describe_system` gives it; looked up where None.
        software: As `describe_software` gives it; looked up where None.
    """
    system = describe_system() if system is None else system
    software = describe_software() if software is None else software
    lasting = {
        "cpu": {key: value for key, value in system["cpu"].items() if key not in _VOLATILE},
        "usable_cores": None if system["affinity"] is None else len(system["affinity"]),
        "memory_bytes": system["memory_bytes"]["total"],
        "accelerators": [
            {key: value for key, value in device.items() if key not in _VOLATILE} for device in system["accelerators"]
        ],
        "software": {key: value for key, value in software.items() if key not in {"commit", "environment_variables"}},
        "variables": {key: value for key, value in software["environment_variables"].items() if key != "DEEP5_CACHE"},
    }
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def info() -> dict[str, Any]:
    """What `deep5 info` prints: `deep5` (version, folder, commit), `system`, `software`, `blas`, `environment_hash`.

    `blas` lists each thread pool that is loaded with NumPy: its library, version and number of threads.
    """
    import threadpoolctl

    system, software = describe_system(), describe_software()
    import_module("numpy")  # a pool is listed only once its library is loaded
    keys = ("user_api", "internal_api", "version", "num_threads", "threading_layer", "architecture")
    return {
        "deep5": {"version": __version__, "folder": str(PACKAGE), "commit": software["commit"]},
        "system": system,
        "software": software,
        "blas": [{key: pool.get(key) for key in keys} for pool in threadpoolctl.threadpool_info()],
        "environment_hash": environment_hash(system, software),
    }


@cache
def _cpu() -> dict[str, Any]:
    import cpuinfo

    found = cpuinfo.get_cpu_info()
    return {
        "model": found.get("brand_raw") or platform.processor() or None,
        "vendor": found.get("vendor_id_raw"),
        "architecture": platform.machine(),
    }


def _distributions() -> list[tuple[str, str]]:
    # A distribution whose metadata is damaged may lack both; it is listed as such rather than passed over.
    # What setuptools brings along for itself is on the path from the moment that anything imports it.
    path = [entry for entry in sys.path if Path(entry).parts[-2:] != ("setuptools", "_vendor")]
    heads: list[Any] = [found.metadata for found in metadata.distributions(path=path)]
    return [(head.get("Name", "unknown"), head.get("Version", "unknown")) for head in heads]


def _accelerators() -> tuple[list[dict[str, Any]], str | None]:
    """The accelerators by `nvidia-smi`, and why they could not be listed; ([], None) where it is not installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], None
    query = f"--query-gpu={','.join(_ACCELERATOR_FIELDS.values())}"
    answer, error = _run([tool, query, "--format=csv,noheader,nounits"], timeout_s=20)
    if answer is None:
        return [], error
    devices = []
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_ACCELERATOR_FIELDS):
            return [], f"nvidia-smi answered {line!r}; expected {len(_ACCELERATOR_FIELDS)} cells"
        devices.append(
            {
                key: _number(cell) if key in _ACCELERATOR_NUMBERS else cell
                for key, cell in zip(_ACCELERATOR_FIELDS, cells, strict=True)
            }
        )
    return devices, None


def _number(cell: str) -> float | int | None:
    """The number in a cell of nvidia-smi; None for `[N/A]` and its like."""
    match = re.fullmatch(r"(\d+)(\.\d+)?", cell)
    return None if match is None else float(cell) if match[2] else int(cell)


def _commit(folder: Path) -> dict[str, Any] | None:
    """`{"id", "dirty"}` of the work tree that holds deep5's source, or None."""
    git = shutil.which("git")
    if git is None:
        return None
    base = [git, "-C", str(folder)]
    # An installed deep5 may lie inside somebody else's work tree (a virtual environment in it); only where git tracks
    # this package is the commit ours.
    if _run([*base, "ls-files", "--error-unmatch", "__init__.py"])[0] is None:
        return None
    head = _run([*base, "rev-parse", "HEAD"])[0]
    status = _run([*base, "status", "--porcelain"])[0]
    return None if head is None else {"id": head.strip(), "dirty": None if status is None else bool(status.strip())}


def _run(command: list[str], timeout_s: float = 10) -> tuple[str | None, str | None]:
    """(standard output, None), or (None, why there is none)."""
    # Without optional locks `git status` does not disturb a git command that runs beside it.
    settings = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, env=settings, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"{name} gave no answer in {timeout_s:g} s"
    except OSError as error:
        return None, f"{name} could not be started: {error}"
    if done.returncode != 0:
        text = (done.stderr or done.stdout).decode(errors="replace").strip()
        return None, f"{name} returned {done.returncode}: {text[:200]}"
    return done.stdout.decode(errors="replace"), None
