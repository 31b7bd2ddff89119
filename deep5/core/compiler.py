"""C, C++ and CUDA sources to loaded libraries: compiled by the local compiler, cached by the hash of all inputs."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.child_process import supervise
from deep5.core.errors import Deep5Error, UsageError
from deep5.core.kernel_cache import MOST_BYTES, KernelCache
from deep5.core.library_copy import load_copy
from deep5.core.make_rules import included_files
from deep5.core.private_files import read_bounded
from deep5.core.process_end import Ended, excerpt, how_ended
from deep5.core.progress import waiting

__all__ = [
    "CPP",
    "CUDA",
    "C",
    "CompilerRefusal",
    "CompilerWarning",
    "Language",
    "cache_folder",
    "check_compiler",
    "clear_cache",
    "compiler",
    "compiles",
    "load_library",
    "optional_library",
    "why_numpy",
]

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
# A library is loaded in milliseconds.
_LOAD_TIMEOUT_S = 30
# The list of the included files; those of OpenVINO's headers have 0.1 MiB.
_MOST_RULES_BYTES = 4 << 20
_MOST_PARSED_BYTES = 256 << 10
# What compilers print, or the system for them, where files cannot grow.
_FULL = ("No space left on device", "Disk quota exceeded", "File too large", "File size limit exceeded")
_TRIAL = "int deep5_trial(void) { return 5; }\n"
# Compilers given up, with the message; the libraries of this process; and why NumPy replaces others.
_GIVEN_UP: dict[str, str] = {}
_LOADED: dict[str, ctypes.CDLL] = {}
_FAILURES: list[str] = []


class CompilerRefusal(Deep5Error):
    """The compiler rejected a source.

    Attributes:
        output: The compiler's output, without its middle if it is longer than 256 KiB.
    """

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class CompilerWarning(UserWarning):
    """Compiled code is replaced by NumPy, although there is a compiler."""


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
    """The folder for files that deep5 can recreate: `$DEEP5_CACHE`, else `deep5` in the user's cache folder.

    Raises:
        UsageError: The variable is not set, and this user has no home folder.
    """
    chosen = os.environ.get("DEEP5_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deep5"
    except RuntimeError as error:
        raise UsageError(f"the cache has no place ({error}); remedy: set DEEP5_CACHE to a folder") from error


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
    source: str,
    language: Language = C,
    *,
    what: str = "the generated kernel",
    include: Sequence[Path] = (),
    functions: Sequence[str] = (),
    as_file: bool = False,
) -> ctypes.CDLL:
    """Compile a source, or find its library in the cache, and load it.

    What is loaded is a copy of the bytes that were authenticated, which no other process of another user can reach. A
    process loads each library once.

    Args:
        source: Text of a complete file. It is part of the cache key, with the files it includes (system headers
            excepted), the compiler, the flags and the processor.
        language: Language of the source.
        what: Name of the source in messages.
        include: Folders searched for included files.
        functions: Functions that the library must have.
        as_file: Whether the library's name must be the path of a file until this process ends.

    Raises:
        CompilerRefusal: The compiler rejected the source; the message holds the compiler's output.
        Deep5Error: There is no compiler, or it does not work; or the cache cannot be written, or another user can
            change it.
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
    try:
        stamp = Path(command).resolve(strict=True).stat()
    except (OSError, RuntimeError) as error:
        raise Deep5Error(f"the compiler {command} cannot be read ({error}); {_another(language)}") from error
    identity = f"{Path(command).resolve()} {stamp.st_size} {stamp.st_mtime_ns}"
    try:
        # Folders may have names that are not UTF-8.
        content = source.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise Deep5Error(
            f"{what}: UTF-8 has no {source[error.start]!r}, the character {error.start} of its source"
        ) from error
    key = hashlib.sha256(b"\0".join([content, *map(os.fsencode, (*call, identity, _machine()))])).hexdigest()
    cache = KernelCache(cache_folder() / "kernels")
    name = cache.name(key)
    if name is not None:
        if (loaded := _LOADED.get(name)) is not None:
            return loaded
        if (data := cache.read(name)) is not None:
            # A library that it needs may be gone: then it is compiled again.
            with suppress(OSError):
                return _keep(name, load_copy(data, key[:12], cache.folder, as_file=as_file))
    data, includes = _compile(call, content, what, language, cache)
    try:
        loaded = load_copy(data, key[:12], cache.folder, as_file=as_file)
    except OSError as error:
        raise Deep5Error(
            f"{command} compiled {what} to what cannot be loaded ({error}); {_another(language)}"
        ) from error
    if missing := [each for each in functions if not hasattr(loaded, each)]:
        raise Deep5Error(f"{command} compiled {what} without its function {missing[0]}; {_another(language)}")
    # Without the list of included files, nothing would show that one has changed.
    known = f"{key}-{hashlib.sha256(data).hexdigest()}" if includes is None else cache.write(key, data, includes)
    return _keep(known, loaded)


