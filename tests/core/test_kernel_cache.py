"""The cache of compiled code against other users, damage, compilers that do not work, and disks that are full."""

from __future__ import annotations

import hashlib
import hmac
import os
import resource
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import compiler, kernel_cache, library_copy
from deep5.core.errors import Deep5Error
from deep5.core.events import StepInfo
from deep5.core.owner_secret import owner_secret, secret_path
from deep5.core.private_files import ExposedFile, private_folder, read_bounded
from deep5.core.tensors import TensorSpec

SOURCE = "int answer(void) { return %d; }\n"
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
EXPOSED = {
    "written by all": lambda path: path.chmod(0o777),
    "written by all, sticky": lambda path: path.chmod(0o1777),
    "written by the group": lambda path: path.chmod(0o770),
    "of another user": lambda path: os.chown(path, NOBODY, NOBODY),
}


def load(source: str) -> Any:
    """Load a library as a process does that has not loaded it before."""
    compiler._LOADED.clear()
    return compiler.load_library(source)


def only(folder: Path, suffix: str) -> Path:
    (path,) = folder.glob(f"*{suffix}")
    return path


def compiled(tmp_path: Path, source: str) -> bytes:
    """A library that another user could have compiled."""
    (tmp_path / "other.c").write_text(source)
    call = [str(compiler.compiler()), "-shared", "-fPIC", "-o", str(tmp_path / "other.so"), str(tmp_path / "other.c")]
    subprocess.run(call, check=True, timeout=60)
    return (tmp_path / "other.so").read_bytes()


def bound() -> Any:
    return d5.bind_rule(d5.SGD(0.5), {"w": TensorSpec(shape=(2,), dtype="float64")})


def steps(kernel: Any) -> bool:
    live = np.ones(2)
    kernel.attach({"w": live})
    kernel.update({"w": np.ones(2)}, StepInfo(batch_size=1))
    return live.tolist() == [0.5, 0.5]


def falls_back(match: str) -> None:
    """Check that an update rule runs in NumPy, with one warning for all kernels."""
    with pytest.warns(compiler.CompilerWarning, match=match) as found:
        kernels = [bound(), bound()]
    assert len(found) == 1
    assert [kernel.how for kernel in kernels] == ["numpy", "numpy"]
    assert all(map(steps, kernels))
    assert compiler.why_numpy()


# --- other users


@as_root
@pytest.mark.parametrize("part", ["kernels", "cache", "parent"])
@pytest.mark.parametrize("how", EXPOSED)
def test_a_folder_that_another_user_can_change_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch, part: str, how: str
) -> None:
    parent = cache.parent.parent / "parent"
    cache = parent / "cache" / "kernels"
    cache.mkdir(parents=True)
    monkeypatch.setenv("DEEP5_CACHE", str(cache.parent))
    path = {"kernels": cache, "cache": cache.parent, "parent": parent}[part]
    EXPOSED[how](path)
    if how == "written by all, sticky" and part != "kernels":  # others can add to it, and replace nothing of this user
        assert load(SOURCE % 1).answer() == 1
        return
    with pytest.raises(ExposedFile, match=rf"kernel cache .* is not used: {path} (has mode|belongs to).*remedy: "):
        load(SOURCE % 1)
    assert list(cache.iterdir()) == []
    falls_back("another user could replace")


