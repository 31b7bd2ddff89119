"""The recipes `data_loading_…`: images per second by format, decoder and workers, and the share of a training.

Each round of `warm` and `cold` loads an epoch of every case in random order, and twice one of arrays that are already
decoded. The pixels of all cases are compared, and before each epoch the page cache is checked. `training` compares
training steps on files with the same steps on arrays. No download.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from deep5.recipe.family import RecipeFamily

__all__ = ["FAMILY"]

_EPOCH = {"images": 128, "size": 224, "batch_size": 32, "order": "shuffled"}
_SMALL = {**_EPOCH, "images": 20, "size": 32, "batch_size": 8}
_GRID: dict[str, Any] = {
    "formats": ["folder", "tar", "tfrecord", "packed"],
    "decoders": ["pillow", "turbojpeg", "opencv"],
    "workers": [0, 1, 2, 4],
}
_FEW = {**_GRID, "decoders": ["pillow", "turbojpeg"], "workers": [0, 2]}


def _parts(case: str) -> dict[str, Any]:
    return _training() if case == "training" else _rates(case)


def _training() -> dict[str, Any]:
    import deep5 as d5
    from deep5.core.plugins import load
    from deep5.recipes.loading import measured, training

    workload = {
        "framework": "pytorch",
        "network": load("networks", "resnet18_small"),
        "network_kwargs": {"width": 8, "image": 64},
        "images": 128,
        "size": 64,
        "batch_size": 32,
    }
    small = {**workload, "network_kwargs": {"width": 2, "image": 32}, "images": 20, "size": 32, "batch_size": 8}
    files = {"form": "folder", "decoder": "pillow", "workers": 0}
    return {
        "FIXED": {
            "candidate": training.from_files,
            "baseline": training.from_arrays,
            "steps": 4,
            "rounds": 20,
            "threads": 1,
        },
        "MUTABLE": {"candidate_kwargs": {**workload, **files}, "baseline_kwargs": workload, "seed": 0},
        "METRICS": [(measured.LoadingShare(), None), (d5.Slowdown(), None)],
        "SIZES": {"smoke": {"candidate_kwargs": {**small, **files}, "baseline_kwargs": small, "steps": 2, "rounds": 6}},
    }


def _rates(case: str) -> dict[str, Any]:
    from deep5.recipes.loading import measured, sides

    return {
        "FIXED": {
            "candidate": {"warm": sides.warm_files, "cold": sides.cold_files}[case],
            "baseline": sides.ideal,
            "steps": 1,
            "rounds": 8,
        },
        "MUTABLE": {"candidate_kwargs": {**_EPOCH, **_GRID}, "baseline_kwargs": _EPOCH, "seed": 0},
        "METRICS": [
            # libjpeg-turbo's rules are exact; another library for JPEG may differ by as much.
            (measured.PixelDifference(), "<= 2 levels"),
            (measured.MisplacedPages(), "<= 1 %"),
            (measured.IdealImagesPerSecond(), None),
            *((measured.ImagesPerSecond(**asdict(each)), None) for each in sides.cases()),
        ],
        "SIZES": {"smoke": {"candidate_kwargs": {**_SMALL, **_FEW}, "baseline_kwargs": _SMALL, "rounds": 6}},
    }


FAMILY = RecipeFamily(
    cases={
        "warm": "Images per second by format, decoder and workers, of files in the page cache, against decoded arrays",
        "cold": "Images per second by format, decoder and workers, of files on the disk, against decoded arrays",
        "training": "Training steps of a residual network on JPEG files, against the same steps on decoded arrays",
    },
    parts=_parts,
)
