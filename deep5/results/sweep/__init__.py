"""Sweeps as they are stored: the declaration, and a line per proposed and per ended trial."""
