"""deep5's own all-reduce algorithms, built from messages, with their traffic and their modeled cost."""
