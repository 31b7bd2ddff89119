"""Charts of results: operators, training, performance profiles and networks; import from the module of the kind."""
