"""Tests of what ./dev runs."""

import importlib.util
import sys
from pathlib import Path

PROVE = Path(__file__).resolve().parents[1] / "prove"
sys.path.insert(0, str(PROVE))
# Its command line has the name that Python gives to each.
_spec = importlib.util.spec_from_file_location("prove_main", PROVE / "__main__.py")
sys.modules["prove_main"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["prove_main"])
