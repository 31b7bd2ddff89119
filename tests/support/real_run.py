"""The command `python tests/real_files.py`: which files run, in which processes, and what is kept of their results."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from deep5.core.errors import Deep5Error
from deep5.core.files import write_atomically
from deep5.core.python_child import ask, keep, run_function
from real_exports import EXPORTS, export
from real_page import PAGE, counted, page
from real_trials import NEXT, PARTS, done, originals, trials
from real_wheels import File, Wheel, cached, delete_unlisted, read_list, unpack, wheel_folder

__all__ = ["BACK_ENDS", "main", "parsed", "run_jobs"]

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
        topic: What it is for.
        license: The license that its package states.
        file: How to feed it.
        folder: The folder that has it as `model.onnx`, and the values to compare with.
        fault: Why there is no file, or None.
    """

    name: str
    topic: str
    license: str
    file: File
    folder: Path
    fault: str | None = None


def main(words: Sequence[str], description: str = "") -> int:
    """Run the files.

    Args:
        words: The command line.
        description: What `--help` says first.

    Returns:
        1 if a pair of a file and a back-end is wrong or fails, else 0.
    """
    options = parsed(words, description)
    back_ends = tuple(options.backends.split(","))
    folder = wheel_folder()
    folder.mkdir(parents=True, exist_ok=True)
    wheels = read_list()
    delete_unlisted(wheels, folder)
    with tempfile.TemporaryDirectory(prefix="deep5-real-") as name:
        work = Path(options.work or name)
        cases = list(_cases(wheels, options.only, folder, work))
        found = [case for case in cases if case.fault is None]
        jobs = [[str(case.folder), dict(case.file.sizes), dict(case.file.values)] for case in found]
        run_jobs(
            originals,
            [job for job in jobs if not Path(job[0], "original.json").is_file()],
            "original",
            "plain",
            options,
        )
        _store(folder, [(case, "", _answer(case, "original")) for case in cases])
        for back_end in back_ends:
            runnable = [[str(case.folder)] for case in found if _answer(case, "original").get("plain") == "works"]
            run_jobs(trials, runnable, back_end, "", options, back_end, options.last)
            results = _store(folder, [(case, back_end, _answer(case, back_end)) for case in found])
    results = dict(sorted(results.items()))
    if options.page:
        write_atomically(Path(options.page), page(results, BACK_ENDS))
    counts = counted(results, back_ends)
    click.echo(json.dumps(counts))
    return 1 if counts["wrong"] or counts["fails"] else 0


def parsed(words: Sequence[str], description: str) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="packages or parts of names of files, separated by commas")
    parser.add_argument("--backends", default=",".join(BACK_ENDS), help="names, separated by commas")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for a file on a back-end (default: 240)")
    parser.add_argument("--last", default=PARTS[-1], choices=PARTS, help="the last part to run (default: steps)")
    parser.add_argument("--work", default="", help="a folder that keeps the files and the values to compare with")
    parser.add_argument("--page", default=str(PAGE), help="the page to write; empty: none")
    return parser.parse_args(words)


def _cases(wheels: Sequence[Wheel], only: str, folder: Path, work: Path) -> Iterator[Case]:
    parts = [part for part in only.split(",") if part]

    def chosen(name: str) -> bool:
        return not parts or any(part in name for part in parts)

    for wheel in wheels:
        if not any(chosen(wheel.name(file)) for file in wheel.files):
            continue
        try:
            path = cached(wheel, folder)
        except Deep5Error as error:
            click.echo(str(error), err=True)
            continue
        for number, file in enumerate(wheel.files):
            own = work / f"{wheel.package}-{number}"
            if chosen(wheel.name(file)):
                unpack(path, wheel, file, own / "model.onnx")
                yield Case(name=wheel.name(file), topic=wheel.topic, license=wheel.license, file=file, folder=own)
    exports = [name for name in EXPORTS if chosen(name)]
    brought = [_unpack(wheel, folder, work) for wheel in wheels if not wheel.files] if exports else []
    for name in exports:
        own = work / f"export-{name.replace(', ', '-').replace(' ', '-')}"
        own.mkdir(parents=True, exist_ok=True)
        fault = None if (own / "model.onnx").is_file() else _exported(name, own / "model.onnx", brought)
        yield Case(name=name, topic="exported here", license="-", file=File(path=name), folder=own, fault=fault)


def _exported(name: str, path: Path, wheels: list[str]) -> str | None:
    """Write an exported file; return why there is none."""
    made = ask(export, name, str(path), wheels, time_limit_s=_EXPORT_S)
    return None if made.fault is None and made.value is None else str(made.fault or made.value)


def _unpack(wheel: Wheel, folder: Path, work: Path) -> str:
    target = work / wheel.package
    with zipfile.ZipFile(cached(wheel, folder)) as archive:
        archive.extractall(target)
    return str(target)


def run_jobs(
    function: Callable[..., None], jobs: list[list[Any]], name: str, part: str, options: argparse.Namespace, *more: str
) -> None:
    """Run a function on all jobs, in as few processes as it takes; `part` is at fault where a process ends."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    for folder, *_ in jobs:
        done(Path(folder), name).unlink(missing_ok=True)
    while jobs:
        ended = run_function(
            function,
            jobs,
            *more,
            time_limit_s=options.limit,
            environment=environment,
            hear=lambda doing: options.limit if doing == NEXT else keep(doing),
            separate=True,
        )
        jobs = [job for job in jobs if not done(Path(job[0]), name).exists()]
        if jobs:
            place = Path(jobs[0][0])
            found = _read(place, name)
            at = part or next((each for each in PARTS if each not in found), PARTS[-1])
            found[at] = f"fails: {ended.fault() or 'ended without a result'}"
            (place / f"{name.replace(':', '-')}.json").write_text(json.dumps(found))
            jobs = jobs[1:]


def _answer(case: Case, name: str) -> dict[str, Any]:
    return {"import": f"not exported: {case.fault}"} if case.fault is not None else _read(case.folder, name)


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name.replace(':', '-')}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def _store(folder: Path, answers: Sequence[tuple[Case, str, dict[str, Any]]]) -> dict[str, Any]:
    """Add answers, of a back-end or of the file itself, to the stored results; return all of them."""
    path = folder / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for case, back_end, answer in answers:
        result = results.setdefault(case.name, {"back_ends": {}})
        result |= {"topic": case.topic, "license": case.license}
        if back_end:
            result["back_ends"][back_end] = answer
        else:
            result["original"] = answer
    write_atomically(path, json.dumps(results, indent=1))
    return results
