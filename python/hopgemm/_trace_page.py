"""The timeline as one HTML file with nothing to fetch: `_trace.html` with the data put in."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from ._trace_events import LANES, Timeline, about


def page(timeline: Timeline, ctas: int) -> str:
    """The page that draws the first `ctas` CTAs, and lets its reader try the pipeline's parameters."""
    names = sorted({s.name for s in timeline.spans})
    number = {name: i for i, name in enumerate(names)}
    origin = min(s.begin for s in timeline.spans)
    drawn: list[list[list[Any]]] = [[] for _ in range(min(ctas, len(timeline.tiles)))]
    for s in sorted(timeline.spans, key=lambda s: s.begin):
        if s.cta < len(drawn):
            begin, length = round(s.begin - origin), round(s.end) - round(s.begin)
            drawn[s.cta].append([s.lane, number[s.name], begin, length, s.place, s.tile, s.step])
    data = {
        "about": about(timeline),
        "lanes": LANES,
        "names": names,
        "tiles": timeline.tiles[: len(drawn)],
        "ctas": drawn,
    }
    template = resources.files(__package__).joinpath("_trace.html").read_text(encoding="utf-8")
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return template.replace("/*DATA*/null", text)
