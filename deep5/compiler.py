"""C to a loaded library: compiled once by the machine's own compiler, cached under what went into it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from deep5.errors import Deep5Error
from deep5.files import write_atomically

__all__ = ["cache_folder", "clear_cache", "compiler", "load_library"]

# No -ffast-math: an optimizer must mean what it says, NaN included. What is switched off here (errno, traps,
# contraction to fused multiply-add) lets loops vectorise and keeps each operation rounded as NumPy rounds it.
FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fopenmp",
    "-fPIC",
    "-shared",
)
_COMPILE_TIMEOUT_S = 120


def cache_folder() -> Path:
    """Where deep5 keeps what can be made again: `$DEEP5_CACHE`, else `deep5` in the user's cache folder."""
    chosen = os.environ.get("DEEP5_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deep5"


def compiler() -> str | None:
    """The C compiler: `$CC`, else `cc`, `gcc` or `clang` on the path; None where there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    return None


@functools.cache
def _machine() -> str:
    """The processor's feature flags: a library built with -march=native fits only a machine that has them."""
    flags = ""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        flags = next((line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {flags}"


def load_library(source: str) -> ctypes.CDLL:
    """Compile C source, or find it in the cache, and load it.

    Args:
        source: A whole C file; part of the cache key, with the compiler, the flags and the processor.

    Raises:
        Deep5Error: There is no compiler, or it refused the source; the message holds its lines. The cache cannot be
            written.
    """
    command = compiler()
    if command is None:
        raise Deep5Error("no C compiler on this machine; remedy: install gcc or clang, or set CC")
    stamp = Path(command).resolve().stat()
    identity = f"{Path(command).resolve()} {stamp.st_size} {stamp.st_mtime_ns}"
    key = hashlib.sha256("\0".join([source, *FLAGS, identity, _machine()]).encode()).hexdigest()
    library = cache_folder() / "kernels" / f"{key}.so"
    checksum = library.with_suffix(".sha256")
    if not _intact(library, checksum):
        _compile(command, source, library, checksum)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise Deep5Error(
            f"the kernel {library} cannot be loaded ({error}); remedy: set DEEP5_CACHE to a folder from which programs "
            "may run"
        ) from error


def clear_cache() -> int:
    """Delete all that deep5 or torch.compile for it compiled; returns how many bytes that freed."""
    freed = 0
    folder = cache_folder() / "kernels"
    for path in [*folder.glob("*.so"), *folder.glob("*.sha256")]:
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
    compiled = cache_folder() / "torchinductor"
    freed += sum(path.stat().st_size for path in compiled.rglob("*") if path.is_file() and not path.is_symlink())
    shutil.rmtree(compiled, ignore_errors=True)
    return freed


def _intact(library: Path, checksum: Path) -> bool:
    """A file that was cut short or changed since it was compiled is compiled again, not loaded."""
    try:
        return checksum.read_text() == hashlib.sha256(library.read_bytes()).hexdigest()
    except OSError:
        return False


def _compile(command: str, source: str, library: Path, checksum: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            code, built = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
            code.write_text(source, encoding="utf-8")
            _call_compiler(command, code, built)
            data = built.read_bytes()
        # The library first: a checksum without its library only means that it is compiled again.
        write_atomically(library, data)
        write_atomically(checksum, hashlib.sha256(data).hexdigest())
    except OSError as error:
        raise Deep5Error(
            f"the kernel cache {library.parent} cannot be written ({error.strerror}); remedy: set DEEP5_CACHE to a "
            "folder that can"
        ) from error


def _call_compiler(command: str, code: Path, built: Path) -> None:
    # The prefer-vector-width flag exists on x86 alone.
    flags = [flag for flag in FLAGS if "vector-width" not in flag or platform.machine() == "x86_64"]
    call = [command, *flags, "-o", str(built), str(code), "-lm"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Deep5Error(f"{command} did not finish within {_COMPILE_TIMEOUT_S} s") from None
    except OSError as error:
        raise Deep5Error(
            f"the compiler {command} cannot be started ({error.strerror}); remedy: set CC to one that can"
        ) from error
    if done.returncode:
        raise Deep5Error(f"{command} refused the generated kernel:\n{done.stderr.strip()}")
