"""Trained networks: loaded from results, evaluated, used for prediction."""
