"""The tables and figures of Lethe and COP: what they print, what has to be run for them, and how the two compare."""
