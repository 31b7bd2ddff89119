"""Serving: load on a network by MLPerf's scenarios, with batch dispatch."""
