"""Federations of separate processes and machines: their apps, their processes, their keys."""
