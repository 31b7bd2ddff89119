"""Search over the mutable parts of a recipe: spaces, samplers, pruners, and sweeps."""
