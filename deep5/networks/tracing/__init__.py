"""Python operators traced into ONNX operators, for engines that run nothing else."""

from deep5.networks.tracing.expansion import expand_operator, traced

__all__ = ["expand_operator", "traced"]
