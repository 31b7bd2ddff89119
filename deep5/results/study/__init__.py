"""Studies on disk: records, charts, scaling, resumption."""