def optional_library(source: str, *, what: str = "the generated kernel", functions: Sequence[str]) -> Any:
    """`load_library` of a C source that NumPy can replace; None if NumPy has to.

    Args:
        source: As for `load_library`, as are the others.
        what: Name of the source in messages.
        functions: Functions that the library must have.

    Warns:
        CompilerWarning: There is a compiler, but the library cannot be compiled or loaded; once in a process.
    """
    if compiler() is None:
        return None
    try:
        return load_library(source, what=what, functions=functions)
    except Deep5Error as error:
        reason = str(error)
    _FAILURES.append(reason)
    if len(_FAILURES) == 1:
        warnings.warn(f"NumPy replaces compiled code, more slowly: {reason}", CompilerWarning, stacklevel=3)
    return None


def why_numpy() -> str:
    """Why NumPy replaces compiled code in this process, with the remedy; empty if nothing is known to prevent it."""
    if compiler() is None:
        return "there is no C compiler; remedy: install gcc or clang"
    return _FAILURES[0] if _FAILURES else ""


def compiles() -> bool:
    """Whether C can be compiled and loaded; warns as `optional_library` does."""
    return optional_library(_TRIAL, what="a trial", functions=("deep5_trial",)) is not None


@functools.cache
def check_compiler(command: str) -> None:
    """Check that a C++ compiler works which a framework starts, and waits for without a limit.

    Args:
        command: The compiler.

    Raises:
        Deep5Error: It does not compile a source of one line.
    """
    with tempfile.TemporaryDirectory(prefix="deep5-trial-") as name:
        source, built = Path(name, "trial.cpp"), Path(name, "trial.so")
        source.write_text(_TRIAL)
        done = _run([command, "-shared", "-fPIC", "-o", str(built), str(source)], Path(name), CPP)
        if (fault := done.fault(answered=built.is_file())) is not None:
            raise Deep5Error(f"the compiler {command} does not work: it {fault}; {_another(CPP)}")


def _keep(name: str, library: ctypes.CDLL) -> ctypes.CDLL:
    # Of threads that load one library concurrently, all use the first.
    return _LOADED.setdefault(name, library)


def clear_cache() -> int:
    """Delete everything compiled by deep5, or by torch.compile for deep5; returns the number of bytes freed."""
    freed = 0
    folder = cache_folder() / "kernels"
    for path in [path for suffix in ("so", "includes") for path in folder.glob(f"*.{suffix}")]:
        freed += path.lstat().st_size
        path.unlink(missing_ok=True)
    compiled = cache_folder() / "torchinductor"
    freed += sum(path.stat().st_size for path in compiled.rglob("*") if path.is_file() and not path.is_symlink())
    shutil.rmtree(compiled, ignore_errors=True)
    return freed


