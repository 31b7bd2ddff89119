"""The kernel cache: by content, complete or recompiled, shared by processes; and machines without a compiler."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import compiler, kernel_cache
from deep5.core.errors import Deep5Error
from deep5.core.events import StepInfo
from deep5.core.tensors import TensorSpec

SOURCE = "int answer(void) { return %d; }\n"


def load(source: str) -> Any:
    """Load a library as a process does that has not loaded it before."""
    compiler._LOADED.clear()
    return compiler.load_library(source)


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


def test_the_cache_is_by_content(cache: Path, calls: list[str]) -> None:
    first = compiler.load_library(SOURCE % 1)
    assert first.answer() == 1
    assert compiler.load_library(SOURCE % 1) is first  # one set of static variables in a process
    assert load(SOURCE % 1).answer() == 1
    assert calls == [SOURCE % 1]
    assert load(SOURCE % 2).answer() == 2
    assert calls == [SOURCE % 1, SOURCE % 2]
    assert len(libraries(cache)) == 2
    assert sorted(path.suffix for path in cache.iterdir()) == [".includes"] * 2 + [".so"] * 2


def test_flags_and_processor_are_part_of_the_key(
    cache: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.load_library(SOURCE % 3)
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-DOTHER"))
    compiler.load_library(SOURCE % 3)
    monkeypatch.setattr(compiler, "_machine", lambda: "another processor")
    compiler.load_library(SOURCE % 3)
    assert len(calls) == len(libraries(cache)) == 3


@pytest.mark.parametrize("missing", [".includes", ".so"])
def test_a_library_whose_writing_was_interrupted_is_compiled_again(cache: Path, calls: list[str], missing: str) -> None:
    source = SOURCE % (200 + len(missing))
    compiler.load_library(source)
    (gone,) = cache.glob(f"*{missing}")
    gone.unlink()
    assert load(source).answer() == 200 + len(missing)
    assert len(calls) == 2
    assert sorted(path.suffix for path in cache.iterdir()) == [".includes", ".so"]


def test_a_file_that_is_included_is_part_of_the_key(cache: Path, calls: list[str], tmp_path: Path) -> None:
    header = tmp_path / "of mine.h"
    source = f'#include "{header}"\nint answer(void) {{ return ANSWER; }}\n'
    for answer in (1, 2, 1):
        header.write_text(f"#define ANSWER {answer}\n")
        assert load(source).answer() == answer
    assert len(calls) == 2  # the first is still there
    assert len(libraries(cache)) == 2


def test_two_processes_at_once(cache: Path) -> None:
    program = (
        "import sys; sys.stdin.readline()\n"
        "from deep5.core.compiler import load_library\n"
        f"print(load_library({SOURCE % 7!r}).answer())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["7", "7"]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(path.suffix for path in cache.iterdir()) == [".includes", ".so"]  # nothing temporary


def test_a_compile_within_the_writing_of_another_leaves_what_loads(
    cache: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes at once with different compiler output: the second ends between two files of the first."""
    source, inner, within = "const char *compiled(void) { return __DATE__; }\n", kernel_cache.write_atomically, []

    def compiled() -> str:
        function = load(source).compiled
        function.restype = ctypes.c_char_p
        return function().decode()  # type: ignore[no-any-return]  # what ctypes gives has any type

    def interleaved(path: Path, data: bytes) -> None:
        inner(path, data)
        if path.suffix == ".so" and not within:
            within.append("")
            monkeypatch.setenv("SOURCE_DATE_EPOCH", str(86400))
            within.append(compiled())

    monkeypatch.setattr(kernel_cache, "write_atomically", interleaved)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    third, again = compiled(), compiled()
    assert calls == [source] * 2
    assert within[1] == "Jan  2 1970"
    assert {third, again} <= {"Jan  1 1970", "Jan  2 1970"}
    assert sorted(path.suffix for path in cache.iterdir()) == [".includes", ".so"]


