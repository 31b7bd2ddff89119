"""Results that the site shows: made by one command each, stored with what made them, and drawn by `deep5 report`.

`make figures` runs all commands of `commands()`, or those of `ONLY=name,name`, and writes for each to
`docs/results/stored/NAME/`: the figures that deep5 draws of the result folder, `values.csv` with the metrics of every
run, and `record.json` with command, machine, versions, commit and date. Pages show a figure by a line
`<!-- figure: NAME FIGURE -->`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
from mkdocs.exceptions import PluginError

from deep5.core.quantities import size
from drawn_charts import inlined

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "results" / "stored"
TABLE = re.compile(r"^<!-- table: (\S+) (.*?) -->$", re.MULTILINE)
PLACE = re.compile(r"^<!-- figure: (\S+) (\S+) -->$", re.MULTILINE)
COMMANDS = {
    "optimizers": "deep5 study optimizer_study --target accuracy=95",
    "schemes": (
        "deep5 study digits_lenet --ranks 2 --launcher threads --seeds 3 --target accuracy=95 --vary "
        "scheme=all_reduce,parameter_server,stale_synchronous,asynchronous,local_sgd,gossip,neighbourhood,elastic_averaging"
    ),
    "compression": "deep5 study distributed_compression_study --seeds 3 --target accuracy=95",
    "staleness": "deep5 study distributed_staleness_study --seeds 3 --target accuracy=95",
    "scaling": "deep5 study distributed_scaling_strong --seeds 3 --target accuracy=95",
    "weak_scaling": "deep5 study distributed_scaling_weak --seeds 3 --target accuracy=95",
    "large_batches": "deep5 study large_batches --seeds 3",
    "collectives": "deep5 run distributed_collectives",
    "microbatching_alexnet": "deep5 run microbatching_alexnet_onnxruntime",
    "microbatching_resnet": "deep5 run microbatching_resnet_onnxruntime",
}
"""Stored results by name, each with the command that makes it."""
WORKLOADS = {
    "detection_centers": "pytorch,onnxruntime",
    "digits_lenet": "pytorch,onnxruntime",
    "generation_autoencoder": "pytorch,onnxruntime",
    "generation_diffusion": "pytorch,onnxruntime",
    "generation_gan": "pytorch,onnxruntime",
    "graph_block_model": "pytorch,onnxruntime",
    "graph_karate_club": "pytorch,onnxruntime",
    "recommendation_dlrm": "pytorch,onnxruntime",
    "reinforcement_dqn": "pytorch,onnxruntime",
    "reinforcement_reinforce": "pytorch,onnxruntime",
    "speech_speakers": "pytorch,onnxruntime",
    "text_lstm": "pytorch,onnxruntime",
    "vision_adapters": "pytorch,onnxruntime",
    "vision_vit": "pytorch,onnxruntime",
}
"""Recipes whose goals and times are measured over seeds, each with the back-ends: stored as `workloads/RECIPE`."""
GALLERY = {
    **{name: f"workloads/{name}" for name in WORKLOADS},
    "distributed_collectives": "collectives",
    "distributed_compression_study": "compression",
    "distributed_scaling_strong": "scaling",
    "distributed_scaling_weak": "weak_scaling",
    "distributed_staleness_study": "staleness",
    "large_batches": "large_batches",
    "microbatching_alexnet_onnxruntime": "microbatching_alexnet",
    "microbatching_resnet_onnxruntime": "microbatching_resnet",
    "optimizer_study": "optimizers",
}
"""Recipes that the gallery shows by one of these results; those of others have the name `recipes/RECIPE`."""
SMALL = (
    "cifar10_resnet44",
    "deepbench_conv",
    "deepbench_gemm",
    "deepbench_rnn",
    "imagenet_resnet50",
    "speech_vowels",
    "text_phonemes",
)
"""Recipes that the gallery shows at their smoke size: they need data that is not on the machine, or long runs."""


def commands() -> dict[str, str]:
    """The command of every stored result by name, those of the gallery included."""
    from deep5.cli.list import listing

    found = dict(COMMANDS)
    for name, frameworks in WORKLOADS.items():
        found[f"workloads/{name}"] = f"deep5 study {name} --seeds 5 --threads 1 --vary framework={frameworks}"
    for row in listing("recipes"):
        name = str(row["name"])
        if not row["internal"] and name not in GALLERY:
            found[f"recipes/{name}"] = f"deep5 run {name}" + (" --size smoke" if name in SMALL else "")
    return found


KEPT_COLUMNS = ("run_id", "recipe", "size", "seeds", "framework", "threads", "ranks", "status", "accepted")
LIBRARIES = ("numpy", "torch", "tensorflow", "jax", "onnxruntime", "openvino")
RUN_LIMIT_S = 7200


def collect(name: str, command: str, folder: Path) -> None:
    """Stores the figures, the values and the record of a result.

    Args:
        name: Name of the stored result.
        command: The command that made it.
        folder: The folder of its result folders, which has no others.
    """
    import deep5 as d5

    frame = d5.results.load(folder)
    target = STORED / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="deep5-figures-") as drawn:
        _deep5("report", str(folder), "--format", "svg", "--out", drawn)
        # The report's are in its colors; what only a study or a run has drawn itself comes after them.
        found = {path.stem: path for path in sorted(Path(drawn).glob("*.svg"))}
        prefixes = [str(run) for run in frame["run_id"]] + [path.name for path in folder.iterdir()]
        for stem, path in found.items():
            shutil.copyfile(path, target / f"{_short(stem, prefixes)}.svg")
    for path in sorted(folder.glob("*/*.svg")):
        if not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)
    columns = [each for each in frame.columns if each in KEPT_COLUMNS or each.startswith(("metric.", "set."))]
    values = frame[frame["kind"] == "run"][columns].dropna(axis="columns", how="all")
    candidates = _candidates(folder)
    if candidates:
        values.insert(0, "candidate", [candidates[run] for run in values["run_id"]])
        order = list(dict.fromkeys(candidates.values()))
        values = values.sort_values("candidate", key=lambda names: names.map(order.index), kind="stable")
    values.to_csv(target / "values.csv", index=False)
    (target / "record.json").write_text(json.dumps(_record(command, folder), indent=1) + "\n", encoding="utf-8")


def _candidates(folder: Path) -> dict[str, str]:
    """The candidate of each run of a study, by the run's identifier."""
    found = {}
    for path in folder.glob("*/study.json"):
        study = json.loads(path.read_text(encoding="utf-8"))
        for name, candidate in study["candidates"].items():
            found |= {Path(run).name: name for run in candidate["runs"]}
    return found


