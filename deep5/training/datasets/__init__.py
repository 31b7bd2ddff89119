"""Data sets by name. A name is imported on first use.

>>> import deep5 as d5
>>> data = d5.datasets.digits(limit=1000)
>>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
(1000, 359, {'input': 'float32[1, 28, 28]', 'label': 'int64[]'})
>>> sampler = d5.ShuffleSampler(data.train, 64, seed=1)
>>> len(sampler)
16
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deep5.core.former_paths import present_name

if TYPE_CHECKING:
    from deep5.training.datasets.audio import audio_folder as audio_folder
    from deep5.training.datasets.canvases import digit_canvases as digit_canvases
    from deep5.training.datasets.cifar import cifar10 as cifar10
    from deep5.training.datasets.cifar import cifar100 as cifar100
    from deep5.training.datasets.class_templates import synthetic as synthetic
    from deep5.training.datasets.click_log import clicks as clicks
    from deep5.training.datasets.coco_files import coco as coco
    from deep5.training.datasets.folders import image_folder as image_folder
    from deep5.training.datasets.generated_files import synthetic_files as synthetic_files
    from deep5.training.datasets.graphs import block_model as block_model
    from deep5.training.datasets.graphs import karate_club as karate_club
    from deep5.training.datasets.hub_tables import hugging_face as hugging_face
    from deep5.training.datasets.idx import fashion_mnist as fashion_mnist
    from deep5.training.datasets.idx import mnist as mnist
    from deep5.training.datasets.ilsvrc import imagenet as imagenet
    from deep5.training.datasets.library_docstrings import docstrings as docstrings
    from deep5.training.datasets.lists import file_list as file_list
    from deep5.training.datasets.numpy_files import arrays as arrays
    from deep5.training.datasets.speakers import speaker_sequences as speaker_sequences
    from deep5.training.datasets.speakers import synthetic_speaker_sequences as synthetic_speaker_sequences
    from deep5.training.datasets.spoken_words import pronunciations as pronunciations
    from deep5.training.datasets.spoken_words import synthetic_pronunciations as synthetic_pronunciations
    from deep5.training.datasets.tables import table as table
    from deep5.training.datasets.texts import text as text
    from deep5.training.datasets.texts import text_folder as text_folder
    from deep5.training.datasets.tfrecords import tfrecord as tfrecord
    from deep5.training.datasets.uci_digits import digits as digits
    from deep5.training.datasets.uci_digits import shifted_digits as shifted_digits
    from deep5.training.datasets.vowels import spoken_vowels as spoken_vowels
    from deep5.training.datasets.webdatasets import webdataset as webdataset
    from deep5.training.reinforcement.environment import environment as environment

_HOME = {
    "arrays": "deep5.training.datasets.numpy_files",
    "audio_folder": "deep5.training.datasets.audio",
    "block_model": "deep5.training.datasets.graphs",
    "cifar10": "deep5.training.datasets.cifar",
    "cifar100": "deep5.training.datasets.cifar",
    "coco": "deep5.training.datasets.coco_files",
    "digit_canvases": "deep5.training.datasets.canvases",
    "clicks": "deep5.training.datasets.click_log",
    "digits": "deep5.training.datasets.uci_digits",
    "environment": "deep5.training.reinforcement.environment",
    "docstrings": "deep5.training.datasets.library_docstrings",
    "fashion_mnist": "deep5.training.datasets.idx",
    "file_list": "deep5.training.datasets.lists",
    "hugging_face": "deep5.training.datasets.hub_tables",
    "image_folder": "deep5.training.datasets.folders",
    "imagenet": "deep5.training.datasets.ilsvrc",
    "karate_club": "deep5.training.datasets.graphs",
    "mnist": "deep5.training.datasets.idx",
    "pronunciations": "deep5.training.datasets.spoken_words",
    "shifted_digits": "deep5.training.datasets.uci_digits",
    "speaker_sequences": "deep5.training.datasets.speakers",
    "spoken_vowels": "deep5.training.datasets.vowels",
    "synthetic": "deep5.training.datasets.class_templates",
    "synthetic_files": "deep5.training.datasets.generated_files",
    "synthetic_pronunciations": "deep5.training.datasets.spoken_words",
    "synthetic_speaker_sequences": "deep5.training.datasets.speakers",
    "table": "deep5.training.datasets.tables",
    "text": "deep5.training.datasets.texts",
    "text_folder": "deep5.training.datasets.texts",
    "tfrecord": "deep5.training.datasets.tfrecords",
    "webdataset": "deep5.training.datasets.webdatasets",
}
__all__ = list(_HOME)

if not TYPE_CHECKING:  # a type checker reports a name that is missing

    def __getattr__(name: str) -> Any:
        name = present_name("datasets", name)
        if name not in _HOME:
            from deep5.core.deep500 import replaced

            there = ", ".join(_HOME)
            raise AttributeError(
                f"module 'deep5.training.datasets' has no attribute {name!r}; it has {there}{replaced(name)}"
            )
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
