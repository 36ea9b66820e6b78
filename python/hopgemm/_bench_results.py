"""The file of benchmark results: a header that says where it was measured, and the records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any

GROUP = ("shape", "dtype", "layout", "protocol", "framework")  # one run: its ratios belong together
_KEY = (*GROUP, "contender", "requested")
_SAME = ("commit", "gpu", "driver", "torch", "jax")  # what records of one file must share


class Results:
    """Records in memory and, where there is a path, in a file that is replaced whole after every shape."""

    def __init__(self, header: dict[str, Any], path: Path | None = None) -> None:
        """Continues the file at `path` if there is one. ValueError if it is from elsewhere or broken."""
        self.header, self.records, self._path = header, [], path
        if path is not None and path.exists():
            old = load(path)
            _require_same(old["header"], header, str(path), "this run")
            self.header, self.records = old["header"], old["records"]

    def has(self, group: dict[str, str], wanted: Set[tuple[str, str]]) -> bool:
        """Are all these (contender, requested config) recorded for that group, without an error?"""
        found = {
            (record["contender"], record["requested"])
            for record in self.records
            if record["error"] is None and all(record[name] == group[name] for name in GROUP)
        }
        return wanted <= found

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Adds records, in place of older ones with the same key, and saves."""
        self.records = _union(self.records, records)
        if self._path is not None:
            save(self._path, {"header": self.header, "records": self.records})


def load(path: Path) -> dict[str, Any]:
    """A file of results. ValueError names the file and what is wrong with it."""
    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: not a file of benchmark results ({error}). Move it away or name another"
        ) from None
    if not isinstance(data, dict) or not {"header", "records"} <= data.keys():
        raise ValueError(f"{path}: not a file of benchmark results (no header and records). Name another")
    return data


def save(path: Path, data: dict[str, Any]) -> None:
    """Writes a file that `load` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, json.dumps(data, indent=1) + "\n")


def replace(path: Path, text: str) -> None:
    """Replaces the file whole, so that an interrupted run leaves the last one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """One set of results from parts of one commit, on one GPU model; later files win. Else ValueError."""
    merged = load(paths[0])
    for path in paths[1:]:
        other = load(path)
        _require_same(merged["header"], other["header"], str(paths[0]), str(path))
        merged["records"] = _union(merged["records"], other["records"])
    return merged


def _union(old: list[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    by_key = {tuple(record[name] for name in _KEY): record for record in old}
    by_key |= {tuple(record[name] for name in _KEY): record for record in new}
    return list(by_key.values())


def _require_same(left: dict[str, Any], right: dict[str, Any], left_name: str, right_name: str) -> None:
    for name in _SAME:
        if left.get(name) != right.get(name):
            raise ValueError(
                f"{left_name} has {name} {left.get(name)!r}, {right_name} {right.get(name)!r}: "
                "results of one file come from one commit on one kind of machine. Name another file"
            )
