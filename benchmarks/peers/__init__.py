"""Other libraries' products beside ours: each module here has `contender(case)`, for a `TorchCase`.

Nothing is imported before it is asked for: what is not installed gives a record with that error.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

NAMES = ("triton", "pallas", "quack")


def load(names: Sequence[str]) -> dict[str, Any]:
    """name -> what makes its contender of a case, for `hopgemm._bench.Task`."""
    return {name: _opener(name) for name in names}


def _opener(name: str) -> Any:
    return lambda case: importlib.import_module(f"{__name__}.{name}_matmul").contender(case)
