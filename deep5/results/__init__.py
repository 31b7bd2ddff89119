"""Results of runs: on disk, as a table, as MLPerf events; import from the module that does it."""
