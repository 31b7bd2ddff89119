"""Studies: a recipe run for several values and seeds."""
