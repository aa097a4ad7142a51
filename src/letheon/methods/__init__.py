"""Unlearning methods, one file each; names are in ``letheon.registry``."""
