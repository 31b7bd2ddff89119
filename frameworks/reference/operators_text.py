"""Operators on strings."""

from __future__ import annotations

import re
import warnings
from functools import partial

import numpy as np
import onnx_ir as ir

from deep5.core.errors import brief
from deep5.frameworks.reference.kernels import text
from deep5.frameworks.reference.table import Call, Operator, Site, first, plain
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]

# The result has a count for each index.
_MOST_PLACES = 1 << 28


def _full_match(site: Site) -> Call:
    pattern = re.compile(site.attribute("pattern"), re.ASCII)
    return Call(partial(text.full_match, pattern=pattern), (0,))


def _full_match_refusal(node: ir.Node) -> str | None:
    """Why a pattern cannot run: Python's and RE2's regular expressions differ."""
    pattern = attribute(node, "pattern")
    if pattern is None:
        return "got no pattern; allowed: a regular expression"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for syntax whose meaning may change, such as [[:alpha:]]
            re.compile(pattern, re.ASCII)
    except (re.error, FutureWarning, DeprecationWarning, RecursionError, OverflowError) as error:
        return f"got the pattern {brief(pattern)} ({error}); allowed: what Python and RE2 both read"
    only_here = re.search(r"\(\?(?:[=!>]|<[=!]|P=|\()|\\[1-9]|[*+?}]\+", pattern)
    if only_here is not None:
        return f"got the pattern {brief(pattern)} with {only_here[0]!r}, which RE2 has not"
    return None


def _split(site: Site) -> Call:
    function = partial(text.split_texts, delimiter=site.attribute("delimiter", ""), most=site.attribute("maxsplit"))
    return Call(first(function, site.outputs), (0,))


def _split_refusal(node: ir.Node) -> str | None:
    most = attribute(node, "maxsplit", 0)
    return None if most >= 0 else f"got maxsplit={most}; allowed: at least 0"


def _normalize(site: Site) -> Call:
    function = partial(
        text.normalize,
        stopwords=tuple(site.attribute("stopwords", ())),
        case_sensitive=bool(site.attribute("is_case_sensitive", 0)),
        change=site.attribute("case_change_action", "NONE"),
    )
    return Call(function, (0,))


def _normalize_refusal(node: ir.Node) -> str | None:
    change, allowed = attribute(node, "case_change_action", "NONE"), ("LOWER", "UPPER", "NONE")
    return None if change in allowed else f"got case_change_action={change!r}; allowed: {', '.join(allowed)}"


def _count_grams(site: Site) -> Call:
    pool = site.attribute("pool_int64s") or site.attribute("pool_strings") or ()
    starts, places = site.attribute("ngram_counts"), site.attribute("ngram_indexes")
    shortest, longest = site.attribute("min_gram_length"), site.attribute("max_gram_length")
    numbered: dict[tuple[int | str, ...], int] = {}
    number = 0
    for length, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), start=1):
        for at in range(begin, end, length):
            numbered[tuple(pool[at : at + length])] = places[number]
            number += 1
    mode, weights = site.attribute("mode"), np.ones(max(places) + 1, np.float32)
    if mode != "TF" and (given := site.attribute("weights")) is not None:
        weights[list(places)] = given
    grams = text.Grams(
        places=numbered,
        weights=weights,
        lengths=range(shortest, longest + 1),
        skips=site.attribute("max_skip_count"),
        once=mode == "IDF",
    )
    return Call(partial(text.count_grams, grams=grams), (0,))


def _count_grams_refusal(node: ir.Node) -> str | None:
    mode = attribute(node, "mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        return f"got mode={mode!r}; allowed: TF, IDF, TFIDF"
    pools = [name for name in ("pool_int64s", "pool_strings") if attribute(node, name)]
    starts, places = attribute(node, "ngram_counts"), attribute(node, "ngram_indexes")
    if places and max(places) > _MOST_PLACES:
        return f"got the index {max(places)} in ngram_indexes; allowed: at most {_MOST_PLACES}"
    if len(pools) != 1 or not places or min(places) < 0:
        return f"got {' and '.join(pools) or 'no pool'} and {len(places)} ngram_indexes; allowed: one pool, and indexes"
    ends = [*starts[1:], len(attribute(node, pools[0]))]
    held = [(end - begin, length) for length, (begin, end) in enumerate(zip(starts, ends, strict=True), start=1)]
    if any(count < 0 or count % length for count, length in held):
        return f"got ngram_counts={list(starts)} for a pool of {ends[-1]}; allowed: where n-grams of each length begin"
    if sum(count // length for count, length in held) != len(places):
        return f"got {len(places)} ngram_indexes; allowed: one for each n-gram in the pool"
    weights = attribute(node, "weights")
    if weights is not None and len(weights) != len(places):
        return f"got {len(weights)} weights; allowed: {len(places)}, one for each n-gram in the pool"
    if attribute(node, "min_gram_length") < 1:
        return f"got min_gram_length={attribute(node, 'min_gram_length')}; allowed: at least 1"
    return None


OPERATORS: dict[str, Operator] = {
    "RegexFullMatch": Operator(_full_match, refusal=_full_match_refusal),
    "StringConcat": plain(text.concatenate),
    "StringNormalizer": Operator(_normalize, refusal=_normalize_refusal),
    "StringSplit": Operator(_split, refusal=_split_refusal),
    "TfIdfVectorizer": Operator(_count_grams, refusal=_count_grams_refusal),
}
