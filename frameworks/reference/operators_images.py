"""Operators on images: resizing, sampling, region pooling, cropping, and decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from deep5.core.plugins import missing_dependency
from deep5.frameworks.reference.kernels import blocks, decoding, regions, resize, sampling
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.table import Call, Operator, Site, by_position, chosen, configured
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]

_RESIZED = {
    "coordinate_transformation_mode": (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
    ),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
}
_SAMPLED = {"mode": ("linear", "cubic", "nearest"), "padding_mode": ("zeros", "border", "reflection")}
_ALIGNED = {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel"), "mode": ("avg", "max")}
_COLOURS = {"pixel_format": ("RGB", "BGR", "Grayscale")}


def _resize(site: Site) -> Call:
    interpolation = resize.Interpolation(
        mode=site.attribute("mode", "nearest"),
        coordinate_transformation_mode=site.attribute("coordinate_transformation_mode", "half_pixel"),
        nearest_mode=site.attribute("nearest_mode", "round_prefer_floor"),
        cubic_coeff_a=site.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(site.attribute("exclude_outside", 0)),
        antialias=bool(site.attribute("antialias", 0)),
    )
    function = partial(
        resize.resize,
        interpolation=interpolation,
        axes=site.attribute("axes"),
        policy=site.attribute("keep_aspect_ratio_policy", "stretch"),
        extrapolation_value=site.attribute("extrapolation_value", 0.0),
    )
    return Call(by_position(function, site.given), site.given)


def _resize_refusal(node: ir.Node) -> str | None:
    given = [value is not None for value in (*node.inputs, None, None, None)]
    if not given[2] and not given[3]:
        return "got neither scales nor sizes; allowed: one of them"
    if attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize" and not given[1]:
        return "got coordinate_transformation_mode='tf_crop_and_resize' without roi; allowed: with it"
    return chosen(**_RESIZED)(node)


def _grid_sample(site: Site) -> Call:
    function = partial(
        sampling.grid_sample,
        mode=site.attribute("mode", "linear"),
        padding_mode=site.attribute("padding_mode", "zeros"),
        align_corners=bool(site.attribute("align_corners", 0)),
    )
    return Call(function, (0, 1))


def _roi_align(site: Site) -> Call:
    function = partial(
        regions.roi_align,
        mode=site.attribute("mode", "avg"),
        output=(site.attribute("output_height", 1), site.attribute("output_width", 1)),
        sampling_ratio=site.attribute("sampling_ratio", 0),
        spatial_scale=site.attribute("spatial_scale", 1.0),
        shifted=site.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel",
    )
    return Call(function, (0, 1, 2))


def _non_max_suppression(site: Site) -> Call:
    function = partial(regions.non_max_suppression, center_point_box=bool(site.attribute("center_point_box", 0)))
    return Call(by_position(function, site.given), site.given)


def _image_decoder(site: Site) -> Call:
    try:
        import PIL  # noqa: F401 - fail here, before anything runs
    except ModuleNotFoundError as error:
        raise missing_dependency("the operator ImageDecoder", error) from error
    return Call(partial(decoding.decoded, pixel_format=site.attribute("pixel_format", "RGB")), (0,))


def _blocks(function: Callable[..., Array]) -> Operator:
    """If nothing moves, as with one-element blocks, the result shares the input's memory."""
    return configured(function, blocksize=None, mode="DCR")._replace(view=True, refusal=chosen(mode=("DCR", "CRD")))


def _affine_grid(site: Site) -> Call:
    return Call(partial(sampling.affine_grid, align_corners=bool(site.attribute("align_corners", 0))), (0, 1))


OPERATORS: dict[str, Operator] = {
    "AffineGrid": Operator(_affine_grid),
    "CenterCropPad": configured(blocks.center_crop_pad, axes=None),
    "DepthToSpace": _blocks(blocks.depth_to_space),
    "GridSample": Operator(_grid_sample, refusal=chosen(**_SAMPLED)),
    "ImageDecoder": Operator(_image_decoder, refusal=chosen(**_COLOURS)),
    "MaxRoiPool": configured(regions.max_roi_pool, pooled_shape=None, spatial_scale=1.0),
    "NonMaxSuppression": Operator(_non_max_suppression),
    "Resize": Operator(_resize, refusal=_resize_refusal),
    "RoiAlign": Operator(_roi_align, refusal=chosen(**_ALIGNED)),
    "SpaceToDepth": _blocks(blocks.space_to_depth),
}