def _compile(
    call: list[str], source: bytes, what: str, language: Language, cache: KernelCache
) -> tuple[bytes, list[str] | None]:
    """Compile a source: the bytes of the library, and the files that the source includes, None if they are unknown."""
    command = call[0]
    with cache.build() as folder:
        code, built = folder / f"kernel{language.suffix}", folder / "kernel.so"
        try:
            code.write_bytes(source)
            _call_compiler(call, code, built, what, language)
        except OSError as error:
            raise cache.unwritable(error) from error
        try:
            data = read_bounded(built, MOST_BYTES, follow=False)
        except OSError as error:
            raise Deep5Error(
                f"{command} compiled {what} without an error, and without a library ({error.strerror}); "
                f"{_another(language)}"
            ) from error
        _try_loading(command, built, what, language)
        try:
            return data, included_files(read_bounded(built.with_suffix(".d"), _MOST_RULES_BYTES, follow=False), code)
        except FileNotFoundError:
            return data, None
        except OSError as error:
            raise Deep5Error(
                f"{command} compiled {what} without a list of the files that it includes ({error.strerror}); "
                f"{_another(language)}"
            ) from error


def _call_compiler(call: list[str], code: Path, built: Path, what: str, language: Language) -> None:
    command = call[0]
    if (reason := _GIVEN_UP.get(command)) is not None:
        raise Deep5Error(reason)
    call = [*call, "-MMD", "-MF", str(built.with_suffix(".d")), "-o", str(built), str(code), "-lm"]
    done = _run(call, built.parent, language, what)
    if done.late:
        raise _give_up(command, f"{command} did not finish within {_COMPILE_TIMEOUT_S} s", language)
    if done.fault() is None:
        return
    printed = done.errors or done.output
    output = excerpt(printed) or f"(no output; {how_ended(done.status)})"
    if done.stopped is not None:
        output += f"\n({command} {done.stopped})"
    if (full := next((text for text in _FULL if text.encode() in printed), None)) is not None:
        raise Deep5Error(
            f"{command} has no room to compile {what} ({full}); remedy: make room in {built.parents[1]}, or set "
            "DEEP5_CACHE to a folder with room"
        )
    # Whether the source is at fault shows a source without faults.
    trial, out = code.with_stem("trial"), built.with_stem("trial")
    trial.write_text(_TRIAL, encoding="utf-8")
    if _run([command, "-shared", "-o", str(out), str(trial)], built.parent, language).fault() is not None:
        raise Deep5Error(f"the compiler {command} does not work:\n{output}\n{_another(language)}")
    raise CompilerRefusal(f"{command} refused {what}:\n{output}", excerpt(printed, _MOST_PARSED_BYTES))


def _run(call: list[str], folder: Path, language: Language, what: str = "a trial") -> Ended:
    try:
        with waiting(f"compiling {what}", _COMPILE_TIMEOUT_S) as look:
            return supervise(
                call,
                time_limit_s=_COMPILE_TIMEOUT_S,
                look=look,
                # The output is parsed and shown in one language. What a compiler leaves when it is ended goes with the
                # folder.
                environment={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
                separate=True,
            )
    except OSError as error:
        raise Deep5Error(
            f"the compiler {call[0]} cannot be started ({error.strerror}); remedy: set {language.variable} to one that "
            "works"
        ) from error


def _try_loading(command: str, built: Path, what: str, language: Language) -> None:
    """Load what was compiled in another process: half a library may end the process that loads it."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    try:
        done = supervise(
            [sys.executable or "python3", "-I", "-S", "-c", program, str(built)], time_limit_s=_LOAD_TIMEOUT_S
        )
    except OSError:  # this user may not start the interpreter again, or it is part of another program
        return
    # A library that only this process can load, as it needs what is loaded here, is tried here.
    if done.stopped is not None or done.status < 0:
        how = done.stopped or how_ended(done.status)
        failure = f"{command} compiled {what} to what cannot be loaded: a process that did so {how}"
        raise _give_up(command, failure, language)


def _give_up(command: str, why: str, language: Language) -> Deep5Error:
    """The error of a compiler that this process does not start again, so that it waits only once."""
    _GIVEN_UP[command] = f"{why}; this process does not start it again; {_another(language)}"
    return Deep5Error(_GIVEN_UP[command])


def _another(language: Language) -> str:
    return f"remedy: set {language.variable} to a compiler that works"
