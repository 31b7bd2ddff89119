"""Where the hand-written networks are."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["WRITTEN"]

WRITTEN: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "pytorch": {
        "detection_centers": ("pytorch_detection", "Centers"),
        "detection_ssd": ("pytorch_detection", "SingleShot"),
        "generation_autoencoder": ("pytorch_dense", "Autoencoder"),
        "graph_block_model": ("pytorch_dense", "GraphNetwork"),
        "graph_karate_club": ("pytorch_dense", "GraphNetwork"),
        "recommendation_dlrm": ("pytorch_dense", "Recommender"),
        "reinforcement_reinforce": ("pytorch_dense", "Policy"),
        "speech_vowels": ("pytorch_recurrent", "Speech"),
        "text_byte_pairs": ("pytorch_transformers", "Decoder"),
        "text_gpt": ("pytorch_transformers", "Decoder"),
        "text_lstm": ("pytorch_recurrent", "LanguageModel"),
        "text_phonemes": ("pytorch_recurrent", "Transducer"),
        "vision_vit": ("pytorch_transformers", "VisionTransformer"),
    },
    "jax": {
        "detection_centers": ("jax_detection", "Centers"),
        "detection_ssd": ("jax_detection", "SingleShot"),
        "generation_autoencoder": ("jax_dense", "Autoencoder"),
        "graph_block_model": ("jax_dense", "GraphNetwork"),
        "graph_karate_club": ("jax_dense", "GraphNetwork"),
        "recommendation_dlrm": ("jax_dense", "Recommender"),
        "reinforcement_reinforce": ("jax_dense", "Policy"),
        "speech_vowels": ("jax_recurrent", "Speech"),
        "text_byte_pairs": ("jax_transformers", "Decoder"),
        "text_gpt": ("jax_transformers", "Decoder"),
        "text_lstm": ("jax_recurrent", "LanguageModel"),
        "text_phonemes": ("jax_recurrent", "Transducer"),
        "vision_vit": ("jax_transformers", "VisionTransformer"),
    },
}
"""By framework and recipe, the module of this package with the hand-written network, and its name."""
