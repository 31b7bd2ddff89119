"""The shipped recipes; each has a smoke size."""
