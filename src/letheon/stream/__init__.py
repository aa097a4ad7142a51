"""Requests one after another on one language model: the life of a stream, its numbers and its report."""
