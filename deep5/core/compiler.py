"""C, C++ and CUDA sources to loaded libraries: compiled by the local compiler, cached by the hash of all inputs."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deep5.core.child_process import supervise
from deep5.core.errors import Deep5Error
from deep5.core.files import write_atomically

__all__ = ["CPP", "CUDA", "C", "CompilerRefusal", "Language", "cache_folder", "clear_cache", "compiler", "load_library"]

# No -ffast-math: an optimizer must follow its formula, NaN included. Without errno and traps, loops vectorize; without
# contraction to fused multiply-add, each operation is rounded as in NumPy.
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
# omp_pause_soft of OpenMP 5.0, and the OpenMP runtimes, by address, that pause before a fork.
_PAUSE_SOFT = 1
_PAUSED: set[int | None] = set()


class CompilerRefusal(Deep5Error):
    """The compiler rejected a source.

    Attributes:
        output: The compiler's output.
    """

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True, kw_only=True)
class Language:
    """The language of a source.

    Attributes:
        name: Name in messages.
        suffix: Suffix of its files.
        variable: The environment variable that names the compiler.
        commands: Compilers to look for if the variable is not set.
        flags: Compiler flags; None: `FLAGS`.
        install: What to install if there is no compiler.
    """

    name: str
    suffix: str
    variable: str
    commands: tuple[str, ...]
    flags: tuple[str, ...] | None
    install: str


C = Language(name="C", suffix=".c", variable="CC", commands=("cc", "gcc", "clang"), flags=None, install="gcc or clang")
# User-defined operators get -O3 for this machine, and OpenMP.
CPP = Language(
    name="C++",
    suffix=".cpp",
    variable="CXX",
    commands=("c++", "g++", "clang++"),
    # Hidden visibility: otherwise all libraries of a process share static data of templates with the same name.
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
    """The folder for files that deep5 can recreate: `$DEEP5_CACHE`, else `deep5` in the user's cache folder."""
    chosen = os.environ.get("DEEP5_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deep5"


def compiler(language: Language = C) -> str | None:
    """The compiler of a language: `$CC`, else `cc`, `gcc` or `clang` on the path, for C; None if there is none."""
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
    """Compile a source, or find its library in the cache, and load it.

    Args:
        source: Text of a complete file. It is part of the cache key, with the files it includes (system headers
            excepted), the compiler, the flags and the processor.
        language: Language of the source.
        what: Name of the source in messages.
        include: Folders searched for included files.

    Raises:
        CompilerRefusal: The compiler rejected the source; the message holds the compiler's output.
        Deep5Error: There is no compiler, the cache cannot be written, or a cached file was changed after it was
            compiled.
    """
    command = compiler(language)
    if command is None:
        raise Deep5Error(
            f"no {language.name} compiler on this machine; remedy: install {language.install}, or set "
            f"{language.variable}"
        )
    call = [command, *(FLAGS if language.flags is None else language.flags), *(f"-I{folder}" for folder in include)]
    # The prefer-vector-width flag exists only on x86.
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
    """Delete everything compiled by deep5, or by torch.compile for deep5; returns the number of bytes freed."""
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
    """Ensure that a forked child of this process can call the library.

    OpenMP keeps the threads of the first parallel region for later ones; a child has none of them and would wait
    forever. They are therefore released before a fork, and restarted when there is work.
    """
    try:
        pause = library.omp_pause_resource_all
    except AttributeError:  # no OpenMP, or older than 5.0
        return
    address = ctypes.cast(pause, ctypes.c_void_p).value
    if address not in _PAUSED:
        _PAUSED.add(address)
        os.register_at_fork(before=functools.partial(pause, _PAUSE_SOFT))


def _cached(folder: Path, key: str, what: str) -> Path | None:
    """The library of a key if its included files are unchanged; None if it has to be compiled."""
    try:
        stem = _stem(key, (folder / f"{key}.includes").read_text(encoding="utf-8").splitlines())
    except OSError:
        return None
    for checksum in sorted(folder.glob(f"{stem}-*.sha256")):
        library = checksum.with_suffix(".so")
        try:
            recorded = checksum.read_text()
            found = hashlib.sha256(library.read_bytes()).hexdigest()
        except OSError:
            continue
        if recorded != found:
            raise Deep5Error(
                f"{what} in {library} has changed since it was compiled: got a file of SHA-256 {found:.12}…, expected "
                f"{recorded:.12}…; it is not loaded; remedy: deep5 clean"
            )
        return library
    return None


def _stem(key: str, includes: Sequence[str]) -> str:
    """The common start of the names of libraries compiled from files with this content.

    Raises:
        OSError: A file is missing.
    """
    contents = hashlib.sha256()
    for name in includes:
        contents.update(name.encode() + b"\0" + hashlib.sha256(Path(name).read_bytes()).digest())
    # Different content gets a different name, so a library that is already loaded is never overwritten.
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
            # Compilers are not always deterministic (__TIME__). With the digest in the name, processes that compile one
            # source concurrently write only identical content to the same name.
            library = cache / f"{_stem(key, includes)}-{digest[:16]}.so"
        # Write the library first: if the other two files are missing, it is compiled again.
        write_atomically(library, data)
        write_atomically(library.with_suffix(".sha256"), digest)
        write_atomically(cache / f"{key}.includes", "".join(f"{name}\n" for name in includes))
    except OSError as error:
        raise Deep5Error(
            f"the kernel cache {cache} cannot be written ({error.strerror}); remedy: set DEEP5_CACHE to a "
            "writable folder"
        ) from error
    return library


def _call_compiler(call: list[str], code: Path, built: Path, what: str, language: Language) -> None:
    command = call[0]
    call = [*call, "-MMD", "-MF", str(built.with_suffix(".d")), "-o", str(built), str(code), "-lm"]
    try:
        done = supervise(
            call,
            time_limit_s=_COMPILE_TIMEOUT_S,
            environment={**os.environ, "LC_ALL": "C"},  # the output is parsed and shown in one language
            separate=True,
        )
    except OSError as error:
        raise Deep5Error(
            f"the compiler {command} cannot be started ({error.strerror}); remedy: set {language.variable} to one that "
            "works"
        ) from error
    if done.late:
        raise Deep5Error(f"{command} did not finish within {_COMPILE_TIMEOUT_S} s")
    if done.fault() is not None:
        output = (done.errors or done.output).decode(
            errors="replace"
        ).strip() or f"(no output; exit status {done.status})"
        raise CompilerRefusal(f"{command} refused {what}:\n{output}", output)


def _included(rules: Path, code: Path) -> list[str]:
    """The files that a source includes, from the compiler's rules for make."""
    if not rules.is_file():
        return []
    listed = rules.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2]
    names = [name.replace("\\ ", " ") for name in re.findall(r"(?:\\ |\S)+", listed)]
    # Without files that exist only during compilation: temporary files, and the source itself.
    return sorted({str(Path(name).resolve()) for name in names if Path(name).is_file()} - {str(code.resolve())})
