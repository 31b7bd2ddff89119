"""Connectionist temporal classification: the loss of a sequence of labels without an alignment."""

from __future__ import annotations

from deep5.core.errors import ShapeError, UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.operators.cpp import CppOperator
from deep5.operators.registry import register_operator

__all__ = ["CTCLoss"]


@register_operator("CTCLoss", domain="deep5")
class CTCLoss(CppOperator):
    """The negative log of a labeling's probability, which is summed over all alignments; one cost per sample.

    Inputs:
        activations: [T, N, C], not normalized: the operator applies softmax over C, and differentiates through it.
        labels: [L] `int32`, the concatenated labels of all samples; in [0, C) and not the blank.
        label_lengths: [N] `int32`; their sum is L.
        input_lengths: [N] `int32`, the steps of each sample, at most T; later steps do not contribute and have no
            gradient.

    The output is [N]. All sums are computed with logarithms. A sample with too few steps for its labels (repeated
    labels need a blank between them) has an infinite cost and, as the gradient does not exist, NaN gradients at its
    steps.

    Args:
        blank: The class that means no label.
        zero_infinity: Whether to replace an infinite cost and its gradient by zero.

    Raises:
        UsageError: An argument has a wrong type.

    References:
        Graves, Fernandez, Gomez and Schmidhuber, Connectionist Temporal Classification, ICML 2006, sections 4.1 (the
        recursions, equations 5 to 11) and 4.2 (the gradient, equations 15 and 16).
    """

    source = "ctc_loss.cpp"

    def __init__(self, blank: int = 0, zero_infinity: bool = False) -> None:
        if not isinstance(blank, int) or isinstance(blank, bool) or blank < 0:
            raise UsageError(f"CTCLoss: got blank={brief(blank)}; allowed: the number of a class")
        if zero_infinity not in (0, 1):
            raise UsageError(f"CTCLoss: got zero_infinity={brief(zero_infinity)}; allowed: True or False")
        super().__init__(blank=blank, zero_infinity=bool(zero_infinity))

    def specs(  # type: ignore[override]
        self, activations: TensorSpec, labels: TensorSpec, label_lengths: TensorSpec, input_lengths: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        """The costs.

        Raises:
            ShapeError: The shapes or element types are wrong.
        """
        whole = (labels, label_lengths, input_lengths)
        ranks = [len(spec.shape) for spec in (activations, *whole)]
        if ranks != [3, 1, 1, 1] or any(spec.dtype != "int32" for spec in whole):
            raise ShapeError(
                f"CTCLoss: got {activations}, {labels}, {label_lengths} and {input_lengths}; allowed: activations "
                "[T, N, C], then labels [L], label lengths [N] and input lengths [N] of int32"
            )
        _, batch, classes = activations.shape
        for spec in (label_lengths, input_lengths):
            if isinstance(batch, int) and isinstance(spec.shape[0], int) and spec.shape[0] != batch:
                raise ShapeError(f"CTCLoss: got {spec} lengths for {activations}; allowed: one per sample, {batch}")
        if isinstance(classes, int) and self.attributes["blank"] >= classes:
            raise ShapeError(
                f"CTCLoss: got blank={self.attributes['blank']} for {activations}; allowed: below {classes}"
            )
        return (TensorSpec(shape=(batch,), dtype=activations.dtype),)