def test_clear_cache_says_how_much_it_freed(cache: Path) -> None:
    assert compiler.clear_cache() == 0
    compiler.load_library(SOURCE % 8)
    size = sum(path.stat().st_size for path in cache.iterdir())
    other = cache / "notes.txt"
    other.write_text("mine")
    assert compiler.clear_cache() == size > 0
    assert list(cache.iterdir()) == [other]


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", "/somewhere")
    assert compiler.cache_folder() == Path("/somewhere")
    monkeypatch.delenv("DEEP5_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert compiler.cache_folder() == Path("/xdg/deep5")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/nobody")
    assert compiler.cache_folder() == Path("/home/nobody/.cache/deep5")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("a file where the folder should be")
    monkeypatch.setenv("DEEP5_CACHE", str(file))
    with pytest.raises(
        Deep5Error, match=r"the kernel cache .*file/kernels cannot be written \(Not a directory\); remedy"
    ):
        compiler.load_library(SOURCE % 9)


def test_source_that_the_compiler_refuses(cache: Path) -> None:
    with pytest.raises(Deep5Error, match=r"refused the generated kernel:\n[\s\S]*error"):
        compiler.load_library("this is not C")
    assert list(cache.iterdir()) == []


def test_a_compiler_that_hangs_or_cannot_start(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "cc"
    command.write_text("#!/bin/sh\nsleep 10\n")
    command.chmod(0o755)
    monkeypatch.setenv("CC", str(command))
    monkeypatch.setattr(compiler, "_COMPILE_TIMEOUT_S", 0.1)
    for _ in range(2):  # the second time at once
        with pytest.raises(
            Deep5Error, match=r"cc did not finish within 0\.1 s; .* does not start it again; remedy: set"
        ):
            compiler.load_library(SOURCE % 11)
    compiler._GIVEN_UP.clear()
    monkeypatch.setattr(compiler, "_COMPILE_TIMEOUT_S", 60)
    command.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(Deep5Error, match=r"cc does not work:\n\(no output; exited with status 3\)\nremedy: set CC"):
        compiler.load_library(SOURCE % 13)
    command.write_text("#!/no/such/interpreter\n")
    with pytest.raises(Deep5Error, match=r"the compiler .*cc cannot be started \(.*\); remedy: set CC"):
        compiler.load_library(SOURCE % 12)


def test_without_a_compiler_the_rule_runs_in_numpy_and_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert compiler.compiler() is None
    kernel = d5.bind_rule(d5.SGD(0.5), {"w": TensorSpec(shape=(2,), dtype="float64")})
    assert kernel.how == "numpy"
    live = np.ones(2)
    kernel.attach({"w": live})
    kernel.update({"w": np.ones(2)}, StepInfo(batch_size=1))
    assert live.tolist() == [0.5, 0.5]
    executor = d5.framework("reference").executor(d5.networks.mlp(features=2, hidden=2, classes=2))
    assert executor.train_step(d5.SGD()).how == "numpy"  # type: ignore[attr-defined]
    d5.check_optimizer(d5.Momentum())
    assert not cache.exists()
    with pytest.raises(Deep5Error, match="no C compiler on this machine; remedy: install gcc or clang, or set CC"):
        compiler.load_library(SOURCE % 13)


def test_cc_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "mycc"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setenv("CC", str(command))
    assert compiler.compiler() == str(command)
    monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    assert os.path.basename(compiler.compiler() or "") in ("cc", "gcc", "clang")  # noqa: PTH119 - a name, no path


ODD_NAMES = (
    *(b"a b", b" a ", b"a#b", b"#", b"a$b", b"a$$b", b"a\\b", b"a\\", b"a\\\\", b"a\\ b", b"a\\\\ b", b"a\\#b", b"a%b"),
    *(b"a:b", b"a: b", b"a:", b"a;b", b"a'b", b"a*?[b]", b"~", b"a=b", b"a|b", b"a\xffb", "é\u00a0é".encode(), b"a\rb"),
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_included_file_in_a_folder_with_any_name_is_part_of_the_key(
    cache: Path, calls: list[str], tmp_path: Path, name: bytes
) -> None:
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    source = '#include "f.h"\nint answer(void) { return ANSWER; }\n'
    for answer in (1, 2, 1):
        (folder / "f.h").write_text(f"#define ANSWER {answer}\n")
        compiler._LOADED.clear()
        assert compiler.load_library(source, include=(folder,)).answer() == answer
    # The first is still there. Clang does not write backslashes.
    assert len(calls) == 2 or b"\\" in name


def test_the_cache_itself_is_in_a_folder_with_an_odd_name(
    cache: Path, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate((b"a: b", b"a#$b", b"a\xffb")):
        monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / os.fsdecode(name)))
        for _ in range(2):
            assert load(SOURCE % (300 + number)).answer() == 300 + number
        assert len(calls) == number + 1


def test_without_the_name_of_an_included_file_nothing_is_stored(cache: Path, calls: list[str], tmp_path: Path) -> None:
    """No compiler escapes a line feed."""
    folder = tmp_path / "a\nb"
    folder.mkdir()
    source = '#include "f.h"\nint answer(void) { return ANSWER; }\n'
    for answer in (1, 2):
        (folder / "f.h").write_text(f"#define ANSWER {answer}\n")
        compiler._LOADED.clear()
        assert compiler.load_library(source, include=(folder,)).answer() == answer
    assert list(cache.iterdir()) == []


RULES = {
    "missing": None,
    "no rule": b"nothing\n",
    "empty": b"",
    "not the source": b"kernel.so: /dev/null\n",
    "only the target": b"kernel.so:\n",
    "not UTF-8": b"kernel.so: %s /tmp/\xff\xfe.h\n",
    "NUL": b"kernel.so: %s /tmp/a\0b.h\n",
    "a folder": b"kernel.so: %s /tmp\n",
    "a device": b"kernel.so: %s /dev/null\n",
    "long name": b"kernel.so: %s /" + b"n" * 10000 + b"\n",
    "two rules": b"kernel.so: %s\nb: c\n",
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_whatever_a_compiler_writes_as_rules_nothing_incomplete_is_stored(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: bytes | None
) -> None:
    inner = compiler._call_compiler

    def wrong(call: list[str], code: Path, built: Path, *rest: Any) -> None:
        inner(call, code, built, *rest)
        if rules is None:
            built.with_suffix(".d").unlink()
        else:
            built.with_suffix(".d").write_bytes(rules.replace(b"%s", os.fsencode(code)))

    monkeypatch.setattr(compiler, "_call_compiler", wrong)
    assert load(SOURCE % 14).answer() == 14
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "large"])
def test_rules_that_cannot_be_read_are_the_compilers_fault(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    inner = compiler._call_compiler

    def wrong(call: list[str], code: Path, built: Path, *rest: Any) -> None:
        inner(call, code, built, *rest)
        rules = built.with_suffix(".d")
        rules.unlink()
        if kind == "folder":
            rules.mkdir()
        elif kind == "pipe":
            os.mkfifo(rules)
        elif kind == "link":
            rules.symlink_to("/etc/passwd")
        elif kind == "large":
            rules.touch()
            os.truncate(rules, 10 << 30)

    monkeypatch.setattr(compiler, "_call_compiler", wrong)
    said = r"compiled trial without a list of the files that it includes \(.+\); remedy: set CC to a compiler"
    with pytest.warns(compiler.CompilerWarning, match=f"NumPy replaces compiled code, more slowly: .*{said}"):
        assert compiler.optional_library(SOURCE % 15, what="trial", functions=("answer",)) is None
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_what_a_compiler_prints_without_end_is_cut_in_the_message(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    command = tmp_path / "cc"
    monkeypatch.setenv("CC", str(command))
    command.write_text(f"#!/bin/sh\nyes 'k.c:1:1: error: bad' {stream}\n")
    command.chmod(0o755)
    said = r"does not work:\n.*bad\n(k.*bad\n)+\(\d+ bytes left out\)\n(k.*bad\n)+.*\n\(.*cc printed more than 64 MiB\)"
    with pytest.raises(Deep5Error, match=said) as found:
        compiler.load_library(SOURCE % 16)
    assert len(str(found.value)) < 5000
    # A source at fault: one that works is compiled.
    command.write_text(
        '#!/bin/sh\ncase "$*" in *trial*) touch "$4"; exit 0; esac\n'
        f"(yes 1: | head -c 8000000 | tr -d '\\n'; echo; echo last) {stream}; exit 1\n"
    )
    with pytest.raises(compiler.CompilerRefusal, match=r"(?s)refused the generated kernel:\n1.*last$") as refused:
        compiler.load_library(SOURCE % 16)
    assert len(str(refused.value)) < 5000
    assert len(refused.value.output) < 300_000


def test_a_source_that_utf_8_cannot_hold(cache: Path) -> None:
    with pytest.raises(
        Deep5Error, match=r"the generated kernel: UTF-8 has no '\\ud800', the character 3 of its source"
    ):
        compiler.load_library("// \ud800")
