"""What a document states of its machine and its name: readings before and after agree, and none is impossible."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from deep5.audit.finding import Ledger

__all__ = ["check_device", "check_host", "check_name", "check_pools"]

_LASTING = ("vendor", "physical_cores")
# Frameworks without accelerators, and the version of PyTorch's package that has none.
_ON_HOST, _CPU_ONLY = ("reference",), "+cpu"
_THREADS = re.compile(r"\d+")


def check_host(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Rules 8 and 14: the machine before and after is one machine, with possible readings.

    Args:
        ledger: Receives the findings.
        document: result.json or comparison.json.
    """
    before, after = document["system"]["before"], document["system"]["after"]
    if before is None:
        return
    for reading in (before, after):
        if reading is not None:
            _check_reading(ledger, reading)
    if after is None or document["resumed"]:
        return
    ledger.same(14, "the host after the measurement", after["host"], before["host"])
    for key in _LASTING:
        ledger.same(14, f"the processor's {key} before and after", before["cpu"].get(key), after["cpu"].get(key))


def _check_reading(ledger: Ledger, reading: Mapping[str, Any]) -> None:
    memory, cpu, used = reading["memory_bytes"], reading["cpu"], reading["affinity"]
    physical, logical = cpu.get("physical_cores"), cpu["logical_cores"]
    right = (
        0 <= memory["available"] <= memory["total"]
        and (physical is None or physical > 0)
        and (cpu.get("clock_mhz") is None or 0 <= cpu["clock_mhz"] < math.inf)
        and all(0 <= value < math.inf for value in reading["load_average"] or ())
        and (used is None or (len(used) > 0 and used == sorted(set(used)) and used[0] >= 0))
    )
    ledger.hold(
        8,
        right,
        f"the machine has {logical} processors, {physical} of them physical, of which {used!r:.40} were used, and "
        f"{memory['available']} of {memory['total']} bytes free; allowed: parts no larger than the whole",
    )


def check_name(ledger: Ledger, document: Mapping[str, Any], between: str) -> None:
    """Rule 14: a result's name is its recipe's, with a date.

    Args:
        ledger: Receives the findings.
        document: result.json or comparison.json.
        between: What the name has between the recipe's and the date: "" or "-compare".
    """
    recipe = re.sub(r"[^A-Za-z0-9_-]", "_", str(document["recipe"]["name"]))
    names = {recipe, recipe.lstrip("-") or "recipe"}
    found = re.fullmatch(rf"(.*){between}-\d{{8}}-\d{{6}}-[0-9a-f]+", str(document["run_id"]))
    ledger.hold(
        14,
        found is not None and found[1] in names,
        f"the result is named {document['run_id']!r:.80}; allowed: the name of its recipe, "
        f"{document['recipe']['name']!r:.60}, and a date",
    )


def check_pools(ledger: Ledger, who: str, document: Mapping[str, Any], pools: Any, requested: Any) -> None:
    """Rule 3: no pool of threads is larger than the machine, the request, or a variable of the environment.

    Args:
        ledger: Receives the findings.
        who: Name used in findings.
        document: result.json or comparison.json.
        pools: Number of threads by pool.
        requested: Number of threads requested, or None.
    """
    before = document["system"]["before"]
    if not pools or before is None:
        return
    variables = (document["software"] or {}).get("environment_variables") or {}
    stated = [int(number) for name, value in variables.items() if "THREADS" in name
              for number in _THREADS.findall(str(value))[:4]]  # fmt: skip
    most = max([before["cpu"]["logical_cores"] or 1, requested or 1, *stated])
    odd = {name: count for name, count in pools.items() if not 1 <= count <= most}
    ledger.hold(3, not odd, f"{who} has pools of {odd!r:.80} threads; allowed: 1 to {most}")


def check_device(
    ledger: Ledger, who: str, document: Mapping[str, Any], framework: str, device: Any, requested: Any
) -> None:
    """Rules 3 and 14: a device is the requested one, and one that the framework and the machine have.

    Args:
        ledger: Receives the findings.
        who: Name used in findings.
        document: result.json or comparison.json.
        framework: Name of the framework, mode included.
        device: As read back.
        requested: As the recipe or plan names it, or None.
    """
    if device is None:
        return
    name, wanted = (str(one).partition(":")[0].lower() for one in (device, requested))
    if isinstance(requested, str):
        ledger.hold(
            3,
            (name == "cpu") == (wanted == "cpu"),
            f"{who} ran on the device {device!s:.40}, and {requested!r:.40} is requested; allowed: the requested one",
        )
    own = framework.partition(":")[0]
    torch = str(((document["software"] or {}).get("packages") or {}).get("torch"))
    on_host = own in _ON_HOST or (own == "pytorch" and torch.endswith(_CPU_ONLY))
    ledger.hold(
        14,
        name == "cpu" or not on_host,
        f"{who} ran on the device {device!s:.40}; allowed: cpu, the only one that {own} has",
    )
    if name != "cpu" and not document["system"]["before"]["accelerators"]:
        ledger.skip(f"the device of {who}: no accelerators are listed, as without nvidia-smi")
