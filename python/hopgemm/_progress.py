"""A bar on standard error for what takes long; nothing where that is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_WIDTH = 30
_PERIOD_S = 0.1
_CLEAR = "\r\x1b[K"


class Bar:
    """`with Bar() as bar: bar.update(0.5, "half way")`; `bar.print(line)` prints beside it."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._start = self._drawn = time.monotonic()
        self._text = ""

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("")

    def update(self, done: float, text: str) -> None:
        """Shows the part of the work that is done, 0 to 1, and what is being done."""
        now = time.monotonic()
        if self._on and (text != self._text or now - self._drawn >= _PERIOD_S):
            self._drawn, self._text = now, text
            filled = round(_WIDTH * min(max(done, 0.0), 1.0))
            bar = "#" * filled + "." * (_WIDTH - filled)
            self._write(f"[{bar}] {100 * done:3.0f}% {now - self._start:4.0f} s  {text:.60}")

    def print(self, line: str) -> None:
        """Prints a line of results on standard output, clear of the bar."""
        self._write("")
        print(line, flush=True)

    def _write(self, text: str) -> None:
        if self._on:
            sys.stderr.write(_CLEAR + text)
            sys.stderr.flush()
