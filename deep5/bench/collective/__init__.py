"""All-reduce timed: what is measured, by whom, and what is said of it."""
