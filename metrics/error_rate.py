"""Edit errors of token sequences: substitutions, insertions and deletions, the parts of every error rate."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from deep5.core.errors import ShapeError
from deep5.core.plugins import missing_dependency

__all__ = ["ErrorCounts", "count_errors"]


@dataclass(frozen=True, kw_only=True)
class ErrorCounts:
    """Errors of hypotheses, by the alignment with their references that has the fewest.

    Attributes:
        substitutions: Tokens of references that hypotheses replace.
        insertions: Tokens of hypotheses that references do not have.
        deletions: Tokens of references that hypotheses leave out.
        reference_tokens: Tokens of all references.
        wrong_sequences: Hypotheses that differ from their reference.
        sequences: Number of references.

    >>> one, other = count_errors(["kitten"], ["sitting"]), count_errors(["abc"], ["abc"])
    >>> both = one + other
    >>> both.error_rate, both.sequence_error_rate  # three of nine tokens, one of two sequences
    (33.333333333333336, 50.0)
    """

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    reference_tokens: int = 0
    wrong_sequences: int = 0
    sequences: int = 0

    @property
    def errors(self) -> int:
        """The edit distance, summed over all sequences."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def error_rate(self) -> float | None:
        """Errors in percent of the references' tokens, over 100 if insertions are many; None without such a token.

        Tokens that are words make it the word error rate, characters, phonemes or labels that of their kind.
        """
        return 100.0 * self.errors / self.reference_tokens if self.reference_tokens else None

    @property
    def sequence_error_rate(self) -> float | None:
        """Percentage of the sequences with at least one error; None without a sequence."""
        return 100.0 * self.wrong_sequences / self.sequences if self.sequences else None

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        """The counts of both."""
        return ErrorCounts(**{name: count + getattr(other, name) for name, count in vars(self).items()})


def count_errors(references: Iterable[Sequence[Hashable]], hypotheses: Iterable[Sequence[Hashable]]) -> ErrorCounts:
    """Count the errors of hypotheses, summed over all pairs, each aligned with the fewest errors.

    Of several alignments with equally few errors, which differ in the kinds of errors, rapidfuzz's is taken.

    Args:
        references: Sequences of tokens: strings, lists of words, lists of integers.
        hypotheses: As many sequences, in the same order.

    Raises:
        ShapeError: Their numbers differ.
        MissingDependency: `rapidfuzz` is not installed.

    References:
        Levenshtein, Binary codes capable of correcting deletions, insertions, and reversals, Soviet Physics Doklady
        10(8), 1966.

    >>> count_errors([["to", "be"], ["or"]], [["to", "bee"], ["or", "not"]])
    ErrorCounts(substitutions=1, insertions=1, deletions=0, reference_tokens=3, wrong_sequences=2, sequences=2)
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ModuleNotFoundError as error:
        raise missing_dependency("an error rate", error) from error
    expected, found = list(references), list(hypotheses)
    if len(expected) != len(found):
        raise ShapeError(
            f"count_errors got {len(expected)} references and {len(found)} hypotheses; allowed: equal numbers, each a "
            "sequence of tokens; remedy: [reference], [hypothesis] for a single pair of lists of words"
        )
    kinds = {"replace": 0, "insert": 0, "delete": 0}
    wrong = 0
    for reference, hypothesis in zip(expected, found, strict=True):
        # rapidfuzz compares hashes, which may be equal for different tokens (-1 and -2); small integers are their own.
        ids: dict[Hashable, int] = {}
        one, other = ([ids.setdefault(token, len(ids)) for token in each] for each in (reference, hypothesis))
        edits = Levenshtein.editops(one, other)
        for edit in edits:
            kinds[edit.tag] += 1
        wrong += bool(len(edits))
    return ErrorCounts(
        substitutions=kinds["replace"],
        insertions=kinds["insert"],
        deletions=kinds["delete"],
        reference_tokens=sum(map(len, expected)),
        wrong_sequences=wrong,
        sequences=len(expected),
    )
