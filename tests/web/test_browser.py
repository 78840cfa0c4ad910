"""The dashboard in Chromium: every page, what people do there, and what scripts can check."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kernelmark as km
from kernelmark.core.result import RunState
from kernelmark.stores import open_store

from .conftest import BACKENDS, PROBLEMS, RUNS, a_run, fill, fill_long, results_of

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on PATH"),
]
LAST = f"run-{RUNS - 1:03}"
WAIT_MS = 300_000  # ends a hang; a loaded machine is no failure
PAGES = {
    "overview": "/",
    "kernels": "/kernels",
    "runs": "/runs",
    "run": f"/run/{LAST}",
    "compare": "/compare",
    "roofline": "/roofline",
    "charts": "/charts",
    "micro": "/micro",
    "tuning": "/tuning",
    "devices": "/devices",
    "search": "/search?q=gemm",
}
# Text against the nearest background that is not transparent, by the formula of WCAG 2.
CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const style = getComputedStyle(node);
    if (!own || node.closest("svg, option, .skip, [hidden]") || style.display === "none") continue;
    if (!node.getClientRects().length) continue;
    const [a, b] = [light(rgb(style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push([node.textContent.trim().slice(0, 40), ratio]);
  }
  return bad;
}"""
UNNAMED = """() => [...document.querySelectorAll("input, select, button, a, [role=region]")]
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
    || (node.labels && node.labels.length && node.labels[0].textContent.trim())))
  .map((node) => node.outerHTML.slice(0, 120))"""


@contextlib.contextmanager
def serving(place: Path) -> Iterator[str]:
    words = [sys.executable, "-m", "kernelmark", "serve", "--port", "0", "--store", str(place)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+?:\d+", line)
        assert found, line
        yield found[0]
    finally:
        process.terminate()
        assert process.wait() == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("browser") / "results.sqlite"
    with open_store(made) as store:
        fill(store)
    return made


@pytest.fixture(scope="module")
def base(place: Path) -> Iterator[str]:
    with serving(place) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextlib.contextmanager
def tab(browser: Any, base: str, **options: Any) -> Iterator[Any]:
    """A page that must log no error and ask no other server."""
    context = browser.new_context(base_url=base, **options)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda one: wrong.append(str(one)))
    page.on(
        "request", lambda one: None if one.url.startswith(base) else wrong.append(f"asks {one.url}")
    )
    try:
        yield page
    finally:
        context.close()
    assert not wrong


def open_answer(page: Any) -> None:
    """The overview once the newest runs are judged."""
    page.goto("/")
    page.get_by_role("heading", name=re.compile("1 kernel slower")).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_reads_well(browser, base, scheme, width):
    size = {"width": width, "height": 900}
    with tab(browser, base, color_scheme=scheme, viewport=size) as page:
        open_answer(page)
        links = page.eval_on_selector_all(
            "table a", "(all) => all.map((one) => one.getAttribute('href'))"
        )
        series = next(link for link in links if link.startswith("/series/"))
        result = next(link for link in links if link.startswith("/result/"))
        for name, address in {**PAGES, "series": series, "result": result}.items():
            page.goto(address)
            assert page.locator("h1").count() == 1, name
            assert page.evaluate(CONTRAST) == [], name
            assert page.evaluate(UNNAMED) == [], name
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is wider than the window"


def test_a_regression_is_followed_to_its_command(browser, base):
    with tab(browser, base, permissions=["clipboard-read", "clipboard-write"]) as page:
        open_answer(page)
        page.locator(".answer").get_by_role("link").click()
        page.get_by_text("slower").first.wait_for()
        page.locator("figure svg").wait_for()
        page.locator("table").last.get_by_role("link", name=re.compile("ms$")).first.click()
        page.get_by_text("Samples by block").wait_for()
        page.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("kmark run -p 'gemm m=512 ")


