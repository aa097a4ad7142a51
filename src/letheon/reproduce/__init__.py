"""The tables and figures of the Lethe paper: what they print, what has to be run for them, and how the two compare."""
