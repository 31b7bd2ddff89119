"""Strings that take long or fill the memory: refused by name, within seconds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, RunFailed, Unsupported
from deep5.core.tensors import to_numpy
from deep5.frameworks.reference.kernels import matching, text

HEAD = '<ir_version: 9, opset_import: ["": 20]> '


def run(body: str, inputs: str, outputs: str, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    network = d5.Network.from_onnx(onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}"))
    found = d5.framework("reference").executor(network).inference(feed)
    return {name: value if isinstance(value, np.ndarray) else to_numpy(value) for name, value in found.items()}


def strings(*given: str) -> np.ndarray:
    return np.array(given, object)


BOMBS = {
    "nested": ("(a+)+b", "a" * 60),
    "alternatives": ("(a|aa)+$", "a" * 80 + "b"),
    "optional": ("a?" * 40 + "a" * 40, "a" * 40),
    "polynomial": ("a*a*a*a*a*a*a*b", "a" * 3000),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_search_without_end_is_ended(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, given = BOMBS[what]
    monkeypatch.setattr(matching, "_LIMIT_S", 1.0)
    with pytest.raises(RunFailed, match=r"RegexFullMatch: the search for .* characters .*; allowed: .*; remedy: a pat"):
        run(f'y = RegexFullMatch <pattern = "{pattern}"> (x)', "string[1] x", "bool[1] y", {"x": strings(given)})


def test_a_search_in_another_process_gives_the_same() -> None:
    given = strings("a" * 15 + "b", "a" * 20, "ab", "")
    found = run('y = RegexFullMatch <pattern = "(a+)+b"> (x)', "string[4] x", "bool[4] y", {"x": given})["y"]
    assert found.tolist() == [True, False, True, False]
    assert matching._most_steps("(a+)+b", given.tolist()) > matching._FEW_STEPS
    assert matching._most_steps("[a-z]+@[a-z]+", ["someone@somewhere"]) < matching._FEW_STEPS


def test_a_pattern_nested_too_deeply_is_refused() -> None:
    pattern = "(" * 5000 + "a" + ")" * 5000
    with pytest.raises(Unsupported, match=r"got the pattern '\(\(\("):
        run(f'y = RegexFullMatch <pattern = "{pattern}"> (x)', "string[1] x", "bool[1] y", {"x": strings("a")})


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "feed", "operator"),
    [
        (
            "y = StringConcat (x, z)", "string[N, 1] x, string[1, M] z", "string[N, M] y",
            {"x": np.full((30_000, 1), "a", object), "z": np.full((1, 30_000), "b", object)}, "StringConcat",
        ),
        (
            'y, n = StringSplit <delimiter = ","> (x)', "string[K] x", "string[K, N] y, int64[K] n",
            {"x": strings("," * 200_000, *["a"] * 20_000)}, "StringSplit",
        ),
    ],
)  # fmt: skip
def test_strings_that_fill_the_memory_are_refused(
    body: str, inputs: str, outputs: str, feed: dict[str, np.ndarray], operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "available_bytes", lambda: 4 << 30)
    with pytest.raises(NetworkError, match=rf"{operator}: the strings take .* bytes; allowed: 1\.1e\+09, a quarter"):
        run(body, inputs, outputs, feed)


def test_n_grams_longer_than_the_row_take_no_time() -> None:
    """The counts are those of a direct enumeration."""
    body = """y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = {longest},
        max_skip_count = {skips}, ngram_counts = [0, 2], ngram_indexes = [0, 1, 2], pool_int64s = [1, 2, 1, 2]> (x)"""
    x = np.array([1, 5, 2, 1, 2, 2])
    largest = (1 << 31) - 1
    found = [
        run(body.format(longest=longest, skips=skips), "int64[6] x", "float[3] y", {"x": x})["y"].tolist()
        for longest, skips in ((2, 4), (largest, largest))
    ]
    pairs = sum(x[i] == 1 and x[i + step] == 2 for step in range(1, 6) for i in range(6 - step))
    assert found == [[2, 3, pairs]] * 2


def test_an_index_of_an_n_gram_beyond_memory_is_refused() -> None:
    body = """y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
        ngram_counts = [0], ngram_indexes = [0, 8589934592], pool_int64s = [1, 2]> (x)"""
    with pytest.raises(Unsupported, match="got the index 8589934592 in ngram_indexes; allowed: at most"):
        run(body, "int64[6] x", "float[M] y", {"x": np.arange(6)})