def _short(stem: str, prefixes: list[str]) -> str:
    """The name of a figure without that of its result folder."""
    fits = [prefix for prefix in prefixes if stem.startswith(f"{prefix}-")]
    return stem[len(max(fits, key=len)) + 1 :] if fits else stem


def _record(command: str, folder: Path) -> dict[str, Any]:
    """What made a result: from the documents of its runs."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("**/result.json"))]
    first, last = min(runs, key=lambda run: str(run["started"])), max(runs, key=lambda run: str(run["finished"]))
    machine, software = first["system"]["before"], first["software"]
    shares = [run["resources"]["others_share"] for run in runs if run["resources"].get("others_share") is not None]
    return {
        "command": command,
        "date": str(first["started"])[:10],
        "units": {each["name"]: each["unit"] for run in runs for each in run["metrics"]},
        "seconds": round(_epoch(last["finished"]) - _epoch(first["started"])),
        "runs": len(runs),
        "machine": {
            "processor": machine["cpu"]["model"],
            "cores": machine["cpu"]["physical_cores"],
            "memory_bytes": machine["memory_bytes"]["total"],
            "accelerators": machine["accelerators"],
        },
        "others_share": max(shares, default=None),
        "platform": software["platform"],
        "commit": software["commit"] and {"id": software["commit"]["id"], "dirty": _is_changed()},
        "versions": {
            "deep5": software["deep5"],
            "Python": software["python"],
            **{name: software["packages"][name] for name in LIBRARIES if name in software["packages"]},
        },
    }


def _is_changed() -> bool:
    """Whether the code differs from its commit; other files, such as the results of this program, do not count."""
    words = ["git", "status", "--porcelain", "--", "deep5", "frameworks", "metrics", "recipes"]
    return bool(subprocess.run(words, cwd=ROOT, capture_output=True, timeout=60, check=True).stdout.strip())


def _epoch(moment: str) -> float:
    return time.mktime(time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S"))


def _deep5(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deep5", *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )
    # A result that misses its goal is a result.
    if done.returncode not in {0, 1}:
        raise SystemExit(f"deep5 {shlex.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")


def make(name: str, command: str, size: str | None = None) -> None:
    """Runs the command of a stored result and stores it.

    Args:
        name: Name of the stored result.
        command: As readers copy it.
        size: Another size of its recipe, such as "smoke"; None: the size that the command names.
    """
    _, *words = shlex.split(command)
    with tempfile.TemporaryDirectory(prefix="deep5-figures-") as folder:
        _deep5(*words, *(["--size", size] if size else []), "--out", folder)
        collect(name, command, Path(folder))


def record_of(name: str) -> dict[str, Any]:
    """The record of a stored result.

    Raises:
        PluginError: There is none, or it names no command.
    """
    path = STORED / name / "record.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not record.get("command"):
        raise PluginError(
            f"the figures of {name!r} have no command in {path.relative_to(ROOT)}; remedy: make figures ONLY={name}"
        )
    return dict(record)


def no_figure(name: str) -> PluginError:
    """The error of a stored result without a figure."""
    return PluginError(f"the stored result {name!r} has no figure; remedy: make figures ONLY={name}")


def standing(record: dict[str, Any]) -> str:
    """One sentence on machine, versions and date of a record."""
    machine, commit = record["machine"], record["commit"]
    share = record["others_share"]
    parts = [
        f"{machine['processor']}, {machine['cores']} cores, {size(machine['memory_bytes'])}, "
        f"{', '.join(map(str, machine['accelerators'])) or 'no accelerator'}",
        "" if share is None else f"other programs used {100 * share:.0f} % of the processors at most",
        ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        f"commit {commit['id'][:8]}" + (" with changes" if commit["dirty"] else "") if commit else "",
        f"{record['date']}, {record['seconds']:,} s",
    ]
    return "; ".join(part for part in parts if part) + "."


def table(name: str, metrics: list[str]) -> str:
    """The median of each metric over the seeds, with the smallest and the largest value, for each candidate of a study.

    Args:
        name: Name of the stored result.
        metrics: Names of metrics, each in the unit in which deep5 stores it.
    """
    record_of(name)
    values = pd.read_csv(STORED / name / "values.csv")
    units = json.loads((STORED / name / "record.json").read_text(encoding="utf-8"))["units"]
    if missing := [metric for metric in metrics if f"metric.{metric}" not in values]:
        raise PluginError(
            f"the stored result {name!r} has no {', '.join(missing)}; remedy: name a metric of its recipe"
        )
    heads = [metric.replace("_", " ") + (f" ({units[metric]})" if units[metric] != "B" else "") for metric in metrics]
    lines = [f"| candidate | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for candidate in dict.fromkeys(values["candidate"]):
        of_one = values[values["candidate"] == candidate]
        cells = []
        for metric in metrics:
            low, middle, high = (
                _number(each, units[metric]) for each in of_one[f"metric.{metric}"].quantile([0, 0.5, 1])
            )
            cells.append(f"{middle} ({low} … {high})" if low != high else middle)
        lines.append(f"| {candidate} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float, unit: str) -> str:
    """A value with four digits; bytes with their unit."""
    if math.isnan(value):
        return "none"
    if unit == "B":
        return size(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_figures(markdown: str, page: str) -> str:
    """Shows the stored figures and tables that a page names, each figure with its command, machine, versions and date.

    Raises:
        PluginError: A figure does not exist, or has no command.
    """
    up = "../" * page.count("/")

    def show(found: re.Match[str]) -> str:
        name, figure = found.groups()
        record, path = record_of(name), STORED / name / f"{figure}.svg"
        if not path.is_file():
            drawn = ", ".join(sorted(each.stem for each in path.parent.glob("*.svg")))
            raise PluginError(f"{page} shows the figure {figure!r} of {name!r}; allowed: {drawn}; remedy: one of these")
        picture = inlined(path.read_text(encoding="utf-8"), f"{figure.replace('_', ' ')} of {record['command']}")
        where = f"{up}results/stored/{name}"
        return (
            f'<div class="picture">{picture}</div>\n\n```sh\n{record["command"]}\n```\n\n'
            f"{standing(record)} [Values]({where}/values.csv), [picture]({where}/{figure}.svg).\n{{ .standing }}"
        )

    return TABLE.sub(lambda found: table(found.group(1), found.group(2).split()), PLACE.sub(show, markdown))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Comma-separated names.")
    parser.add_argument("--size", help="Another size of the recipes, to try the commands.")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name]
    known = commands()
    if unknown := set(chosen) - set(known):
        raise SystemExit(f"no stored result is named {', '.join(sorted(unknown))}; allowed: {', '.join(known)}")
    for each in chosen or known:
        make(each, known[each], options.size)
        sys.stdout.write(f"{each}: {standing(record_of(each))}\n")
