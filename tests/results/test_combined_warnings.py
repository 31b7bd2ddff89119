"""Warnings of one kind about several candidates are one sentence on a terminal, and each remains in the result."""

from __future__ import annotations

from deep5.results.combined_warnings import combined
from deep5.results.comparison_warnings import warnings_of
from deep5.results.round_samples import RoundSample


def samples(candidate: str, times: list[list[float]]) -> list[RoundSample]:
    return [
        RoundSample(
            candidate=candidate,
            workload="lenet",
            round=number,
            process=number,
            phase="steady",
            place=place,
            seconds=seconds,
            calls=1,
            time_s=float(place),
        )
        for number, own in enumerate(times)
        for place, seconds in enumerate(own)
    ]


def test_real_warnings_of_one_kind_are_one_sentence() -> None:
    """The sentences are those that a comparison makes, so that a change of their wording is noticed."""
    names = ("a", "b: own")
    made = [*samples(names[0], [[1.0] * 20, [1.5] * 20]), *samples(names[1], [[1.0] * 20, [1.2] * 20])]
    made += samples("c", [[1.0] * 17 + [9.0] * 3, [1.0] * 20])
    made += samples("d", [[1.0] * 16 + [9.0] * 4, [1.0] * 20])
    said = warnings_of(made, {("lenet", name): count for count, name in enumerate(names, start=1)})
    assert len(said) == 6
    assert combined(said) == [
        "a, lenet and b: own, lenet: 1 to 2 of 2 processes reached no steady state; only the second half of their "
        "samples counts; remedy: a quiet machine, or a larger batch",
        "a, lenet and b: own, lenet: processes differ by up to 20 to 50 %; remedy: a quiet machine",
        "c, lenet and d, lenet: 3 to 4 of 40 samples lie far out and are included; remedy: a quiet machine",
    ]


def test_other_warnings_and_long_lists_of_names() -> None:
    one = (
        "pytorch 2: other programs took up to 7 % of its processors' time in 1 of 5 processes; remedy: a quiet machine"
    )
    assert combined([one, "the clock was set", one.replace("took", "did not take")]) == [
        one,
        "the clock was set",
        one.replace("took", "did not take"),
    ]
    assert combined([]) == []
    many = [one.replace("pytorch 2", f"x{number}").replace("7", str(number + 5)) for number in range(7)]
    (found,) = combined(many)
    assert found.startswith("x0; x1; x2; x3 and 3 more: other programs took up to 5 to 11 % of its processors")
    # Those without a verdict are another kind.
    without = one.replace("; remedy", ", so there is no verdict; remedy")
    assert len(combined([one, without, without.replace("pytorch 2", "jax")])) == 2
