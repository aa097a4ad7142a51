"""``python -m letheon.cli``."""

from __future__ import annotations

from letheon.cli import main

main()
