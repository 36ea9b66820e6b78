"""Text that a script writes into a page, between a comment `<!-- NAME ... -->` and `<!-- /NAME -->`."""

from __future__ import annotations


def fill(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of that name. ValueError where it has none."""
    start, end = page.find(f"<!-- {name}"), page.find(f"<!-- /{name} -->")
    if start < 0 or end < start:
        raise ValueError(f"the page has no lines '<!-- {name} -->' and '<!-- /{name} -->'")
    head = page[: page.index("\n", start) + 1]
    return head + text + "\n" + page[end:]
