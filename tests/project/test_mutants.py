"""The planted faults of `tests/mutants.txt`: the list is valid, and the tests catch a sample of them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from mutants import LIST, ROOT, Mutant, chosen, parse, run

SUITES = (
    *("operator_jax", "operator_pytorch", "operator_tensorflow", "operator_engines"),
    *("jax", "pytorch", "tensorflow", "kernel_cache", "generation"),
)


def listed() -> list[Mutant]:
    return parse(LIST.read_text(encoding="utf-8"))


def test_every_fault_fits_the_code_and_names_tests_that_there_are() -> None:
    for mutant in listed():
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.applied(text) != text
        if mutant.file.endswith(".py"):
            ast.parse(mutant.applied(text))
        for test in mutant.tests:
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name.partition("[")[0] in functions, test


def test_every_suite_has_at_least_five_faults() -> None:
    counts = Counter(mutant.suite for mutant in listed())
    assert counts.keys() == set(SUITES)
    assert min(counts.values()) >= 5


BLOCK = "fault: wrong\nsuite: one\nfile: deep5/core/memo.py\ntest: tests/core/test_core.py::test\n-before\n+after\n"


def test_the_format_is_checked() -> None:
    (mutant,) = parse(f"# a comment\n\n{BLOCK}\n")
    assert mutant.applied("before\nlast\n") == "after\nlast\n"
    for text, message in (
        (BLOCK.replace("suite: one\n", ""), "allowed: one fault, suite and file"),
        (BLOCK.replace("-before\n", ""), "allowed: one fault, suite and file"),
        (BLOCK + "reason: none\n", "got the line 'reason: none'; allowed: fault, suite, file, test"),
    ):
        with pytest.raises(ValueError, match=message):
            parse(text)
    for text in ("nothing\n", "before\nbefore\n"):
        with pytest.raises(ValueError, match=r"occurs \d times in deep5/core/memo.py; allowed: once; remedy: write"):
            mutant.applied(text)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_sample_of_the_faults_is_caught(tmp_path: Path, seed: int) -> None:
    mutants = chosen(listed(), (), 3, seed)
    assert run(mutants, tmp_path, lambda line: None) == []


@pytest.mark.slow
def test_an_edit_that_changes_nothing_is_not_caught(tmp_path: Path) -> None:
    (harmless,) = parse(
        BLOCK.replace("deep5/core/memo.py", "tests/core/test_core.py")
        .replace("tests/core/test_core.py::test", "tests/project/test_mutants.py::test_the_format_is_checked")
        .replace("-before", "-from __future__ import annotations")
        .replace("+after", "+from __future__ import annotations")
    )
    assert run([harmless], tmp_path, lambda line: None) == [harmless]