@as_root
def test_an_entry_of_another_user_in_a_sticky_folder_is_refused(tmp_path: Path) -> None:
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "theirs").mkdir()
    os.chown(sticky / "theirs", NOBODY, NOBODY)
    with pytest.raises(ExposedFile, match="theirs belongs to the user 65534"):
        private_folder(sticky / "theirs" / "mine", what="the cache", remedy="another")
    (sticky / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").mkdir()
    private_folder(sticky / "link" / "mine", what="the cache", remedy="another")
    os.chown(sticky / "link", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(ExposedFile, match="link is a link of the user 65534"):
        private_folder(sticky / "link" / "mine", what="the cache", remedy="another")


def test_a_link_into_a_folder_of_others_is_refused(cache: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    (open_to_all / "kernels").mkdir(parents=True)
    open_to_all.chmod(0o777)
    cache.parent.mkdir()
    cache.symlink_to(open_to_all / "kernels")
    with pytest.raises(ExposedFile, match=f"{open_to_all} has mode 0777"):
        load(SOURCE % 2)
    open_to_all.chmod(0o755)
    assert load(SOURCE % 2).answer() == 2


@pytest.mark.parametrize("target", ["{0}/a/../b/kernels", "a/../b/kernels", "b//./kernels"])
def test_a_path_is_followed_as_the_system_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """A link, then `..`, leads to the parent of the link's target."""
    (tmp_path / "far" / "inside").mkdir(parents=True)
    (tmp_path / "far" / "b").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "far" / "inside")
    monkeypatch.chdir(tmp_path)
    private_folder(Path(target.format(tmp_path)), what="it", remedy="none")
    made = tmp_path / ("far/b/kernels" if "a/.." in target else "b/kernels")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o777)
    with pytest.raises(ExposedFile):
        private_folder(Path(target.format(tmp_path)), what="it", remedy="none")


def test_links_without_end_and_files_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        private_folder(tmp_path / "loop" / "x", what="it", remedy="none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "file" / "x", what="it", remedy="none")


@pytest.mark.parametrize("mapped", ["0 0 4294967295", "0 1000 1", "1000 1000 1\n1001 0 1"])
def test_root_without_a_number_of_its_own(monkeypatch: pytest.MonkeyPatch, mapped: str) -> None:
    """In a container started without privileges, the folders of root belong to `nobody`."""
    from deep5.core import private_files

    inner = Path.read_text

    def read(path: Path, *given: Any, **options: Any) -> str:
        return mapped + "\n" if str(path) == "/proc/self/uid_map" else inner(path, *given, **options)

    monkeypatch.setattr(Path, "read_text", read)
    owners = private_files._owners.__wrapped__()
    assert owners == {0, os.geteuid()} | ({NOBODY} if mapped == "0 1000 1" else set())


@as_root
def test_another_user_who_may_not_write_the_cache_runs_in_numpy(cache: Path, tmp_path: Path) -> None:
    """A process that becomes another user, as a real one would find root's cache."""
    cache.mkdir(parents=True)
    program = (
        "import os, warnings, numpy as np, deep5 as d5\n"
        "from deep5.core.tensors import TensorSpec\n"
        "from deep5.core.events import StepInfo\n"
        "from deep5.training import kernel, kernel_memory, emit_c, given, eager, generated\n"
        "from deep5.core import compiler\n"
        "spec = {'w': TensorSpec(shape=(2,), dtype='float64')}\n"
        "rule = d5.SGD(0.5); d5.bind_rule(rule, spec, backend='numpy')\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always'); bound = d5.bind_rule(rule, spec)\n"
        "print(bound.how, found[0].message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("numpy NumPy replaces compiled code"), done.stdout
    assert list(cache.iterdir()) == []


# --- the secret


def test_the_secret_is_private_and_drawn_once(cache: Path) -> None:
    first = owner_secret()
    assert len(first) == 32
    assert owner_secret() == first
    path = secret_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["cache.secret"]
    assert not path.is_relative_to(cache.parent)
    path.unlink()
    assert owner_secret() != first


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33, b"x" * 5000])
def test_a_damaged_secret_is_drawn_again(cache: Path, calls: list[str], content: bytes) -> None:
    assert load(SOURCE % 3).answer() == 3
    secret_path().write_bytes(content)
    assert load(SOURCE % 3).answer() == 3
    assert load(SOURCE % 3).answer() == 3
    assert len(calls) == 2


@pytest.mark.parametrize(
    "damage", ["read by all", "read by the group", "of another user", "a link", "a pipe", "folder"]
)
def test_a_secret_that_others_may_know_is_refused(cache: Path, tmp_path: Path, damage: str) -> None:
    if damage == "of another user" and os.geteuid():
        pytest.skip("only root can give files to another user")
    owner_secret()
    path = secret_path()
    if damage in ("read by all", "read by the group"):
        path.chmod(0o644 if damage == "read by all" else 0o640)
    elif damage == "of another user":
        os.chown(path, NOBODY, NOBODY)
    elif damage == "a link":
        path.replace(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif damage == "a pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.parent.chmod(0o755)
    with pytest.raises(
        ExposedFile, match=r"secret of compiled code .* is not used: .*; remedy: (deep5 clean|chmod 700)"
    ):
        load(SOURCE % 4)
    falls_back("secret of compiled code")
    if damage == "folder":
        path.parent.chmod(0o700)
    else:
        path.unlink()
    assert load(SOURCE % 4).answer() == 4


def test_processes_that_draw_the_secret_at_once_read_one(cache: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from deep5.core.owner_secret import owner_secret; sys.stdin.readline(); "
        "print(owner_secret().hex())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    drawn = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert drawn == {owner_secret().hex()}


def test_a_file_system_without_hard_links(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert owner_secret() == owner_secret()
    assert [each.name for each in secret_path().parent.iterdir()] == ["cache.secret"]


def test_a_user_without_a_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", none)
    falls_back(r"secret of compiled code has no place .*; remedy: set XDG_STATE_HOME")
    monkeypatch.delenv("DEEP5_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(Deep5Error, match=r"the cache has no place .*; remedy: set DEEP5_CACHE"):
        compiler.cache_folder()


# --- damage


def test_a_replaced_library_does_not_run_whatever_its_code(cache: Path, calls: list[str], tmp_path: Path) -> None:
    """Who can write an entry but does not know the secret cannot make one that is loaded."""
    assert load(SOURCE % 5).answer() == 5
    path, marker = only(cache, ".so"), tmp_path / "ran"
    evil = compiled(
        tmp_path,
        "#include <stdio.h>\n#include <stdlib.h>\n"
        f'__attribute__((constructor)) void run(void) {{ fclose(fopen("{marker}", "w")); }}\n'
        "int answer(void) { return 666; }\n",
    )
    old = path.read_bytes()[-32:]
    guessed = hmac.digest(b"", f"{path.name}\0".encode() + evil, "sha256")
    for code in (b"", old, guessed, hashlib.sha256(evil).digest(), b"\0" * 32):
        path.write_bytes(evil + code)
        assert load(SOURCE % 5).answer() == 5
    assert not marker.exists()
    assert len(calls) == 6
    # The same file does run for who knows the secret: the check above could fail.
    path.write_bytes(evil + hmac.digest(owner_secret(), f"{path.name}\0".encode() + evil, "sha256"))
    assert load(SOURCE % 5).answer() == 666
    assert marker.exists()


@pytest.mark.parametrize("as_file", [False, True])
def test_what_is_loaded_is_what_was_checked(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool
) -> None:
    """An entry that is replaced after the check has no effect."""
    assert load(SOURCE % 6).answer() == 6
    path, evil, inner = only(cache, ".so"), compiled(tmp_path, SOURCE % 666), compiler.load_copy

    def replacing(data: bytes, name: str, folder: Path, **_: Any) -> Any:
        path.write_bytes(evil)
        return inner(data, name, folder, as_file=as_file)

    monkeypatch.setattr(compiler, "load_copy", replacing)
    assert load(SOURCE % 6).answer() == 6
    assert path.read_bytes() == evil


def _swapped(cache: Path) -> None:
    first, second = sorted(cache.glob("*.so"))
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)


def _lists_swapped(cache: Path) -> None:
    first, second = sorted(cache.glob("*.includes"))
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)


def _each(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        for path in list(cache.iterdir()):
            change(path)

    return damage


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return _each(change)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": _each(lambda path: os.truncate(path, path.stat().st_size // 2)),
    "one byte less": _each(lambda path: os.truncate(path, path.stat().st_size - 1)),
    "empty": _each(lambda path: os.truncate(path, 0)),
    "a bit flipped": _each(lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])),
    "garbage": _each(lambda path: path.write_bytes(os.urandom(5000))),
    "longer": _each(lambda path: path.write_bytes(path.read_bytes() + b"!")),
    "huge": _each(lambda path: os.truncate(path, 1 << 40)),
    "swapped": _swapped,
    "lists swapped": _lists_swapped,
    "a folder": _instead(_folder),
    "a pipe": _instead(os.mkfifo),
    "a loop": _instead(lambda path: path.symlink_to(path.name)),
    "zeros without end": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a dangling link": _instead(lambda path: path.symlink_to("nothing")),
    "unreadable": _each(lambda path: path.chmod(0)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_leads_to_a_new_library(cache: Path, calls: list[str], damage: str) -> None:
    header = cache.parent.parent / "h.h"
    header.write_text("#define ANSWER 8\n")
    source = f'#include "{header}"\nint answer(void) {{ return ANSWER; }}\n'
    assert [load(SOURCE % 7).answer(), load(source).answer()] == [7, 8]
    DAMAGES[damage](cache)
    assert [load(SOURCE % 7).answer(), load(source).answer()] == [7, 8]
    rebuilt = len(calls)
    assert rebuilt == (2 if damage == "unreadable" and os.geteuid() == 0 else 4)  # root reads everything
    assert [load(SOURCE % 7).answer(), load(source).answer()] == [7, 8]
    assert len(calls) == rebuilt  # what was damaged is whole again
    assert sorted(path.suffix for path in cache.iterdir()) == [".includes"] * 2 + [".so"] * 2


def test_a_list_of_files_that_is_not_authentic_is_not_followed(
    cache: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(SOURCE % 9)
    path, read = only(cache, ".includes"), []
    inner = kernel_cache.read_bounded

    def noted(path: Any, *given: Any, **options: Any) -> bytes:
        read.append(str(path))
        return inner(path, *given, **options)

    monkeypatch.setattr(kernel_cache, "read_bounded", noted)
    for content in (b"/dev/zero\0/etc/passwd", path.read_bytes()[:32] + b"/etc/passwd", b"../../x" * 9):
        path.write_bytes(content)
        assert load(SOURCE % 9).answer() == 9
    assert {name for name in read if not name.startswith(str(cache))} == set()
    assert len(calls) == 4


@pytest.mark.parametrize("damage", ["a pipe", "zeros without end", "huge", "a folder", "gone"])
def test_an_included_file_that_became_something_else(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    """What an authentic list names is read within bounds; the compiler then says what is wrong."""
    header = tmp_path / "h.h"
    header.write_text("#define ANSWER 8\n")
    source = f'#include "{header}"\nint answer(void) {{ return ANSWER; }}\n'
    assert load(source).answer() == 8
    header.unlink()
    {
        "a pipe": lambda: os.mkfifo(header),
        "zeros without end": lambda: header.symlink_to("/dev/zero"),
        "huge": lambda: (header.touch(), os.truncate(header, 1 << 40)),
        "a folder": header.mkdir,
        "gone": lambda: None,
    }[damage]()
    monkeypatch.setattr(compiler, "_COMPILE_TIMEOUT_S", 2.0)
    resource_limit = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(Deep5Error, match=r"refused|did not finish|does not work"):
        load(source)
    assert resource.getrlimit(resource.RLIMIT_AS) == resource_limit


def test_bounds_of_reading(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="too large"):
        read_bounded(path, 4)
    (tmp_path / "link").symlink_to(path)
    assert read_bounded(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="symbolic links"):
        read_bounded(tmp_path / "link", 5, follow=False)
    for special in ("/dev/zero", tmp_path):
        with pytest.raises(OSError, match=r"regular|directory"):
            read_bounded(special, 5)
    # A file that says that it has 0 bytes, and has more.
    with pytest.raises(OSError, match="too large"):
        read_bounded("/proc/self/maps", 5)


def test_the_loader_is_not_confused_by_numbers_used_again(cache: Path) -> None:
    """Each library is loaded from the same number of a descriptor, and is another one."""
    libraries = [load(SOURCE % number) for number in range(20, 30)]
    assert [library.answer() for library in libraries] == list(range(20, 30))
    assert len({library._name for library in libraries}) == 10


@pytest.mark.parametrize("obstacle", ["no memory files", "memory is not executable"])
def test_without_memory_files_a_file_is_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    if obstacle == "no memory files":
        monkeypatch.delattr(os, "memfd_create")
    else:

        def refuse(*_: Any) -> Any:
            raise OSError("failed to map segment from shared object")

        monkeypatch.setattr(library_copy, "_from_memory", refuse)
    library = load(SOURCE % 31)
    assert library.answer() == 31
    path = Path(library._name)
    assert path.is_file()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    shutil.rmtree(path.parent)


# --- compilers that do not work


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    command = tmp_path / "cc"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("CC", str(command))


# The name after -o is the library.
_OUT = 'while [ "$1" != -o ]; do shift; done; '
REAL = compiler.compiler()
BROKEN = {
    "exits 1": ("exit 1", "does not work"),
    "crashes": ("kill -SEGV $$", "does not work"),
    "hangs": ("sleep 100", "did not finish within 1 s"),
    "a child hangs": ("sleep 100 & wait", "did not finish within 1 s"),
    "writes nothing": ("exit 0", "without a library"),
    "writes garbage": (_OUT + 'head -c 9999 /dev/urandom > "$2"', "cannot be loaded"),
    "writes text": (_OUT + 'echo hello > "$2"', "cannot be loaded"),
    "writes nothing to it": (_OUT + ': > "$2"', "cannot be loaded"),
    "writes half a library": (
        f'"{REAL}" "$@" || exit; {_OUT}head -c 4200 "$2" > "$2.half"; mv "$2.half" "$2"',
        "cannot be loaded",
    ),
    "writes another library": (
        f'{_OUT}echo "int x;" > "$2.c"; "{REAL}" -shared -o "$2" "$2.c"',
        "without its function",
    ),
    "writes a pipe": (_OUT + 'mkfifo "$2"', "without a library"),
    "writes a link": (_OUT + 'ln -s /etc/passwd "$2"', "without a library"),
    "writes a library that hangs": (
        f"{_OUT}echo '#include <unistd.h>\n__attribute__((constructor)) void f(void) {{ sleep(99); }}' > \"$2.c\"; "
        f'"{REAL}" -shared -fPIC -o "$2" "$2.c"',
        "cannot be loaded: a process that did so did not finish",
    ),
    "writes a library that crashes": (
        f"{_OUT}echo '__attribute__((constructor)) void f(void) {{ *(volatile int *)0 = 1; }}' > \"$2.c\"; "
        f'"{REAL}" -shared -fPIC -o "$2" "$2.c"',
        "cannot be loaded: a process that did so was killed by SIGSEGV",
    ),
    "no program": (None, "cannot be started"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_compiler_is_replaced_by_numpy(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    script, match = BROKEN[broken]
    fake(tmp_path, monkeypatch, script or "")
    if script is None:
        (tmp_path / "cc").write_bytes(b"\x7fELF no program")
    monkeypatch.setattr(compiler, "_COMPILE_TIMEOUT_S", 1 if "hangs" in broken else 60)
    monkeypatch.setattr(compiler, "_LOAD_TIMEOUT_S", 1.0)
    falls_back(match)
    assert list(cache.iterdir()) == []  # nothing broken is kept
    assert not d5.check_optimizer(d5.SGD())
    monkeypatch.delenv("CC")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bound().how == "c"


def test_a_cached_library_needs_no_compiler_that_works(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, f'exec "{REAL}" "$@"')
    stamp = (tmp_path / "cc").stat()
    assert load(SOURCE % 32).answer() == 32
    text = (tmp_path / "cc").read_text()
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1".ljust(len(text)))
    os.utime(tmp_path / "cc", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load(SOURCE % 32).answer() == 32


def test_a_source_with_a_fault_is_not_blamed_on_the_compiler(cache: Path) -> None:
    with pytest.raises(compiler.CompilerRefusal, match="refused the generated kernel"):
        load("this is not C")


# --- disks


# What a process of a user does, and prints.
PROGRAM = """
import resource, sys, warnings
import deep5 as d5
from deep5.core.tensors import TensorSpec
if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    bound = d5.bind_rule(d5.SGD(0.5), {"w": TensorSpec(shape=(2,), dtype="float64")})
print(bound.how, *[each.message for each in found])
"""


def printed(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_that_cannot_grow(cache: Path) -> None:
    said = printed(sys.executable, "-c", PROGRAM, "limited")
    assert said.startswith("numpy NumPy replaces compiled code")
    assert "remedy: make room" in said
    assert printed(sys.executable, "-c", PROGRAM) == "c\n"


@as_root
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_real_disk_that_is_full_or_read_only(cache: Path, tmp_path: Path, kind: str, warm: bool) -> None:
    """The rule runs in NumPy; what is in the cache is still loaded."""
    unshare = shutil.which("unshare") or ""
    if (
        not unshare
        or subprocess.run(
            [unshare, "-m", "mount", "-t", "tmpfs", "none", str(tmp_path)],
            capture_output=True,
            timeout=60,
            check=False,
        ).returncode
    ):
        pytest.skip("this machine mounts nothing")
    before = tmp_path / "before"
    cache.mkdir(parents=True)
    if warm:
        assert bound().how == "c"
    shutil.copytree(cache, before)
    end = f'dd if=/dev/zero of="{cache}/rest" 2>/dev/null' if kind == "full" else f'mount -o remount,ro "{cache}"'
    script = (
        f'mount -t tmpfs -o size=300k,mode=700 none "{cache}" && cp -a "{before}/." "{cache}" && {{ {end}; }}; '
        'exec "$0" -c "$1"'
    )
    said = printed(unshare, "-m", "sh", "-c", script, sys.executable, PROGRAM)
    if warm:
        assert said == "c\n"
    else:
        assert said.startswith("numpy NumPy replaces compiled code")
        assert ("No space left" if kind == "full" else "Read-only file system") in said