def test_filters_and_sorting_are_in_the_address(browser, base):
    with tab(browser, base) as page:
        open_answer(page)
        page.goto("/kernels")
        page.get_by_label("Backend").select_option("numpy")
        page.wait_for_url("**/kernels?backend=numpy")
        assert page.locator("tbody tr").count() == len(PROBLEMS)
        for order in ("asc", "desc"):
            page.get_by_role("link", name="newest").click()
            page.wait_for_url(f"**order={order}*")
            shown = page.eval_on_selector_all(
                "td.k-value", "(all) => all.map((one) => Number(one.dataset.v))"
            )
            assert shown == sorted(shown, reverse=order == "desc")
        page.reload()
        again = page.eval_on_selector_all(
            "td.k-value", "(all) => all.map((one) => Number(one.dataset.v))"
        )
        assert again == shown


def test_a_filter_keeps_the_page_and_the_focus(browser, base):
    with tab(browser, base) as page:
        open_answer(page)
        page.goto("/kernels")
        page.evaluate("window.kept = true")
        page.get_by_label("Backend").focus()
        page.get_by_label("Backend").select_option("torch")
        page.wait_for_url("**/kernels?backend=torch")
        page.locator("tbody tr").nth(len(PROBLEMS)).wait_for(state="detached")
        assert page.evaluate("window.kept && document.activeElement.name") == "backend"
        csv = page.get_by_role("link", name="CSV").get_attribute("href")
        assert csv == "/kernels?backend=torch&format=csv"
        page.go_back()
        page.wait_for_url("**/kernels")
        page.locator("tbody tr").nth(len(PROBLEMS) * len(BACKENDS) - 1).wait_for()
        page.locator("h1").click()  # in a control, "/" is a character
        page.keyboard.press("/")
        page.keyboard.type("m=256")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search?q=m%3D256")
        page.get_by_role("heading", name="Search: m=256").wait_for()
        assert page.evaluate("window.kept")
        assert page.title() == "Search: m=256 · kernelmark"
        assert page.locator("nav [aria-current]").count() == 0


LONG = 120
PROBLEM_CELLS = "tbody td.k-name"


@pytest.fixture(scope="module")
def long_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = tmp_path_factory.mktemp("long") / "results.sqlite"
    with open_store(made) as store:
        fill_long(store, LONG)
    with serving(made) as url:
        yield url


def problems_of(page: Any, address: str) -> list[str]:
    """The problems that the server lists at an address."""
    join = "&" if "?" in address else "?"
    found = page.request.get(f"{address}{join}format=json").json()
    return [row["problem"] for row in found["tables"][-1]["rows"]]


def test_rows_that_come_after_a_click_are_whole_and_in_order(browser, long_base):
    """Rows that the window has no room for are put in after the first frame."""
    with tab(browser, long_base, viewport={"width": 1280, "height": 400}) as page:
        page.goto("/run/run-000")
        assert page.locator(PROBLEM_CELLS).all_inner_texts() == problems_of(page, "/run/run-000")
        page.evaluate("window.kept = true")
        for act in (
            lambda: page.get_by_role("link", name="median").click(),
            lambda: page.get_by_role("link", name="Next").click(),
            lambda: page.get_by_label("Backend").select_option("torch"),
            lambda: page.get_by_role("link", name="median").click(),
            lambda: page.get_by_role("link", name="median").click(),
            lambda: page.go_back(),
        ):
            before = page.url
            act()
            page.wait_for_function("(before) => location.href !== before", arg=before)
            wanted = problems_of(page, page.url)
            assert len(wanted) == 50
            page.wait_for_function(
                "([cells, wanted]) => [...document.querySelectorAll(cells)]"
                ".map((one) => one.innerText).join() === wanted.join()",
                arg=[PROBLEM_CELLS, wanted],
            )
        assert page.evaluate("window.kept")


def test_rows_of_a_search_are_sorted_in_place_after_they_came(browser, long_base):
    with tab(browser, long_base, viewport={"width": 1280, "height": 400}) as page:
        page.goto("/runs")
        while problems_of(page, "/kernels") == []:  # the newest runs are still being judged
            page.wait_for_timeout(100)
        page.keyboard.press("/")
        page.keyboard.type("torch")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search?q=torch")
        rows = page.locator("tbody").first.locator("tr")
        rows.nth(49).wait_for()
        page.get_by_role("columnheader", name="newest").click()
        shown = rows.locator("td.k-value").evaluate_all(
            "(all) => all.map((one) => Number(one.dataset.v))"
        )
        assert len(shown) == 50
        assert shown == sorted(shown)


