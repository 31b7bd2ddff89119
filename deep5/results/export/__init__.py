"""Exports results to the formats of other programs; import from the module of the format."""
