"""The environment of a measurement: machine, software, external settings, commit; as dictionaries ready for JSON."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

from deep5.core.child_process import supervise
from deep5.core.version import PACKAGE, __version__

__all__ = [
    "RECORDED_NAMES",
    "RECORDED_PREFIXES",
    "Environment",
    "default_threads",
    "describe_environment",
    "describe_software",
    "describe_system",
    "environment_hash",
    "info",
]

PACKAGES = (
    "array-api-compat", "deep5", "jax", "jaxlib", "keras", "ml-dtypes", "mpi4py", "numpy", "onnx", "onnx-ir",
    "onnxruntime", "onnxruntime-gpu", "openvino", "safetensors", "scipy", "tensorflow", "torch", "torchvision",
    "triton",
)  # fmt: skip
"""Packages whose versions are listed by name; all others enter only the hash of the package list."""

RECORDED_PREFIXES = (
    "OMP", "KMP", "GOMP", "GOTO", "MKL", "OPENBLAS", "BLIS", "NUMEXPR", "VECLIB", "TF", "XLA", "JAX", "CUDA", "CUBLAS",
    "CUDNN", "NCCL", "GLOO", "TORCH", "PYTORCH", "ATEN", "ORT", "MALLOC", "DEEP5",
)  # fmt: skip
"""Prefixes, before an underscore, of environment variables that may change how frameworks compute."""
RECORDED_NAMES = (
    "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONMALLOC",
    "PYTHONPATH",
)  # fmt: skip
"""Further such variables."""

_VARIABLE = re.compile(rf"(?:{'|'.join(RECORDED_PREFIXES)})_.*|{'|'.join(RECORDED_NAMES)}")
# Libraries set these when they are loaded, so the environments of two frameworks would differ. JAX and TensorFlow set
# the log level; scikit-learn, which Keras loads, sets how OpenMP behaves in forked processes. The variables that
# `start_ranks` sets differ in every run.
_BY_LIBRARIES = {"TF_CPP_MIN_LOG_LEVEL", "KMP_INIT_AT_FORK", "DEEP5_RANKS", "DEEP5_LAUNCH"}
# Defaults: PyTorch sets CUDA to load kernels on first use, and torchrun enables error reporting of NCCL.
_WHERE_UNSAID = {("CUDA_MODULE_LOADING", "LAZY"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}
# Result folders are shared: leave out what looks like a secret, and Terraform's TF_VAR_* and TF_CLI_*.
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


class Environment(NamedTuple):
    """The environment of a measurement.

    Attributes:
        system: As returned by `describe_system`.
        software: As returned by `describe_software`.
        hash: As returned by `environment_hash` for both.
    """

    system: dict[str, Any]
    software: dict[str, Any]
    hash: str


def describe_environment() -> Environment:
    """The machine in its current state, the installed software, and the hash of both."""
    system, software = describe_system(), describe_software()
    return Environment(system, software, environment_hash(system, software))


def describe_system() -> dict[str, Any]:
    """The current state of the machine; call it before and after a run.

    Returns:
        `host`; `cpu` (`model`, `vendor`, `architecture`, `physical_cores`, `logical_cores`, `clock_mhz`); `affinity`,
        the processors this process may use; `memory_bytes` (`total`, `available`); `load_average` over 1, 5 and 15
        minutes; `accelerators`, one dictionary each, and `accelerators_error`, why they could not be listed.
        Unavailable values are None. The processor model is looked up once; where Linux does not list it, that takes one
        or two seconds.
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
    """The installed software, determined without importing it.

    Returns:
        `python`, `implementation`, `platform`, `deep5`; `packages` (name: version, of those in `PACKAGES` that are
        installed); `package_count` and `package_list_hash` (SHA-256 of all `name==version` lines, sorted);
        `environment_variables` that change how the frameworks compute, except those that look like secrets or that
        libraries set themselves; `commit` (`id`, `dirty`) of the git work tree that contains deep5, None if there is
        none.
    """
    found = [(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in _distributions()]
    packages = dict(reversed(found))  # if a name occurs twice, the first one on the path is imported
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
    """Number of threads per operator if the recipe does not set it; the frameworks' own defaults differ.

    Args:
        variable: The environment variable that the framework reads (`Framework.thread_variable`), or ""; if the user
            set it, it takes precedence.
        ranks: Processes on this machine that train together and share its cores.

    Returns:
        `OMP_NUM_THREADS` if set, otherwise one thread per physical core of this rank's share of the cores that the
        process may use. None if `variable` is set: the framework then keeps its own setting.
    """
    import psutil

    if variable and os.environ.get(variable):
        return None
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one entry per nesting level
    if outermost.isdecimal() and int(outermost) > 0:
        return int(outermost)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(psutil.cpu_count(logical=False) or allowed, allowed) // ranks, 1)


def environment_hash(system: Mapping[str, Any] | None = None, software: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of everything that is constant between runs with one installation on one type of machine.

    It excludes host name, load, clock, temperature, and free memory; the commit, since the source is hashed separately;
    and the location of cached kernels (`DEEP5_CACHE`). Of the affinity, it includes only the number of processors.

    Args:
        system: Result of `describe_system`; looked up if None.
        software: Result of `describe_software`; looked up if None.
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
    """The output of `deep5 info`: `deep5` (version, folder, commit), `system`, `software`, `blas`, `environment_hash`.

    `blas` lists each thread pool that is loaded with NumPy: its library, version, and number of threads.
    """
    import threadpoolctl

    found = describe_environment()
    import_module("numpy")  # a pool is listed only after its library is loaded
    keys = ("user_api", "internal_api", "version", "num_threads", "threading_layer", "architecture")
    return {
        "deep5": {"version": __version__, "folder": str(PACKAGE), "commit": found.software["commit"]},
        "system": found.system,
        "software": found.software,
        "blas": [{key: pool.get(key) for key in keys} for pool in threadpoolctl.threadpool_info()],
        "environment_hash": found.hash,
    }


@cache
def _cpu() -> dict[str, Any]:
    model, vendor = _listed_cpu()
    if model is None or vendor is None:
        # It starts a process, which takes about a second.
        import cpuinfo

        found = cpuinfo.get_cpu_info()
        model, vendor = found.get("brand_raw") or platform.processor() or None, found.get("vendor_id_raw")
    return {"model": model, "vendor": vendor, "architecture": platform.machine()}


def _listed_cpu() -> tuple[str | None, str | None]:
    """The processor's model and vendor as Linux lists them, and as py-cpuinfo reads them there; None if unlisted."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None, None
    model = re.search(r"^model name\s*:[ \t]*(\S.*?)\s*$", text, re.MULTILINE)
    vendor = re.search(r"^vendor_id\s*:[ \t]*(\S.*?)\s*$", text, re.MULTILINE)
    return (None if model is None else model[1]), (None if vendor is None else vendor[1])


def _distributions() -> list[tuple[str, str]]:
    # A distribution with damaged metadata may lack both; it is listed anyway. Any import of setuptools adds its
    # vendored packages to the path.
    path = [entry for entry in sys.path if Path(entry).parts[-2:] != ("setuptools", "_vendor")]
    heads: list[Any] = [found.metadata for found in metadata.distributions(path=path)]
    return [(head.get("Name", "unknown"), head.get("Version", "unknown")) for head in heads]


def _accelerators() -> tuple[list[dict[str, Any]], str | None]:
    """The accelerators that `nvidia-smi` lists, and why listing failed; ([], None) if it is not installed."""
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
            return [], f"nvidia-smi printed {line!r}; expected {len(_ACCELERATOR_FIELDS)} cells"
        devices.append(
            {
                key: _number(cell) if key in _ACCELERATOR_NUMBERS else cell
                for key, cell in zip(_ACCELERATOR_FIELDS, cells, strict=True)
            }
        )
    return devices, None


def _number(cell: str) -> float | int | None:
    """The number in a cell of nvidia-smi's output; None for `[N/A]` and similar."""
    match = re.fullmatch(r"(\d+)(\.\d+)?", cell)
    return None if match is None else float(cell) if match[2] else int(cell)


def _commit(folder: Path) -> dict[str, Any] | None:
    """`{"id", "dirty"}` of the work tree that holds deep5's source, or None."""
    git = shutil.which("git")
    if git is None:
        return None
    base = [git, "-C", str(folder)]
    # An installed deep5 may be in a virtual environment inside another project's work tree; the commit is deep5's only
    # if git tracks this package.
    if _run([*base, "ls-files", "--error-unmatch", "__init__.py"])[0] is None:
        return None
    head = _run([*base, "rev-parse", "HEAD"])[0]
    status = _run([*base, "status", "--porcelain"])[0]
    return None if head is None else {"id": head.strip(), "dirty": None if status is None else bool(status.strip())}


def _run(command: list[str], timeout_s: float = 10) -> tuple[str | None, str | None]:
    """(standard output, None), or (None, the reason for the failure)."""
    # Without optional locks, `git status` does not disturb concurrent git commands.
    settings = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    name = Path(command[0]).name
    try:
        done = supervise(command, time_limit_s=timeout_s, environment=settings, separate=True)
    except OSError as error:
        return None, f"{name} could not be started: {error}"
    if done.late:
        return None, f"{name} did not answer within {timeout_s:g} s"
    if done.fault() is not None:
        text = (done.errors or done.output).decode(errors="replace").strip()
        return None, f"{name} returned {done.status}: {text[:200]}"
    return done.output.decode(errors="replace"), None
