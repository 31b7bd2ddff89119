"""The docstrings of the standard library: read without executing, the same each time, no test paragraph in training."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deep5.core.errors import UsageError
from deep5.training.datasets import library_docstrings
from deep5.training.datasets.library_docstrings import docstrings, documents, held_out, without_repetitions

SETTINGS: dict[str, dict[str, Any]] = {
    "characters": {},
    "bytes": {"tokens": "bytes"},
    "byte_pairs": {"tokens": "byte_pairs", "vocabulary_size": 300, "length": 64},
    "words": {"tokens": "words", "vocabulary_size": 2000},
}


def content(part: Any, vocabulary: list[str]) -> str:
    return "".join(vocabulary[number] for number in part.batch(np.arange(len(part)))["input"].reshape(-1))


def test_documents_are_the_docstrings_that_python_reads() -> None:
    """Compared with what an import gives: `inspect.cleandoc` of `__doc__`."""
    import argparse
    import inspect
    import pydoc_data.topics

    found = documents()
    assert found["argparse"].startswith(inspect.cleandoc(argparse.__doc__))
    for part in (argparse.ArgumentParser, argparse.ArgumentParser.add_argument, argparse.Namespace):
        assert part.__doc__ is not None
        assert inspect.cleandoc(part.__doc__) in found["argparse"]
    topics = {name.removeprefix("topic "): text for name, text in found.items() if name.startswith("topic ")}
    assert topics == pydoc_data.topics.topics
    assert not {name for name in found if name.split(".")[0] in ("test", "idlelib", "lib2to3", "site-packages")}
    assert 1_500_000 < sum(map(len, found.values())) < 4_000_000


def test_no_module_is_imported() -> None:
    program = (
        "import sys; from deep5.training.datasets.library_docstrings import documents\n"
        "documents(); print([name for name in ('antigravity', 'this', 'tkinter', 'turtle', 'pydoc_data') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_order_of_a_modules_docstrings() -> None:
    source = '"""one"""\nif x:\n    class A:\n        """two"""\n        def f(self):\n            """three"""\n'
    source += 'else:\n    def g():\n        """four"""\ntry:\n    def h(): "five"\nexcept E:\n    def h(): "six"\n'
    assert list(library_docstrings._docstrings_of(ast.parse(source))) == ["one", "two", "three", "four", "five", "six"]


def test_whole_documents_are_held_out() -> None:
    splits = docstrings()
    vocabulary = splits.description["vocabulary"]
    train, test = (content(part, vocabulary) for part in (splits.train, splits.test))
    names = documents()
    counts = splits.description["documents"]
    assert counts["test"] == sum(held_out(name, 0.1) for name in names)
    assert counts["train"] + counts["test"] == len(names)
    assert 0.05 < len(test) / (len(train) + len(test)) < 0.2
    # No long paragraph of the test part is in the training part, nor twice in any.
    bare = [[" ".join(piece.split()) for piece in part.split("\n\n")] for part in (train, test)]
    long = [[piece for piece in part if len(piece) >= 64] for part in bare]
    assert len(long[1]) > 200
    assert not set(long[0]) & set(long[1])
    for part in long:
        assert len(set(part)) == len(part)
    assert held_out("argparse", 1 - 1e-12)
    assert not held_out("argparse", 1e-12)


def test_repetitions_are_found_whatever_their_indentation() -> None:
    long = "    A paragraph of more than sixty-four characters,\n    which is indented here and not there."
    again = " ".join(long.split())
    assert without_repetitions([[long, "Note."], [f"{again}\n\nNote.", again]]) == [f"{long}\n\nNote.\n\n", "Note.\n\n"]
    assert without_repetitions([["a\n \n\nb", ""]]) == ["a\n\nb\n\n"]


@pytest.mark.parametrize("tokens", SETTINGS)
def test_another_process_reads_the_same(tokens: str) -> None:
    program = (
        "import json, sys; import deep5 as d5\n"
        "data = d5.datasets.docstrings(**json.loads(sys.argv[1]))\n"
        "print(data.split_hash, data.train.content_hash(), data.test.content_hash())"
    )
    own = docstrings(**SETTINGS[tokens])
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(SETTINGS[tokens])],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert done.stdout.split() == [own.split_hash, own.train.content_hash(), own.test.content_hash()]
    assert str(own.train.specs["label"]) == f"int64[{SETTINGS[tokens].get('length', 128)}]"


def test_the_hashes_cover_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    before, other_share = docstrings(), docstrings(test_share=0.2)
    description = before.description
    assert description["content_sha256"] == other_share.description["content_sha256"]
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}." in description["source"]
    assert "PSF" in description["license"]
    assert other_share.split_hash != before.split_hash
    changed = {**documents(), "argparse": documents()["argparse"].replace("command", "commanD")}
    monkeypatch.setattr(library_docstrings, "documents", lambda: changed)
    after = docstrings()
    # As many characters, another text.
    assert after.description["token_counts"] == description["token_counts"]
    assert after.description["content_sha256"] != description["content_sha256"]
    assert after.split_hash != before.split_hash


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the standard library's."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    documents.cache_clear()
    yield tmp_path
    documents.cache_clear()


def test_a_library_without_sources(library: Path) -> None:
    with pytest.raises(UsageError, match=r"does not hold the source files of Python's standard library; .*remedy"):
        docstrings()
    (library / "argparse.py").write_text('"""Arguments."""')
    (library / "pydoc_data").mkdir()
    (library / "pydoc_data" / "topics.py").write_text("topics = dict(open)")
    with pytest.raises(UsageError, match=r"does not hold the source files"):
        docstrings()
    (library / "broken.py").write_text("def")
    with pytest.raises(UsageError, match=r"broken\.py cannot be read \(.*remedy: a complete installation"):
        docstrings()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": "letters"}, r"docstrings with tokens 'letters'; allowed: .*'byte_pairs'"),
        ({"tokens": "byte_pairs"}, r"vocabulary_size None and tokens 'byte_pairs'; .*remedy: vocabulary_size=1024"),
        ({"tokens": "bytes", "vocabulary_size": 9}, r"vocabulary_size 9 and tokens 'bytes'"),
        ({"length": 0}, r"length 0; allowed"),
        ({"length": 10**9}, r"the training part has \d+ characters; allowed: at least 1000000001"),
        ({"test_share": 0}, r"test_share 0; allowed"),
        ({"limit": 10**9}, r"limit 1000000000; allowed"),
        ({"test_limit": 0}, r"test_limit 0; allowed"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        docstrings(**arguments)
