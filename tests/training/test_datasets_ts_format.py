"""The `.ts` format: what the header says of the series, and the files that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from deep5.core.errors import UsageError
from deep5.training.datasets.ts_format import parse_ts

HEADER = "@problemName Two words\n@timeStamps false\n@univariate false\n@dimensions 2\n@classLabel true a b\n@data\n"


def parsed(text: str | bytes) -> object:
    return parse_ts("some.ts", text.encode() if isinstance(text, str) else text)


def test_series_of_several_lengths_with_missing_values() -> None:
    found = parse_ts("some.ts", f"# a comment\n\n{HEADER}1,2.5,-3e2:4,?,6:b\n# another\n7:8:a\n\n".encode())
    assert (found.name, found.classes) == ("Two words", ("a", "b"))
    assert found.labels is not None
    assert found.labels.dtype == np.int64
    assert found.labels.tolist() == [1, 0]
    expected = [[[1.0, 4.0], [2.5, np.nan], [-300.0, 6.0]], [[7.0, 8.0]]]
    for own, values in zip(found.series, expected, strict=True):
        assert own.dtype == np.float64
        np.testing.assert_array_equal(own, values)


def test_lines_end_as_on_windows_and_tags_are_in_any_case() -> None:
    text = "@PROBLEMNAME x\r\n@univariate TRUE\r\n@ClassLabel False\r\n@DATA\r\n1, 2 ,3\r\n4\r\n"
    found = parse_ts("some.ts", text.encode())
    assert found.labels is None
    assert found.classes == ()
    assert [each.tolist() for each in found.series] == [[[1.0], [2.0], [3.0]], [[4.0]]]


def test_without_dimensions_the_first_series_sets_them() -> None:
    assert parse_ts("some.ts", b"@data\n1:2:3\n4:5:6\n").series[1].shape == (1, 3)
    with pytest.raises(UsageError, match=r"some.ts, line 3: got 2 dimensions; allowed: 3, as before"):
        parsed("@data\n1:2:3\n4:5\n")


@pytest.mark.parametrize("head", ["@equalLength true\n", "@seriesLength 2\n", "@equalLength true\n@seriesLength 2\n"])
def test_series_of_equal_length(head: str) -> None:
    assert parse_ts("some.ts", f"{head}@data\n1,2\n3,4\n".encode()).series[1].shape == (2, 1)
    with pytest.raises(UsageError, match=r"got 3 values; allowed: 2, as before"):
        parsed(f"{head}@data\n1,2\n3,4,5\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "some.ts has no line @data; allowed: a header of @problemName, .*@data, then the series"),
        ("@data\n", "some.ts has no series after @data; allowed: at least one"),
        ("@data\n# nothing\n\n", "no series after @data"),
        ("1,2:3,4:a\n", "line 1: got '1,2:3,4:a'; allowed before the data: @problemName"),
        ("\ufeff@data\n1\n", r"line 1: got '.*@data'; allowed before the data"),
        ("@\n@data\n1\n", "line 1: got '@'; allowed before the data"),
        ("@relation x\n@data\n1\n", "line 1: got '@relation x'; allowed before the data: .*, or a comment after #"),
        ("@missing false\n@missing true\n@data\n1\n", "line 2: the tag @missing is there twice; allowed: once"),
        ("@dimension 2\n@dimensions 2\n@data\n1:1\n", "line 2: the tag @dimensions is there twice"),
        ("@dimensions\n@data\n1\n", "line 1: got '@dimensions'; allowed: @dimensions and an integer of at least 1"),
        ("@dimensions 0\n@data\n1\n", "allowed: @dimensions and an integer of at least 1"),
        ("@dimensions -1\n@data\n1\n", "allowed: @dimensions and an integer of at least 1"),
        ("@dimensions ²\n@data\n1\n", "allowed: @dimensions and an integer of at least 1"),
        (f"@dimensions {'9' * 5000}\n@data\n1\n", "allowed: @dimensions and an integer of at least 1"),
        ("@seriesLength 1.5\n@data\n1\n", "allowed: @seriesLength and an integer of at least 1"),
        ("@univariate\n@data\n1\n", "line 1: got '@univariate'; allowed: @univariate true, or @univariate false"),
        ("@univariate yes\n@data\n1\n", "got '@univariate yes'; allowed: @univariate true"),
        ("@missing true 1\n@data\n1\n", "got '@missing true 1'; allowed: @missing true"),
        ("@classLabel false a\n@data\n1\n", "got '@classLabel false a'; allowed: @classLabel true"),
        ("@classLabel true\n@data\n1:a\n", r"got the classes \[\]; allowed: at least one, each once"),
        ("@classLabel true a a\n@data\n1:a\n", r"got the classes \['a', 'a'\]; allowed: at least one, each once"),
        ("@timeStamps true\n@data\n(0,1)\n", "line 1: the series have time stamps; allowed: @timeStamps false"),
        ("@targetLabel true\n@data\n1:2.5\n", "line 1: the series have target values; allowed: @targetLabel false"),
        ("@univariate true\n@dimensions 2\n@data\n1:2\n", "line 3: the header has @univariate true and @dimensions 2"),
        ("@univariate true\n@data\n1:2\n", "line 3: got 2 dimensions; allowed: 1, as before"),
        (
            "@equalLength false\n@seriesLength 3\n@data\n1\n",
            "line 3: the header has @equalLength false and @seriesLength",
        ),
        (f"{HEADER}1:2:c\n", "line 7: got the class 'c'; allowed: a, b"),
        (f"{HEADER}1:2\n", "line 7: got the class '2'; allowed: a, b"),
        (f"{HEADER}a\n", "line 7: got 0 dimensions; allowed: 2, as before"),
        (f"{HEADER}1:2:3:a\n", "line 7: got 3 dimensions; allowed: 2, as before"),
        (f"{HEADER}1,2:3:a\n", "line 7: dimension 2 has 1 values and the first 2; allowed: as many"),
        (f"{HEADER}1:2:a\n\n1::a\n", "line 9: got the value ''; allowed: a finite number, or [?] for a missing one"),
        (f"{HEADER}1,,2:3,4,5:a\n", "line 7: got the value ''"),
        (f"{HEADER}1:x:a\n", "line 7: got the value 'x'; allowed: a finite number"),
        (f"{HEADER}1:nan:a\n", "line 7: got the value 'nan'"),
        (f"{HEADER}1:-inf:a\n", "line 7: got the value '-inf'"),
        (f"{HEADER}1:1e999:a\n", "line 7: got the value '1e999'"),
        (f"{HEADER}1:1_0:a\n", "line 7: got the value '1_0'"),
        (f"{HEADER}1:\x001:a\n", "line 7: got the value"),
        ("@missing false\n@data\n1,?\n", "line 3: got the value '[?]'; allowed: a finite number$"),
    ],
)
def test_files_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(text)


def test_bytes_that_are_not_text_are_refused_with_their_line() -> None:
    with pytest.raises(UsageError, match=r"some.ts, line 2 is not UTF-8; allowed: the format .ts"):
        parsed(b"@problemName x\n@classLabel true caf\xe9\n@data\n1\n")


def test_a_message_stays_short() -> None:
    with pytest.raises(UsageError) as caught:
        parsed("x" * 1_000_000)
    assert len(str(caught.value)) < 500


def test_a_header_that_promises_much_takes_no_memory() -> None:
    with pytest.raises(UsageError, match=r"got 1 dimensions; allowed: 999999999"):
        parsed("@dimensions 999999999\n@seriesLength 999999999\n@data\n1\n")
