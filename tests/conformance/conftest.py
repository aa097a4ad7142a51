"""Makes ``broken_methods`` importable beside the tests that use it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
