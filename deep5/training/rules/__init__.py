"""Update rules, one paper per file."""
