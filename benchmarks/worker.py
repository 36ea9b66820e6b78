"""The process behind one GPU: reads jobs, measures each, and answers. `pool.py` starts it.

Standard input has a job a line, as JSON; standard output an answer a line: first {"ready": ...}, then for
each job {"lines": [...], "ok": ...}. Records go to the file that the command line names.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hopgemm._bench import Session, Task, open_session


def serve(
    session: Session, peers: Mapping[str, Any], jobs: Iterable[str], answer: Callable[[Any], None]
) -> None:
    """Measures one job after the other, until there are no more."""
    for line in jobs:
        job = json.loads(line)
        task = Task(
            [tuple(job["shape"])],
            job["dtype"],
            job["layout"],
            job["protocol"],
            peers={name: peers[name] for name in job["peers"]},
        )
        lines: list[str] = []
        ok = dataclasses.replace(session, task=task).measure(lines.append)
        answer({"lines": lines, "ok": ok})


def open_answers() -> Callable[[Any], None]:
    """What prints an answer. From now on standard output is for answers alone; the rest goes to stderr."""
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lambda what: print(json.dumps(what), file=own)


def main(path: Path) -> None:
    """Opens the GPU that CUDA_VISIBLE_DEVICES names, and serves."""
    answer = open_answers()
    import peers

    session = open_session(Task(()), "torch", path)
    answer({"ready": session.rig.uuid})
    serve(session, peers.load(peers.NAMES), sys.stdin, answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
