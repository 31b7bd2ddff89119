"""Generative training: noise added to samples, latent numbers drawn for them, and images drawn by what was trained."""
