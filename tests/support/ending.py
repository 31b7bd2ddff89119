"""Events that interrupt a training."""

from __future__ import annotations

from typing import Any

import deep5 as d5


class StopIn(d5.Event):
    """Stops after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        if info.step == self.step:
            raise d5.StopTraining("enough")
