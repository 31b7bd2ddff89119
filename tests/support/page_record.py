"""The line of a page of results that states what made its numbers; the site shows it below the page's chart."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import cpuinfo


def record_line(command: str, note: str, versions: Mapping[str, str]) -> str:
    """Command, date, machine and versions, as an HTML comment.

    Args:
        command: What readers copy to make the numbers again.
        note: Addition to the machine's processor, such as the number of threads.
        versions: Versions of packages by name.
    """
    record = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{cpuinfo.get_cpu_info()['brand_raw']}; {note}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return f"<!-- record: {json.dumps(record)} -->"
