"""The LaTeX tables of a report: what LaTeX reads in them, and that it can."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import report_cases as cases
from command import Command
from deep5.results.kind import COMPARISON
from deep5.results.report.collect import collect
from deep5.results.report.figures import report_figures
from deep5.results.report.latex import escape, joined, number, tabular
from deep5.results.report.paper_tables import report_tables

HONEST = Path(__file__).parents[1] / "audit" / "honest"
HOSTILE = r"a_b & 50 % #1 $x {y} ~^\ [z] * -- `c' <d|e> \input{/etc/passwd} \end{tabular} é中"
# What LaTeX prints for what is written, longest first.
READS = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\dots{}": "…", "$\\times$": "×",
    "$\\pm$": "±", "$\\leq$": "≤", "$\\geq$": "≥", "{''}": '"', "{[}": "[", "{]}": "]", "{*}": "*", "{`}": "`",
    "{'}": "'", "{,}": ",", "-{}": "-", "$<$": "<", "$>$": ">", "$|$": "|", **{f"\\{sign}": sign for sign in "&%$#_{}"},
}  # fmt: skip
TOKENS = re.compile("|".join(map(re.escape, READS)))
COMMANDS = re.compile(
    r"\\(?:text\w+\{\}|(?:dots|ss|ae|AE|o|O|l|L|i)\{\}|[`'^~=u.\"rHvc]\{\w\}|(?:times|pm|leq|geq|gamma|mu)\b)"
)
"""All commands of a cell but the escaped characters."""
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126))


def printed(tex: str) -> str:
    """What LaTeX prints for escaped ASCII."""
    return TOKENS.sub(lambda found: READS[found.group()], tex)


def braces(tex: str) -> list[int]:
    """The depth of groups after each character; the escaped ones do not count."""
    plain, depth, depths = re.sub(r"\\[{}\\]", "  ", tex), 0, []
    for character in plain:
        depth += (character == "{") - (character == "}")
        depths.append(depth)
    return depths


def cells(row: str) -> list[str]:
    assert row.endswith(r" \\"), row
    return re.split(r"(?<!\\)&", row.removesuffix(r"\\"))


def checked(tex: str) -> list[list[str]]:
    """The cells of a table that LaTeX can read, the heads first."""
    assert tex.isascii()
    every = tex.removesuffix("\n").split("\n")
    lines = [line for line in every if not line.startswith("%")]
    assert every[-len(lines) :] == lines, "comments stand before the table"
    begin = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", lines[0])
    assert begin is not None
    assert lines[-1] == r"\end{tabular}"
    body = [line.strip() for line in lines[1:-1]]
    assert (body[0], body[2]) == (r"\toprule", r"\midrule")
    end = body.index(r"\bottomrule")
    for line in body[end + 1 :]:
        assert line.startswith(rf"\multicolumn{{{len(begin[1])}}}{{l}}{{\footnotesize ")
    rows = [cells(line) for line in (body[1], *body[3:end])]
    for row in rows:
        assert len(row) == len(begin[1]), row
        for cell in row:
            depths = braces(cell)
            assert min(depths, default=0) >= 0, cell
            assert not depths or depths[-1] == 0, cell
            bare = COMMANDS.sub("", re.sub(r"\\[&%$#_{}]", "", cell))
            assert not re.search("[%#&~]", bare), cell
            assert bare.count("$") % 2 == 0, cell
            text = re.sub(r"\$[^$]*\$", "", bare)
            assert not re.search(r"[_^<>|\"]", text), cell
            assert not re.match(r"\s*[\[*]", cell), "an option of the row before"
            assert "\\" not in bare, cell
    return [[cell.strip() for cell in row] for row in rows]


@given(ASCII)
def test_what_is_escaped_reads_as_it_was(text: str) -> None:
    written = escape(text)
    assert printed(written) == re.sub(" +", " ", text)
    assert escape(written) is written


@given(st.lists(st.text(), min_size=3, max_size=3), st.lists(st.text(), min_size=1, max_size=2), st.text())
def test_any_name_gives_a_table_that_latex_can_read(row: list[str], about: list[str], below: str) -> None:
    columns = [("l", "name"), ("r", row[0]), ("l", row[1])]
    made = checked(tabular(about, columns, [row, row], below))
    assert len(made) == 3
    assert made[1] == made[2]


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        (HOSTILE[:20], r"a\_b \& 50 \% \#1 \$x \{y\}"),
        ("[x]", "{[}x{]}"),
        ("---", "-{}-{}-"),
        ("Öz, naïve, Łódź", r"\"{O}z{,} na\"{i}ve{,} \L{}\'{o}d\'{z}"),
        ("γ ± 3 µs …", r"$\gamma$ $\pm$ 3 $\mu$s \dots{}"),
        ("名\n\t前\x1b", r"U+540D U+524D\textbackslash{}x1b"),
        ("\ud800", "U+FFFD"),
    ],
)
def test_other_characters_have_one_form_for_every_engine(text: str, tex: str) -> None:
    assert escape(text) == tex.replace("\\textbackslash{}x1b", "U+FFFD")


@pytest.mark.parametrize(
    ("shown", "tex"),
    [
        ("0.123", "0.123"), ("-0.5", "$-0.5$"), ("1.5e-07", r"$1.5 \times 10^{-7}$"), ("2e+10", r"$2 \times 10^{10}$"),
        ("18,960", "18,960"), ("-18,960", "$-18{,}960$"), ("about 1e400", "about 1e400"), ("-", "-"), ("a_b", r"a\_b"),
    ],
)  # fmt: skip
def test_numbers_are_mathematics_where_they_need_it(shown: str, tex: str) -> None:
    assert number(shown) == tex
    assert joined(number(shown), " %") == rf"{tex} \%"


def tables(folder: Path) -> dict[str, list[list[str]]]:
    files, lost = report_tables(collect([folder]))
    assert lost == []
    return {name: checked(content.decode("ascii")) for name, content in files.items()}


def test_a_run_has_each_metric_with_its_goal_and_verdict() -> None:
    found = tables(HONEST / "run")
    assert list(found) == ["run-metrics.tex"]
    heads, *rows = found["run-metrics.tex"]
    assert heads == ["metric", "value", "unit", "interval", "goal", "verdict"]
    document = json.loads((HONEST / "run" / "result.json").read_text("utf-8"))
    stored = {row["name"].replace("_", " "): row for row in document["metrics"]}
    assert [row[0] for row in rows] == list(stored)
    for name, value, unit, interval, goal, verdict in rows:
        assert float(value) == pytest.approx(stored[name]["value"], rel=1e-5)
        assert printed(unit) == stored[name]["unit"]
        assert (goal == "-", verdict == "reported") == (stored[name]["goal"] is None,) * 2
        assert (interval == "-") == (stored[name]["interval"] is None)
    assert ["test accuracy", r"$\geq$ 1", "passed"] in [[row[0], *row[4:]] for row in rows]


def test_a_comparison_has_ratios_with_intervals_and_says_where_it_is_from() -> None:
    document = json.loads((HONEST / "rigorous" / COMPARISON).read_text("utf-8"))
    files, _ = report_tables(collect([HONEST / "rigorous"]))
    (content,) = files.values()
    (verdict,) = document["verdicts"]
    rows = checked(content.decode())
    assert rows[0] == ["candidate", "median (s)", "interval (s)", "ratio (interval)", "verdict"]
    ratio = "{ratio:.3g} ({low:.3g} to {high:.3g})".format(**verdict)
    assert [row[-2:] for row in rows[1:]] == [[ratio, verdict["word"]], ["1", "baseline"]]
    said = [line for line in content.decode().splitlines() if line.startswith("%")]
    assert re.match(r"% deep5 \S+: comparison of training, rigorous, threads: 2", said[0])
    assert document["recipe"]["hash"] in said[1]


def test_a_study_has_means_and_times_to_the_target() -> None:
    found = tables(HONEST / "study")
    assert list(found) == ["study-means.tex", "study-target.tex"]
    assert found["study-means.tex"][0] == ["metric", "unit", "slow (2 runs)", "fast (2 runs)"]
    assert found["study-means.tex"][1] == ["test accuracy", r"\%", r"17.55 $\pm$ 6.7", r"56.82 $\pm$ 9.8"]
    assert found["study-target.tex"][0] == ["candidate", "seconds (s)", "epochs", "steps", "reached by"]


def test_operators_have_their_rates() -> None:
    found = tables(HONEST / "level0")["level0-operators.tex"]
    assert found[0][2:] == ["size", "direction", "median (us)", "interval (us)", "GFLOP/s", "GB/s", "of peak"]
    (row,) = json.loads((HONEST / "level0" / "operators.json").read_text("utf-8"))["rows"]
    assert float(found[1][4]) == pytest.approx(1e6 * row["median_s"], rel=1e-2)
    assert float(found[1][6]) == pytest.approx(row["gflop_s"], rel=1e-2)


def test_a_candidate_without_times_has_its_status_and_a_note_its_place(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, workloads=("a_1", "b"), recipe={**cases.RECIPE, "division": "open"})
    document = json.loads((folder / COMPARISON).read_text("utf-8"))
    for part in ("results", "verdicts"):
        document[part] = [row for row in document[part] if row["candidate"] != "jax"]
    next(row for row in document["candidates"] if row["label"] == "jax")["status"] = "different"
    (folder / COMPARISON).write_text(json.dumps(document), "utf-8")
    files, lost = report_tables(collect([folder]))
    assert lost == []
    content = files["demo-compare-verdicts.tex"].decode()
    rows = checked(content)
    assert rows[-1] == ["jax", "-", "-", "-", "-", "different"]
    assert [row[1] for row in rows[1:]] == [r"a\_1", r"a\_1", "b", "b", "-"]
    assert r"\multicolumn{6}{l}{\footnotesize open division} \\" in content


def test_hostile_names_and_numbers_cost_no_table(tmp_path: Path) -> None:
    assert tables(cases.hostile(tmp_path / "one"))
    folder = cases.comparison(tmp_path, labels=(HOSTILE, "[b]", "*"))
    (rows,) = tables(folder).values()
    assert {printed(row[0]) for row in rows[1:]} == {printed(escape(label)) for label in (HOSTILE, "[b]", "*")}
    document = json.loads((folder / COMPARISON).read_text("utf-8"))
    document["results"][0] |= {"median_s": 10**400, "low_s": 10**400}
    document["verdicts"][0] |= dict.fromkeys(("ratio", "low", "high"), 10**400)
    (folder / COMPARISON).write_text(json.dumps(document), "utf-8")
    found = collect([folder])
    files, lost = report_tables(found)
    assert lost == []
    assert len(files) + len(found.unreadable) == 1


def test_the_command_writes_tables_without_a_package_for_figures(
    deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("altair", "vl_convert"):
        monkeypatch.setitem(sys.modules, package, None)
    answer = deep5("report", str(HONEST / "quick"), str(HONEST / "study"), "--format", "tex", "-o", "tables")
    assert (answer.status, answer.err) == (0, "")
    written = sorted(path.name for path in (tmp_path / "tables").iterdir())
    assert written == ["quick-verdicts.tex", "study-means.tex", "study-target.tex"]
    assert sorted(Path(line).name for line in answer.out.split()) == written
    answer = deep5("report", str(HONEST / "quick"), "nowhere", "--format", "tex")
    assert answer.status == 1
    assert "not in the report: nowhere" in answer.err
    assert (tmp_path / "figures" / "quick-verdicts.tex").is_file()


def test_a_table_that_cannot_be_written_is_told_and_the_others_are(tmp_path: Path) -> None:
    folder = cases.run(tmp_path)
    (folder / "operators.json").write_text(json.dumps({"rows": [{"candidate": "jax"}]}), "utf-8")
    files, lost = report_tables(collect([folder]))
    assert [name.endswith("-metrics.tex") for name in files] == [True]
    (row,) = lost
    assert "KeyError" in row.reason
    assert len(report_figures(collect([folder]), "svg")[1]) == 1


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.slow
def test_latex_typesets_the_tables(tmp_path: Path) -> None:
    every: dict[str, Any] = {}
    for folder in (*HONEST.iterdir(), cases.comparison(tmp_path / "own", labels=(HOSTILE, "[b]", "*"))):
        every |= report_tables(collect([folder]))[0]
    for name, content in every.items():
        (tmp_path / name).write_bytes(content)
    inputs = "\n\n".join(rf"\input{{{name}}}" for name in every)
    page = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{inputs}\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:]
