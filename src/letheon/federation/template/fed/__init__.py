"""A federation that can forget."""
