"""ONNX's back-end suite on an executor: `python tests/support/conformance.py FRAMEWORK [-k PART] [--suite node]`.

Cases, inputs, expected outputs and tolerances are those of `onnx.backend.test`; so is what compares. What does not pass
is in `tests/support/conformance/FRAMEWORK.toml`, with the reason that the framework gives; `--write` writes that
list again, for all suites, and keeps hand-written reasons.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import signal
import sys
import textwrap
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

from deep5.core.errors import Deep5Error
from deep5.networks.onnx_interface import onnx_backend

SUITES = {
    "node": "node",
    "converted": "pytorch-converted",
    "operator": "pytorch-operator",
    "simple": "simple",
    "light": "real",
}
"""Our short names, and those of the loader."""
FRAMEWORKS = ("jax", "onnxruntime", "pytorch", "reference", "tensorflow")
"""Frameworks with a list."""
SECONDS = 60
EITHER = ("passed", "wrong")
"""The outcomes that a list's `either` allows: they depend on the processor."""


class Outcome(NamedTuple):
    """How a case ended: `passed`, `refused` (by a deep5 error), `wrong` (other numbers) or `failed`; and why.

    In a list also `either`: `passed` or `wrong`, depending on the processor.
    """

    kind: str
    reason: str = ""


@functools.cache
def cases(suite: str) -> dict[str, Any]:
    """The cases of a suite by name, without `test_`."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name.removeprefix("test_"): case for case in load_model_tests(kind=SUITES[suite])}


def model_of(case: Any) -> onnx.ModelProto:
    if case.model is not None:
        return case.model
    if case.url is not None:
        return onnx.load(Path(onnx.__file__).parents[1] / case.url)
    return onnx.load(Path(case.model_dir) / "model.onnx")


def samples(case: Any, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_normalize_tensor(value) for value in inputs], [_normalize_tensor(value) for value in outputs]
        return
    if case.url is not None:
        yield _light_sample(case, model)
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        loaded: dict[str, list[Any]] = {}
        for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
            loaded[kind] = []
            for number in range(len(list(folder.glob(f"{kind}_*.pb")))):
                Runner._load_proto(_Loader, folder / f"{kind}_{number}.pb", loaded[kind], values[number].type)
        yield loaded["input"], loaded["output"]


class _Loader:
    """The runner's method needs nothing of its runner."""

    _load_proto = Runner._load_proto


def _light_sample(case: Any, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    """Like ONNX's runner: generated inputs, and the outputs that ship with the model."""
    known = {tensor.name for tensor in model.graph.initializer}
    inputs = [
        Runner.generate_dummy_data(value, seed=0, name=case.model_name, random=False)
        for value in model.graph.input
        if value.name not in known
    ]
    stem = Path(onnx.__file__).parents[1] / case.url.removesuffix(".onnx")
    outputs = []
    for number in range(len(model.graph.output)):
        outputs.append(onnx.numpy_helper.to_array(onnx.load_tensor(f"{stem}_output_{number}.pb")))
    return inputs, outputs


class TooLong(Exception):
    """The case exceeded its time limit."""


def outcome(framework: str, case: Any) -> Outcome:
    """Run a case."""

    def stop(*_: Any) -> None:
        raise TooLong(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        model = model_of(case)
        prepared = onnx_backend(framework).prepare(model)
        for inputs, expected in samples(case, model):
            Runner.assert_similar_outputs(expected, list(prepared.run(inputs)), case.rtol, case.atol)
    except Deep5Error as error:
        return Outcome("refused", str(error))
    except AssertionError as error:
        return Outcome("wrong", str(error))
    except Exception as error:
        return Outcome("failed", f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Outcome("passed")


def list_of(framework: str) -> Path:
    """The file with the cases that a framework does not pass."""
    return Path(__file__).parent / "conformance" / f"{framework}.toml"


def excluded(framework: str) -> dict[str, dict[str, Outcome]]:
    """The cases that a framework does not pass, by suite and name: outcome and reason."""
    if not list_of(framework).exists():
        return {}
    written = tomllib.loads(list_of(framework).read_text())
    return {
        suite: {name: Outcome(*text.split(": ", 1)) for name, text in names.items()} for suite, names in written.items()
    }


def shortened(text: str) -> str:
    """A reason cut to some 200 characters, at the end of a word."""
    return textwrap.shorten(text, 200, placeholder=" …")


def pattern(given: str) -> re.Pattern[str]:
    """The pattern of `-k`: a regular expression, which may begin like ONNX's names of the cases."""
    try:
        return re.compile(re.sub(r"^(\^?)test_", r"\1", given))
    except re.error as error:
        raise argparse.ArgumentTypeError(f"got {given!r}, which is no regular expression: {error}") from error


def write_list(framework: str, found: dict[str, dict[str, Outcome]]) -> None:
    """Write the list of cases that do not pass; reasons of cases that are not refused are hand-written and kept."""
    before, lines = excluded(framework), []
    for suite, outcomes in found.items():
        lines.append(f"[{suite}]")
        for name, (ended, reason) in sorted(outcomes.items()):
            known = before.get(suite, {}).get(name)
            kind = "either" if known is not None and known.kind == "either" and ended in EITHER else ended
            if kind == "passed":
                continue
            text = re.split("; (?:allowed|remedy):", " ".join(reason.split()))[0]
            if kind != "refused":
                text = known.reason if known is not None and known.kind == kind else "TODO"
            lines.append(f'"{name}" = {json.dumps(f"{kind}: {shortened(text)}", ensure_ascii=False)}')
        lines.append("")
    list_of(framework).parent.mkdir(exist_ok=True)
    list_of(framework).write_text("\n".join(lines).rstrip() + "\n")


def told(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=(*FRAMEWORKS, "openvino"))
    parser.add_argument(
        "-k", default="", type=pattern, help="only cases whose name this regular expression is found in"
    )
    parser.add_argument("--suite", default="node", choices=SUITES)
    parser.add_argument("--write", action="store_true", help="run all suites, and write the list of what does not pass")
    chosen = parser.parse_args(arguments)
    if chosen.write and chosen.k.pattern:
        parser.error("argument --write: the list is written of all cases; remedy: leave -k out")
    warnings.simplefilter("ignore")
    all_found: dict[str, dict[str, Outcome]] = {}
    for suite in SUITES if chosen.write else [chosen.suite]:
        found, begin = all_found.setdefault(suite, {}), time.perf_counter()
        for name, case in cases(suite).items():
            if chosen.k.search(name):
                found[name] = outcome(chosen.framework, case)
                if found[name].kind != "passed":
                    told(f"{found[name].kind:8} {name}: {' '.join(found[name].reason.split())[:220]}")
        counts = dict(Counter(each.kind for each in found.values()))
        told(f"{chosen.framework} {suite}: {counts} of {len(found)}, {time.perf_counter() - begin:.0f} s")
    if not any(all_found.values()):
        parser.error(f"argument -k: no case of {', '.join(all_found)} has {chosen.k.pattern!r} in its name")
    if chosen.write:
        write_list(chosen.framework, all_found)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).parent))
    main()
