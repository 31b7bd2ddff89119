"""Write docs/results/validation.md from results of drawn.py.

`python tests/support/drawn_page.py FOLDER docs/results/validation.md` does.

The results are of one revision of the files that draw and compare; others are refused.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from drawn import revision
from drawn_rules import RULES
from kinks import CONVENTIONS

__all__ = ["main"]

HEAD = """# Validation of every operator by drawn cases

`tests/support/drawn.py` draws files of one node from ONNX's schemas: attributes, element types, shapes (sizes 0, 1,
odd, prime and large, windows with a remainder, kernels smaller and larger than strides), negative axes, unknown
dimensions, zeros and ties, also inside a branch of an If, for every opset from 7 on that changed an operator. The name
of a case (operator, opset, number) determines it.

Plain ONNX Runtime with optimizations off and ONNX's reference run the original file at its own opset. Where they do not
agree, a third implementation decides: PyTorch, SciPy, NumPy, or the formula of the specification in float64. deep5
imports the same file and runs it on each back-end. Results may differ by rounding, whose bound is derived from the case
in float64 (`tests/support/drawn_bounds.py` states the reasoning). Errors planted into right answers must be found, in
every operator (`tests/networks/onnx/test_drawn_planted.py`).

`make validate` runs every operator and opset on every back-end and writes this page. It resumes where it was
interrupted, and repeats only what is missing, wrong or unexplained. `make validate JOBS=8` shares the work among eight
processes: each claims one operator and opset after the other. Parts of it:

```sh
python tests/support/drawn.py --all --jobs 8 --out results/validation   # the cases of every back-end
python tests/support/drawn.py --operator Resize --opset 19 --backends reference,pytorch
python tests/support/drawn.py --case Resize-19-5 --backends reference   # one case, printed
python tests/support/drawn_page.py results/validation docs/results/validation.md
```
"""


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Results, those of the longest runs first; each case counts once."""
    found = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    revisions = {line["revision"] for line in found}
    if revisions != {revision()}:
        raise SystemExit(f"results of {sorted(revisions)}, expected {revision()}; run drawn.py --all again")
    cases = Counter(
        (backend, line["operator"], line["opset"], line["first"] + each)
        for line in found
        for backend in line["backends"]
        for each in range(line["cases"])
    )
    twice = [case for case, count in cases.items() if count > 1]
    if twice:
        raise SystemExit(f"results have {twice[0]} and {len(twice) - 1} other cases twice; remove one of the files")
    former = {name for line in found for name in line["rules"]} - {rule.name for rule in RULES}
    if former:
        raise SystemExit(f"results have the rules {sorted(former)}, which are no more; run those operators again")
    return sorted(found, key=lambda line: -int(line["cases"]))


def environments(found: Iterable[dict[str, Any]]) -> list[Sequence[object]]:
    """For each back-end, the versions that its cases ran with: a row for each environment, and its cases."""
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for line in found:
        for backend, kinds in line["backends"].items():
            versions = line["versions"]
            own = f"{backend} {versions[backend]}" if backend in versions and backend not in SHARED else ""
            counts[backend][(*(versions[name] for name in SHARED), own)] += sum(kinds.values())
    return [(backend, *row, count) for backend, rows in counts.items() for row, count in rows.most_common()]


def pairs(found: Iterable[dict[str, Any]]) -> Counter[str]:
    """The operators and opsets that each back-end ran."""
    return Counter(
        backend
        for backend, _, _ in {(name, line["operator"], line["opset"]) for line in found for name in line["backends"]}
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    marks = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(map(str, row))} |" for row in (head, marks, *rows)]


def unanswered(found: Iterable[dict[str, Any]]) -> Counter[str]:
    """Why gradients were not compared."""
    reasons = Counter[str]()
    for line in found:
        reasons.update(line["unanswered"].get("gradients", {}))
    return reasons


SHARED = ("onnx", "onnxruntime", "numpy", "scipy", "torch")
"""Packages that compute what every back-end is compared with."""
KINDS = ("agreed", "explained", "refused", "wrong", "failed", "unanswered")


def main(source: str, goal: str) -> None:
    found = lines_of(Path(source))
    backends: dict[str, Counter[str]] = defaultdict(Counter)
    operators: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    who, rules = Counter[str](), Counter[str]()
    for line in found:
        if "reference" in line["backends"]:  # which runs every case
            who.update(line["who"])
            rules.update(line["rules"])
        for counted in line.get("explained", {}).values():
            rules.update(counted)
        for backend, counts in line["backends"].items():
            backends[backend].update(counts)
            operators[line["operator"]][backend].update(counts)
    cases, ran = sum(sum(counts.values()) for counts in backends.values()), pairs(found)
    answered = sum(who.values()) - who["undefined"] - who["neither"]
    text = [HEAD, "## Cases", ""]
    text += [
        f"{cases} cases: {sum(who.values())} on the reference, of which ONNX Runtime, ONNX's reference or a third "
        f"implementation answers {answered}; the other back-ends run some of them. {len(RULES)} rules explain where "
        f"another implementation deviates from the specification; {sum(len(line['open']) for line in found)} "
        "disagreements have no explanation.",
        "",
    ]
    text += table(
        ("back-end", "operators and opsets", *KINDS, "cases"),
        (
            (name, ran[name], *(counts[kind] for kind in KINDS), sum(counts.values()))
            for name, counts in backends.items()
        ),
    )
    text += [
        "",
        "The row `gradients` has deep5's gradient rules in float64, compared with differences. Of "
        f"{sum(who.values())} cases ONNX Runtime and ONNX's reference agree in {who['both']}; only ONNX Runtime "
        f"answers {who['onnxruntime']}, only ONNX's reference {who['onnx.reference']}; a third implementation decides "
        f"or confirms {who['a third']}; {who['undefined']} are left open by the specification, and {who['neither']} "
        "have no answer.",
        "",
        "These versions computed them; operators with an open case, or that a fix concerns, ran again in another:",
        "",
        *table(("back-end", *SHARED, "framework", "cases"), environments(found)),
        "",
        "## Explanations",
        "",
    ]
    for rule in RULES:
        names = ", ".join(sorted(rule.operators))
        deviates = " and ".join(sorted(rule.deviates)) or "none: the result is open"
        text += [
            f"- **{rule.name}** ({names}; {rules[rule.name]} cases). Deviates: {deviates}. The specification "
            f'({rule.source}): "{rule.says}". Decides: {rule.third}.'
        ]
    text += ["", "## Gradients", "", "No gradient is compared for these reasons:", ""]
    text += table(("reason", "cases"), unanswered(found).most_common())
    text += [
        "",
        "At a kink a gradient lies between the slopes of both sides. These conventions are exact, and the same on "
        "every back-end (`tests/networks/gradients/test_kinks.py`):",
        "",
    ]
    text += [f"- {name}: {said}" for name, said in CONVENTIONS.items()]
    text += ["", "## By operator", "", "Cases that agree, of those that something answers:", ""]

    def share(counts: Counter[str]) -> str:
        answered = sum(counts.values()) - counts["unanswered"]
        return f"{counts['agreed'] + counts['explained']} of {answered}" if answered else ""

    text += table(
        ("operator", *backends),
        ((name, *(share(operators[name][backend]) for backend in backends)) for name in sorted(operators)),
    )
    Path(goal).write_text("\n".join(text).rstrip() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
