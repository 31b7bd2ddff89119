"""`OwnModel`: a model of a framework's own library, with a loss: trained as it is, or as its export to ONNX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from deep5.core.errors import Unsupported
from deep5.core.executors import GraphExecutor
from deep5.core.network_spec import NetworkSpec

__all__ = ["Exported", "OwnModel"]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The export of a model to ONNX.

    Attributes:
        proto: The model, an `onnx.ModelProto`, with the loss if it is the user's own function.
        trained: Names of the initial values that are trained.
        frozen: Of them, those without a gradient.
        changes: What the export changed, a sentence each.
        exporter: Name and version of the exporter.
    """

    proto: Any
    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    changes: tuple[str, ...]
    exporter: str


class OwnModel(ABC):
    """A model of a framework's own library, such as a `torch.nn.Module`, with its loss and the inputs that it gets.

    Made by `Framework.own_model`.

    Attributes:
        name: Name of the model's class.
        kind: Name of the library's base class, such as `"torch.nn.Module"`.
        class_axis: The axis of the output with the classes of the loss `"cross_entropy"`; None: another loss.
    """

    name: str
    kind: str
    class_axis: int | None = None

    @abstractmethod
    def executor(self, seed: int) -> GraphExecutor:
        """The executor of the model as it is, which trains the model's own parameters.

        Args:
            seed: Seed of noise only.

        Raises:
            UsageError: The model or the loss does not run on such inputs.
        """

    def exported(self) -> Exported:
        """Export the model by the library's exporter.

        Raises:
            Unsupported: The library has no exporter, or the model cannot be exported; the message gives the line of the
                user's code, if known.
        """
        raise Unsupported(
            f"{self.kind} has no exporter to ONNX here; remedy: run {self.name} on its own framework, or export it "
            "yourself and give the .onnx file as the model"
        )

    def executor_of(self, network: NetworkSpec, seed: int) -> GraphExecutor:
        """An executor of the export, in whose place a copy of the model as it is computes.

        Args:
            network: The export, in any precision and with any weights, which the copy gets.
            seed: Seed of noise only.

        Raises:
            Unsupported: The copy cannot stand for the export, with the reason.
        """
        raise Unsupported(f"{self.kind} cannot be compared with its export yet")

    def draw_as_export(self, executor: GraphExecutor) -> None:
        """Let an executor of `executor_of` drop the elements in training that the export drops, from now on.

        Raises:
            Unsupported: It cannot, with the reason.
        """
        raise Unsupported(f"{self.kind} draws from the random numbers of its library only")