def test_a_long_table_is_read_without_scripts(browser, long_base):
    with tab(browser, long_base, java_script_enabled=False) as page:
        page.goto("/run/run-000?sort=median_s")
        found = page.locator(PROBLEM_CELLS).all_inner_texts()
        while page.get_by_role("link", name="Next").count():
            page.get_by_role("link", name="Next").click()
            found += page.locator(PROBLEM_CELLS).all_inner_texts()
        assert found == problems_of(page, "/run/run-000?sort=median_s&rows=all")
        assert len(found) == LONG


def test_a_figure_is_shown_without_scripts(browser, base):
    with tab(browser, base, java_script_enabled=False) as page:
        page.goto("/roofline")
        image = page.locator("figure img")
        image.wait_for()
        assert image.bounding_box()["width"] > 300


def test_a_point_of_a_figure_tells_what_it_is(browser, base):
    with tab(browser, base) as page:
        page.goto("/roofline")
        page.locator("figure [aria-roledescription='point']").first.hover(force=True)
        page.locator(".tip").wait_for()
        assert "gemm m=" in page.locator(".tip").inner_text()
        assert "kmark run" in page.locator(".tip").inner_text()


def test_it_is_used_by_keyboard(browser, base):
    with tab(browser, base) as page:
        page.goto("/runs")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.keyboard.press("/")
        page.keyboard.type("m=256")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search?q=m%3D256")
        page.locator("tbody tr").first.wait_for()
        page.locator("tbody a").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/series/**")


def test_it_works_without_scripts(browser, base):
    with tab(browser, base, java_script_enabled=False) as page:
        page.goto("/kernels?backend=torch&sort=value&order=desc")
        while page.locator("tbody tr").count() == 0:  # the newest runs are still being judged
            page.reload()
        assert page.locator("tbody tr").count() == len(PROBLEMS)
        page.get_by_label("Op").select_option("gemm")
        page.get_by_role("button", name="Apply").click()
        page.wait_for_url("**op=gemm*")


def test_a_run_in_progress_fills_in(browser, place, base):
    with tab(browser, base) as page, open_store(place) as store:
        page.goto("/runs")
        page.get_by_text("● live").wait_for()
        store.add_run(a_run(60, state=RunState.RUNNING, finished=None))
        store.add_results("run-060", results_of(0)[:1])
        page.get_by_role("link", name="run-060").click()
        page.get_by_text("1 of 6").wait_for()
        page.get_by_text("● live").wait_for()
        store.add_results("run-060", results_of(0)[1:])
        page.get_by_text("6 of 6").wait_for()
        store.update_run(a_run(60))
        page.get_by_text("6 of 6").wait_for(state="detached")


def test_a_site_works_from_files(browser, place, tmp_path):
    words = ["site", "-o", str(tmp_path / "site"), "--runs", "1", "--store", str(place)]
    subprocess.run([sys.executable, "-m", "kernelmark", *words], check=True, capture_output=True)
    with tab(browser, f"file://{tmp_path}/site/") as page:
        page.goto(f"file://{tmp_path}/site/index.html")
        page.get_by_role("link", name="Kernels").click()
        page.locator("thead").get_by_role("columnheader", name="newest").click()
        shown = page.eval_on_selector_all(
            "td.k-value", "(all) => all.map((one) => one.dataset.v).filter(Boolean).map(Number)"
        )
        assert shown == sorted(shown)
        page.locator("tbody a").first.click()
        page.locator("figure svg").wait_for()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_figure_as_a_page_fits_a_phone_and_a_dark_system(browser, place, tmp_path, width, scheme):
    file = km.plot("ecdf", "run-000", store=place).save(tmp_path / "figure.html")
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("figure svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('figure svg').clientWidth") <= max(width, 820)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    text = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    expected = {"light": ("rgb(255, 255, 255)", "rgb(34, 34, 34)")}
    expected["dark"] = ("rgb(22, 24, 29)", "rgb(230, 230, 230)")
    assert (ground, text) == expected[scheme]
    assert not errors
    context.close()
