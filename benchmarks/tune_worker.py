"""The process behind one GPU of tune_table.py, and the file that its records go to. `pool.py` starts it.

Standard input has a product a line, as JSON; standard output an answer a line: first {"ready": ...}, then for
each product {"lines": [...], "ok": true}. What goes wrong ends the process: CUDA may be no good after it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jobs import of_training
from worker import open_answers

from hopgemm import _cache, _core
from hopgemm._bench_results import load, replace
from hopgemm._cache import Key
from hopgemm._shapes import GPT2_LAYERS
from hopgemm._tune_race import COOL, SUITE, Race, deals_k

_OF_GPT2 = frozenset(of_training(GPT2_LAYERS))
_COMMON = ("gpu", "driver", "hopgemm")  # of all records, in the file's header


class Records:
    """Winners in a file that is replaced whole after each product, a record a line."""

    def __init__(self, path: Path, gpu: str) -> None:
        """Continues the file at `path` if there is one. ValueError if it is from elsewhere or broken."""
        self.path, self.records = path, []
        self.header = {
            "commit": _core.commit,
            "gpu": gpu,
            "driver": _core.driver_version(),
            "hopgemm": _cache.version(),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        if not path.exists():
            return
        old = load(path)
        for name in ("commit", *_COMMON):
            if old["header"].get(name) != self.header[name]:
                raise ValueError(
                    f"{path}: {name} is {old['header'].get(name)!r}, here it is {self.header[name]!r}; "
                    "records of one file come from one commit on one kind of machine. Name another file"
                )
        self.header, self.records = old["header"], old["records"]

    def keys(self) -> set[Key]:
        """The products that are there."""
        return {Key(*(record[name] for name in Key._fields)) for record in self.records}

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Adds records and saves."""
        self.records += [{k: v for k, v in record.items() if k not in _COMMON} for record in records]
        lines = ",\n".join(json.dumps(record) for record in self.records)
        replace(self.path, f'{{"header": {json.dumps(self.header)},\n"records": [\n{lines}\n]}}\n')


def measure(key: Key, gpu: str) -> list[dict[str, Any]]:
    """The winner and, where it splits K, the best that does not; on PyTorch's current GPU."""
    from hopgemm import _tune_torch

    effort = COOL if ((key.m, key.n, key.k), key.majors) in _OF_GPT2 else SUITE
    race = Race(gpu, _tune_torch.open_bench(key), effort)
    found = [race.winner(key, _quiet)]
    if deals_k(found[0].config):
        found.append(race.winner(key._replace(batch_invariant=True), _quiet))
    return [x.as_json() for x in found]


def serve(
    records: Records,
    jobs: Iterable[str],
    answer: Callable[[Any], None],
    work: Callable[[Key, str], list[dict[str, Any]]] = measure,
) -> None:
    """Measures one product after the other, until there are no more."""
    for line in jobs:
        key, start = Key(*json.loads(line)["product"]), time.monotonic()
        found = work(key, records.header["gpu"])
        records.add(found)
        best = found[0]
        gain = best["default_microseconds"] / best["microseconds"]
        text = f"{key}: {best['microseconds']:.1f} us, {gain:.3f} of the default's speed, {best['config']}"
        answer({"lines": [f"{text} ({time.monotonic() - start:.1f} s)"], "ok": True})


def _quiet(done: float, text: str) -> None:
    pass


def main(path: Path) -> None:
    """Opens the GPU that CUDA_VISIBLE_DEVICES names, and serves."""
    answer = open_answers()

    from hopgemm import _tune_torch

    gpu = _core.device_info(_tune_torch.current_device())["name"]
    records = Records(path, gpu)
    answer({"ready": gpu})
    serve(records, sys.stdin, answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
