"""The page of `hopgemm trace` in a headless browser: Playwright with a Chromium, where both are installed."""

import shutil

import pytest

from hopgemm import _trace
from hopgemm._trace_page import page

CONFIG = "bf16_kk_128x256x64_c2x1_s4_coop+ctas8"
_CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None
)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright for a browser")
    if not _CHROMIUM:
        pytest.skip("no Chromium is installed here")
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, tmp_path):
    file = tmp_path / "trace.html"
    file.write_text(page(_trace.trace(1024, 1024, 512, CONFIG), ctas=4))
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    tab.errors = []
    tab.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.on("request", lambda r: tab.errors.append(r.url) if not r.url.startswith("file:") else None)
    tab.goto(file.as_uri())
    yield tab
    assert tab.errors == []
    tab.close()


def picture(tab):
    return tab.evaluate("document.getElementById('timeline').toDataURL()")


def test_says_what_it_is(opened):
    assert "1024 x 1024 x 512" in opened.inner_text("h1")
    assert "not measured" in opened.inner_text("#source") and CONFIG in opened.inner_text("#source")
    assert "cycles" in opened.inner_text("#figure-makespan")
    assert opened.inner_text("#figure-gap") == "yes"
    assert opened.inner_text("#figure-flight") == "4"
    assert opened.locator("#lost").count() == 0


def test_the_timeline_moves(opened):
    seen = [picture(opened)]
    for button in ("#tile", "#steps"):
        opened.click(button)
        seen.append(picture(opened))
    opened.hover("#timeline", position={"x": 600, "y": 60})
    opened.mouse.wheel(0, -300)
    opened.wait_for_timeout(200)  # the browser tells of the wheel later
    seen.append(picture(opened))
    opened.mouse.down()
    opened.mouse.move(500, 400)
    opened.mouse.up()
    seen.append(picture(opened))
    assert len(set(seen)) == len(seen)
    opened.click("#whole")
    assert picture(opened) == seen[0]


@pytest.mark.parametrize("cta", [0, 3])
def test_hover_names_what_is_there(opened, cta):
    opened.select_option("#cta", str(cta))
    opened.click("#steps")
    opened.hover("#timeline", position={"x": 600, "y": 26 + 4 * 34 + 17})
    text = opened.inner_text("#tip")
    assert text.startswith("wgmma: ")
    tiles = opened.evaluate(f"data.tiles[{cta}]")
    assert any(f"tile at row {m}, column {n}, step " in text for m, n in tiles)


def set_toy(tab, **values):
    for control, value in values.items():
        tab.evaluate(
            "([id, value]) => { const c = document.getElementById(id); c.value = value; c.oninput(); }",
            [control, str(value)],
        )
    return {key: tab.inner_text(f"#toy-{key}") for key in ("makespan", "idle", "gap", "flight")}


def test_the_toy(opened):
    """Loads of 1.2, products of 1: in turn 8 x 2.2; ahead of each other 8 x 1.2 and the last product."""
    serial = set_toy(opened, mode="serial", ktiles=8, ratio=1.2)
    assert serial == {"makespan": "17.6", "idle": "54.5%", "gap": "no: 7 gaps", "flight": "1"}
    ahead = set_toy(opened, mode="prefetch", depth=2)
    assert ahead == {"makespan": "10.6", "idle": "24.5%", "gap": "no: 7 gaps", "flight": "2"}
    fed = set_toy(opened, ratio=0.5, depth=3)
    assert fed == {"makespan": "8.5", "idle": "5.9%", "gap": "yes", "flight": "3"}
    assert set_toy(opened, depth=1)["makespan"] == "12.0"
