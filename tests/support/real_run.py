"""The command `python tests/real_files.py`: which files run, in which processes, and what is kept of their results."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from deep5.core.errors import Deep5Error
from deep5.core.files import write_atomically
from deep5.core.python_child import ask, keep, run_function
from real_exports import EXPORTS, export
from real_page import PAGE, counted, page
from real_sources import COMPUTING, EXPORTING, commit, digest, versions
from real_trials import MODEL, NEXT, PARTS, done, missing_parts, originals, trials
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
        folder: The folder that has it as `model.onnx`, the values to compare with, and results.
        wheel: The wheel that it is in; None: it is exported.
    """

    name: str
    topic: str
    license: str
    file: File
    folder: Path
    wheel: Wheel | None = None


def main(words: Sequence[str], description: str = "") -> int:
    """Run the files.

    Args:
        words: The command line.
        description: What `--help` says first.

    Returns:
        1 if a pair of a file and a back-end is wrong or fails, or the sources changed during the run, else 0.
    """
    options = parsed(words, description)
    back_ends = tuple(options.backends.split(","))
    folder = wheel_folder()
    folder.mkdir(parents=True, exist_ok=True)
    wheels = read_list()
    delete_unlisted(wheels, folder)
    origin = _origin()
    every = list(_cases(wheels, Path(options.work or folder / "work")))
    parts = [part for part in options.only.split(",") if part]
    chosen = [case for case in every if not parts or any(part in case.name for part in parts)]
    found = [case for case in chosen if _prepared(case, wheels, folder)]
    for case in found:
        if options.fresh or _read(case.folder, "original").get("sources") != origin["sources"]:
            _forget(case.folder)
    waiting = [case for case in found if not _is_described(case.folder)]
    jobs = [[str(case.folder), dict(case.file.sizes), dict(case.file.values)] for case in waiting]
    run_jobs(originals, jobs, "original", "plain", options, origin)
    runnable = [case.folder for case in found if _read(case.folder, "original").get("plain") == "works"]
    for back_end in back_ends:
        missing = [[str(each)] for each in runnable if _missing(each, back_end, options.last, origin)]
        run_jobs(trials, missing, back_end, "", options, origin, back_end, options.last)
    results = {case.name: _result(case, origin) for case in sorted(every, key=lambda case: case.name)}
    if options.page:
        write_atomically(Path(options.page), page(results, BACK_ENDS, versions()))
    counts = counted(results, back_ends)
    click.echo(json.dumps(counts))
    if _origin()["sources"] != origin["sources"]:
        click.echo("the sources changed during the run; allowed: one state of them; remedy: run it again", err=True)
        return 1
    return 1 if counts["wrong"] or counts["fails"] else 0


def parsed(words: Sequence[str], description: str) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="packages or parts of names of files, separated by commas")
    parser.add_argument("--backends", default=",".join(BACK_ENDS), help="names, separated by commas")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for a file on a back-end (default: 240)")
    parser.add_argument("--last", default=PARTS[-1], choices=PARTS, help="the last part to run (default: steps)")
    parser.add_argument("--fresh", action="store_true", help="repeat what already ran with these sources")
    parser.add_argument("--work", default="", help="the folder of files and results (default: in deep5's cache)")
    parser.add_argument("--page", default=str(PAGE), help="the page to write; empty: none")
    return parser.parse_args(words)


def _origin() -> dict[str, str]:
    return {"sources": digest(COMPUTING, versions())[:16], "commit": commit()}


def _cases(wheels: Sequence[Wheel], work: Path) -> Iterator[Case]:
    for wheel in wheels:
        for number, file in enumerate(wheel.files):
            own = work / f"{wheel.package}-{number}"
            yield Case(
                name=wheel.name(file), topic=wheel.topic, license=wheel.license, file=file, folder=own, wheel=wheel
            )
    for name in EXPORTS:
        own = work / f"export-{name.replace(', ', '-').replace(' ', '-')}"
        yield Case(name=name, topic="exported here", license="-", file=File(path=name), folder=own)


