"""Update rules, one paper a file."""
