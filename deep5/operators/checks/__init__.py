"""The individual checks of `deep5.operators.check`, one per module."""
