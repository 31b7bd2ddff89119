"""All-reduce as deep5's own algorithms, made of messages alone, with what they send and what they should cost."""
