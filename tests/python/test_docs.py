"""The documentation holds: its examples run, and what it names is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLE = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = [(page.name, code) for page in PAGES for code in EXAMPLE.findall(page.read_text())]


@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=[f"{p}-{i}" for i, (p, _) in enumerate(EXAMPLES)])
def test_an_example_runs(page, code, tmp_path):
    for framework in ("torch", "jax"):
        if f"import {framework}\n" in code:
            pytest.importorskip(framework)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, f"{page}:\n{code}\n{done.stderr}"


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


def test_the_tests_behind_the_promises_are_there():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs/numerics.md").read_text())
    assert len(named) >= 20
    for file, test in named:
        text = (ROOT / "tests/python" / file).read_text()
        assert f"\ndef {test}(" in text, f"{file}::{test}"


def test_every_promise_has_a_test():
    rows = [line for line in (ROOT / "docs/numerics.md").read_text().splitlines() if line.startswith("| ")]
    assert all("::test_" in row for row in rows if row != "| promise | test |")


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in link or (page.parent / link).exists(), link


def test_every_public_name_is_on_the_api_page():
    import hopgemm

    text = (ROOT / "docs/api.md").read_text()
    for name in hopgemm.__all__:
        assert name == "__version__" or f"::: hopgemm.{name}\n" in text + "\n", name
