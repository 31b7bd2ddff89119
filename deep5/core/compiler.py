"""C, C++ and CUDA to a loaded library: compiled once by the machine's own compiler, cached under what went into it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deep5.core.errors import Deep5Error
from deep5.core.files import write_atomically

__all__ = ["CPP", "CUDA", "C", "CompilerRefusal", "Language", "cache_folder", "clear_cache", "compiler", "load_library"]

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
# omp_pause_soft of OpenMP 5.0, and the runtimes, by an address, that are told so.
_PAUSE_SOFT = 1
_PAUSED: set[int | None] = set()


class CompilerRefusal(Deep5Error):
    """A source that the compiler refused.

    Attributes:
        output: The compiler's lines.
    """

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True, kw_only=True)
class Language:
    """What a source is written in.

    Attributes:
        name: For a reader.
        suffix: Of its files.
        variable: The variable of the environment that names the compiler.
        commands: Compilers to look for where it names none.
        flags: What they are called with; None: `FLAGS`.
        install: What to install where there is none.
    """

    name: str
    suffix: str
    variable: str
    commands: tuple[str, ...]
    flags: tuple[str, ...] | None
    install: str


C = Language(name="C", suffix=".c", variable="CC", commands=("cc", "gcc", "clang"), flags=None, install="gcc or clang")
# What a user's own operator is promised: what -O3 gives on this machine, and OpenMP.
CPP = Language(
    name="C++",
    suffix=".cpp",
    variable="CXX",
    commands=("c++", "g++", "clang++"),
    # Hidden: static data of templates of the same name would be one object for all libraries of a process.
    flags=("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fvisibility=hidden", "-fPIC", "-shared"),
    install="g++ or clang++",
)
CUDA = Language(
    name="CUDA",
    suffix=".cu",
    variable="NVCC",
    commands=("nvcc",),
    flags=("-std=c++17", "-O3", "-arch=native", "-Xcompiler", "-fPIC,-fopenmp,-fvisibility=hidden", "-shared"),
    install="NVIDIA's CUDA toolkit",
)


def cache_folder() -> Path:
    """Where deep5 keeps what can be made again: `$DEEP5_CACHE`, else `deep5` in the user's cache folder."""
    chosen = os.environ.get("DEEP5_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deep5"


def compiler(language: Language = C) -> str | None:
    """The compiler of a language: `$CC`, else `cc`, `gcc` or `clang` on the path, for C; None where there is none."""
    for name in (os.environ.get(language.variable), *language.commands):
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


def load_library(
    source: str, language: Language = C, *, what: str = "the generated kernel", include: Sequence[Path] = ()
) -> ctypes.CDLL:
    """Compile a source, or find it in the cache, and load it.

    Args:
        source: A whole file; part of the cache's key, with the files that it includes (those of the system left out),
            the compiler, the flags and the processor.
        language: What it is written in.
        what: What messages call it.
        include: Folders in which it finds files to include.

    Raises:
        CompilerRefusal: The compiler refused the source; the message holds its lines.
        Deep5Error: There is no compiler, the cache cannot be written, or what is in it was changed since it was
            compiled.
    """
    command = compiler(language)
    if command is None:
        raise Deep5Error(
            f"no {language.name} compiler on this machine; remedy: install {language.install}, or set "
            f"{language.variable}"
        )
    call = [command, *(FLAGS if language.flags is None else language.flags), *(f"-I{folder}" for folder in include)]
    # The prefer-vector-width flag exists on x86 alone.
    call = [flag for flag in call if "vector-width" not in flag or platform.machine() == "x86_64"]
    stamp = Path(command).resolve().stat()
    identity = f"{Path(command).resolve()} {stamp.st_size} {stamp.st_mtime_ns}"
    key = hashlib.sha256("\0".join([source, *call, identity, _machine()]).encode()).hexdigest()
    folder = cache_folder() / "kernels"
    library = _cached(folder, key, what) or _compile(call, source, language, what, folder, key)
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise Deep5Error(
            f"{what} in {library} cannot be loaded ({error}); remedy: set DEEP5_CACHE to a folder from which programs "
            "may run"
        ) from error
    _let_fork(loaded)
    return loaded


def clear_cache() -> int:
    """Delete all that deep5 or torch.compile for it compiled; returns how many bytes that freed."""
    freed = 0
    folder = cache_folder() / "kernels"
    for path in [path for suffix in ("so", "sha256", "includes") for path in folder.glob(f"*.{suffix}")]:
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
    compiled = cache_folder() / "torchinductor"
    freed += sum(path.stat().st_size for path in compiled.rglob("*") if path.is_file() and not path.is_symlink())
    shutil.rmtree(compiled, ignore_errors=True)
    return freed


def _let_fork(library: ctypes.CDLL) -> None:
    """See to it that a child of this process may call the library.

    OpenMP keeps the threads of a first parallel region for the next ones; a child has none of them and would wait for
    them for ever. So they are let go before a fork, and started again when there is work.
    """
    try:
        pause = library.omp_pause_resource_all
    except AttributeError:  # without OpenMP, or with one before 5.0
        return
    address = ctypes.cast(pause, ctypes.c_void_p).value
    if address not in _PAUSED:
        _PAUSED.add(address)
        os.register_at_fork(before=functools.partial(pause, _PAUSE_SOFT))


def _cached(folder: Path, key: str, what: str) -> Path | None:
    """The library of a key whose included files are what they were; None where it has to be compiled."""
    try:
        stem = _stem(key, (folder / f"{key}.includes").read_text(encoding="utf-8").splitlines())
    except OSError:
        return None
    for checksum in sorted(folder.glob(f"{stem}-*.sha256")):
        library = checksum.with_suffix(".so")
        try:
            told = checksum.read_text()
            found = hashlib.sha256(library.read_bytes()).hexdigest()
        except OSError:
            continue
        if told != found:
            raise Deep5Error(
                f"{what} in {library} was changed since it was compiled: got a file of SHA-256 {found:.12}…, expected "
                f"{told:.12}…; it is not loaded; remedy: deep5 clean"
            )
        return library
    return None


def _stem(key: str, includes: Sequence[str]) -> str:
    """How the names of the libraries begin that were compiled from files of this content.

    Raises:
        OSError: One of them is not there.
    """
    contents = hashlib.sha256()
    for name in includes:
        contents.update(name.encode() + b"\0" + hashlib.sha256(Path(name).read_bytes()).digest())
    # The name differs where the content does: a library that is loaded stays what it is.
    return f"{key[:40]}-{contents.hexdigest()[:24]}"


def _compile(call: list[str], source: str, language: Language, what: str, cache: Path, key: str) -> Path:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            code, built = Path(folder) / f"kernel{language.suffix}", Path(folder) / "kernel.so"
            code.write_text(source, encoding="utf-8")
            _call_compiler(call, code, built, what, language)
            data, includes = built.read_bytes(), _included(built.with_suffix(".d"), code)
            digest = hashlib.sha256(data).hexdigest()
            # Not every compiler makes the same bytes twice (__TIME__): processes that compile one source at once write
            # to the same names only what is the same.
            library = cache / f"{_stem(key, includes)}-{digest[:16]}.so"
        # The library first: without the other two it is compiled again.
        write_atomically(library, data)
        write_atomically(library.with_suffix(".sha256"), digest)
        write_atomically(cache / f"{key}.includes", "".join(f"{name}\n" for name in includes))
    except OSError as error:
        raise Deep5Error(
            f"the kernel cache {cache} cannot be written ({error.strerror}); remedy: set DEEP5_CACHE to a "
            "folder that can"
        ) from error
    return library


def _call_compiler(call: list[str], code: Path, built: Path, what: str, language: Language) -> None:
    command = call[0]
    call = [*call, "-MMD", "-MF", str(built.with_suffix(".d")), "-o", str(built), str(code), "-lm"]
    try:
        done = subprocess.run(
            call,
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},  # what it says is read, and shown, in one language
        )
    except subprocess.TimeoutExpired:
        raise Deep5Error(f"{command} did not finish within {_COMPILE_TIMEOUT_S} s") from None
    except OSError as error:
        raise Deep5Error(
            f"the compiler {command} cannot be started ({error.strerror}); remedy: set {language.variable} to one that "
            "can"
        ) from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip() or f"(not a word; it ended with the status {done.returncode})"
        raise CompilerRefusal(f"{command} refused {what}:\n{output}", output)


def _included(rules: Path, code: Path) -> list[str]:
    """The files that a source includes, as the compiler wrote them down for make."""
    if not rules.is_file():
        return []
    listed = rules.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2]
    names = [name.replace("\\ ", " ") for name in re.findall(r"(?:\\ |\S)+", listed)]
    # Not what is gone once the compiler has finished: its own files, and this one.
    return sorted({str(Path(name).resolve()) for name in names if Path(name).is_file()} - {str(code.resolve())})
