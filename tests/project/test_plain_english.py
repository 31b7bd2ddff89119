"""The linter of prose finds each phrase on its list wherever prose is, and takes no code, output or name for prose."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from english_phrases import PHRASES, SPELLING, WORDS
from plain_english import find, main

ROOT = Path(__file__).parents[2]

PLANTED = {
    "the user is told what is allowed": "is told",
    "the settings that a process has told": "told",
    "the message tells which rank was lost": "tells",
    "where nothing can tell the reason": "tell",
    "a result that stays untold": "untold",
    "it gives what it is asked for": "what it is asked for",
    "more threads than were asked for": "asked for",
    "a recipe that asks for ranks": "asks for",
    "the run goes on with the next step": "goes on",
    "it resumes to the same bits": "to the same bits",
    "a run that was ended is resumed": "that was ended",
    "the step is a whole number of 64 bits": "whole number",
    "inputs may be texts or lists": "texts",
    "got 3; allowed: a text": "a text",
    "the result is held against the reference": "held against",
    "holds the kernel against the rule": "holds the kernel against",
    "the run is judged by its metrics": "judged",
    "a loop written by hand": "by hand",
    "read behind a synchronize": "behind",
    "sent ahead of the first step": "ahead of",
    "dropped in front of the network": "in front of",
    "by the shapes of inputs alone": "alone",
    "the first extent of the inputs": "extent",
    "it depends on how many axes there are": "how many axes",
    "the operator lacks a rule": "lacks a rule",
    "an error that a newer version mended": "mended",
    "code of a recipe's own": "of a recipe's own",
    "a clock of its own, and two threads": "of its own",
    "nobody waits for it": "nobody",
    "anybody's results": "anybody's",
    "what is no ONNX file is refused": "what is no",
    "a loss that is not a number stops it": "loss that is not a number",
    "such a loss passes no goal": "passes no goal",
    "a new component starts without the arguments of the old one": "starts without the arguments of",
    "weights are normalised": "normalised",
    "the behaviour of the engine": "behaviour",
    "the graph is analysed": "analysed",
    "the centre of the image": "centre",
    "under the BSD licence": "licence",
    "labelled samples": "labelled",
    "a grey image": "grey",
    "an artefact of rounding": "artefact",
    "which a sceptic may check": "sceptic",
    "a judgement": "judgement",
    "to fulfil the contract": "fulfil",
    "whilst it runs": "whilst",
    "a programme": "programme",
    "what was learnt": "learnt",
}
"""A sentence with each phrase, and the phrase to be found in it."""

STANDARD = (
    "The samples are told apart by their index.",
    "A rank may be two steps behind the slowest.",
    "The rank is one step ahead of the others.",
    "It goes on the stack.",
    "The expected values were computed by hand.",
    "The tests of times run alone.",
    "To some extent this is noise.",
    "A text file of labels.",
    "Each has a file of its own class.",
    "The analyses of both networks agree.",
    "A colored label, normalized and analyzed.",
)
"""Standard English that looks like a phrase."""


def phrases(path: str, text: str) -> list[str]:
    return [each.phrase for each in find(path, text)]


@pytest.mark.parametrize(("sentence", "phrase"), PLANTED.items())
def test_a_planted_phrase_is_found_in_every_kind_of_prose(sentence: str, phrase: str) -> None:
    wrapped = sentence.replace(" ", "\n", sentence.count(" "))
    places = {
        "page.md": f"# A title\n\n{sentence}.\n",
        "deep5/wrapped.md": f"{wrapped}\n",
        "deep5/docstring.py": f'"""{sentence}."""\n',
        "deep5/comment.py": f"x = 1  # {sentence}\n",
        "deep5/message.py": f'raise ValueError(f"{{x}}; {sentence}")\n',
        "tests/test_x.py": f'def test_x():\n    """{sentence}."""\n',
        "tests/test_y.py": "".join(f"# {word}\n" for word in sentence.split(" ")),
    }
    for path, text in places.items():
        assert [each.lower() for each in phrases(path, text)] == [phrase], path


def test_the_pieces_of_a_message_are_read_as_one() -> None:
    pieces = 'raise ValueError(\n    f"the result is held "\n    "against the reference"\n)\n'
    assert phrases("deep5/x.py", pieces) == ["held against"]


def test_of_the_tests_only_docstrings_and_comments_are_read() -> None:
    """A string that opens a line within brackets is an argument."""
    text = (
        'def test_x():\n    """A docstring."""\n    match(\n        "the run goes on",\n    )\n    "A note goes on."\n'
    )
    assert [finding.line for finding in find("tests/test_x.py", text)] == [6]
    assert [finding.line for finding in find("deep5/x.py", text)] == [4, 6]


def test_every_phrase_of_the_table_is_planted() -> None:
    for phrase in PHRASES:
        assert any(phrase.pattern.fullmatch(planted) for planted in PLANTED.values()), phrase.pattern.pattern


@pytest.mark.parametrize("sentence", STANDARD)
def test_standard_english_is_not_a_phrase(sentence: str) -> None:
    assert phrases("page.md", sentence) == []


@pytest.mark.parametrize("sentence", PLANTED)
def test_code_and_shown_output_are_not_prose(sentence: str) -> None:
    quiet = {
        "output.md": f"The command prints:\n\n```text\n{sentence}\n```\n",
        "indented.md": f"Run:\n\n    {sentence}\n\nto see it.\n",
        "inline.md": f"The message is `{sentence}`.\n",
        "link.md": f"See [the page]({sentence.replace(' ', '_')}.md#by-hand).\n",
        "deep5/inline.py": f'"""It raises `{sentence}`."""\n',
        "deep5/doctest.py": f'"""An example.\n\n    >>> f("{sentence}")\n    {sentence}\n\n    It works.\n    """\n',
        "deep5/bytes.py": f'x = b"{sentence}"\n'.encode("ascii", "ignore").decode(),
        "tests/test_x.py": f'assert said == "{sentence}"\n',
    }
    for path, text in quiet.items():
        assert phrases(path, text) == [], path


def test_names_are_not_prose() -> None:
    source = '''
from x import told, Normalise
behind = told.alone(extents=3, judged=Utilisation())
"""The option --extent, the key extent=3, pytorch_by_hand.py, told(x) and d5.Normalise are names."""
kinds = {"alone": 1, "normalise": 2, "neighbourhood": 3}


def f(extent):
    """Size.

    Args:
        extent: Of the image.
        told, behind: Others.
    """
'''
    assert phrases("deep5/names.py", source) == []
    assert phrases("page.md", "`extent` and `normalise` are names, 'alone' is a word.\n") == []


def test_comments_in_blocks_of_code_are_prose() -> None:
    page = "```sh\ndeep5 run x --extent   # the run goes on\n```\n\n```python\nalone = 1  # mended\n```\n"
    assert [str(each) for each in find("page.md", page)] == [
        "page.md:2: 'goes on' -> write 'resumes' or 'continues'",
        "page.md:6: 'mended' -> write 'fixed'",
    ]


def test_expressions_in_a_message_are_code() -> None:
    assert phrases("deep5/x.py", 'f"the size {told(behind, extent)} and {alone:>3} fit"\n') == []
    assert phrases("deep5/x.py", 'f("the first held", x, "against the second")\n') == []


def test_a_spelling_is_written_out() -> None:
    found = {each.phrase: each.write for text in PLANTED for each in find("page.md", text)}
    assert found["normalised"] == "'normalized'"
    assert found["behaviour"] == "'behavior'"
    assert found["licence"] == "'license'"
    assert found["analysed"] == "'analyzed'"
    assert all(phrase.letters is not None for phrase in SPELLING)
    assert all(phrase.write for phrase in WORDS)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with plain prose."""
    subprocess.run([shutil.which("git") or "git", "init", "-q", str(tmp_path)], check=True)
    for path, text in {"README.md": "Plain.\n", "deep5/core/x.py": '"""Plain."""\n'}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_the_program_names_file_line_and_remedy(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], repository) == 0
    (repository / "deep5/core/x.py").write_text('"""One.\n\nIt is judged.\n"""\n')
    assert main([], repository) == main(["deep5/core/"], repository) == main(["deep5/core/x.py"], repository) == 1
    finding = "deep5/core/x.py:3: 'judged' -> write 'evaluated' or 'checked against its goal'\n"
    assert capsys.readouterr().out == finding * 3
    assert main(["README.md", "deep5/co"], repository) == 0


def test_the_documents_are_clean() -> None:
    """`make lint` reads everything."""
    script = ROOT / "tests" / "support" / "plain_english.py"
    pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs"]
    done = subprocess.run([sys.executable, str(script), *pages], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