def _prepared(case: Case, wheels: Sequence[Wheel], folder: Path) -> bool:
    """Whether the file of a case is there: it is unpacked, or exported unless the same sources wrote it."""
    case.folder.mkdir(parents=True, exist_ok=True)
    path, made = case.folder / MODEL, case.folder / "made.json"
    by = digest((), {case.wheel.sha256: case.file.path}) if case.wheel else digest(EXPORTING, versions())
    known = json.loads(made.read_text()) if made.is_file() else {}
    if known.get("by") != by or not path.is_file():
        _forget(case.folder)
        made.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        known = {"by": by, "fault": _brought(case, wheels, folder)}
        write_atomically(made, json.dumps(known))
    return known["fault"] is None


def _brought(case: Case, wheels: Sequence[Wheel], folder: Path) -> str | None:
    """Write the file of a case; return why there is none."""
    path = case.folder / MODEL
    if case.wheel is None:
        exporters = [_unpacked(wheel, folder) for wheel in wheels if not wheel.files]
        made = ask(export, case.name, str(path), exporters, time_limit_s=_EXPORT_S)
        return None if made.fault is None and made.value is None else str(made.fault or made.value)
    try:
        unpack(cached(case.wheel, folder), case.wheel, case.file, path)
    except Deep5Error as error:
        click.echo(str(error), err=True)
        return str(error)
    return None


def _unpacked(wheel: Wheel, folder: Path) -> str:
    """The folder of an unpacked wheel."""
    target = folder / "work" / f"{wheel.package}-{wheel.version}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=folder) as name, zipfile.ZipFile(cached(wheel, folder)) as archive:
            archive.extractall(name)
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(name, target)
    return str(target)


def _forget(folder: Path) -> None:
    """Delete the results of a folder, and the values to compare with."""
    for path in folder.iterdir():
        if path.name not in (MODEL, "made.json"):
            path.unlink()


def _is_described(folder: Path) -> bool:
    return done(folder, "original").exists() or "plain" in _read(folder, "original")


def _missing(folder: Path, back_end: str, last: str, origin: Mapping[str, str]) -> bool:
    found = _read(folder, back_end)
    return found.get("sources") != origin["sources"] or bool(missing_parts(found, last))


def run_jobs(
    function: Callable[..., None],
    jobs: list[list[Any]],
    name: str,
    part: str,
    options: argparse.Namespace,
    origin: Mapping[str, str],
    *more: str,
) -> None:
    """Run a function on all jobs, in as few processes as it takes; `part` is at fault where a process ends."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    for folder, *_ in jobs:
        done(Path(folder), name).unlink(missing_ok=True)
    while jobs:
        ended = run_function(
            function,
            jobs,
            dict(origin),
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
            found = found if found.get("sources") == origin.get("sources") else dict(origin)
            at = part or next((each for each in PARTS if each not in found), PARTS[-1])
            found[at] = f"fails: {ended.fault() or 'ended without a result'}"
            write_atomically(_path(place, name), json.dumps(found))
            jobs = jobs[1:]


def _result(case: Case, origin: Mapping[str, str]) -> dict[str, Any]:
    """What the page shows of a case: results of these sources only."""
    made = _read(case.folder, "made")
    original = _read(case.folder, "original")
    if made.get("fault") is not None:
        original = {"import": f"not {'unpacked' if case.wheel else 'exported'}: {made['fault']}"}
    elif original.get("sources") != origin["sources"]:
        original = {}
    answers = {name: _read(case.folder, name) for name in BACK_ENDS}
    current = {name: answer for name, answer in answers.items() if answer.get("sources") == origin["sources"]}
    return {
        "topic": case.topic,
        "license": case.license,
        "original": original,
        "back_ends": current if original else {},
    }


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(':', '-')}.json"


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = _path(folder, name)
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found
