"""Screenshots of pages in a real browser, and how long pages take to load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

#: No network access of its own, and root may start it.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
#: Live parts are updated every two seconds, charts are drawn once their script is loaded.
SETTLE_MILLISECONDS = 3_500
DESKTOP = (1280, 860)
TALL = (1280, 1240)
PHONE = (390, 844)


@dataclass(frozen=True, slots=True)
class Shot:
    name: str
    path: str
    scheme: str = "light"
    size: tuple[int, int] = DESKTOP
    #: Key in the tenant's cookie.
    key: str = ""


#: When the page and all that it has requested by then are loaded.
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


class Camera:
    """Takes screenshots into a folder, and measures how long pages take."""

    def __init__(self, browser: Browser, base: str, folder: Path) -> None:
        self._browser = browser
        self._base = base
        self._folder = folder

    def take(self, shot: Shot) -> Path:
        """The page as a visitor would see it."""
        context = self._browser.new_context(
            viewport=viewport(shot.size),
            color_scheme="dark" if shot.scheme == "dark" else "light",
            device_scale_factor=2 if shot.size == PHONE else 1.5,
            locale="en-GB",
        )
        page = context.new_page()
        if shot.key:
            page.goto(f"{self._base}/console/sign-in")
            page.fill("#key", shot.key)
            page.click("main form button")
        page.goto(f"{self._base}{shot.path}")
        page.wait_for_timeout(SETTLE_MILLISECONDS)
        target = self._folder / f"{shot.name}.png"
        page.screenshot(path=target)
        context.close()
        # A page has few colours: 256 keep the files of the README small.
        with Image.open(target) as image:
            small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            small.save(target, optimize=True)
        return target

    def load_milliseconds(self, path: str) -> tuple[float, float]:
        """Until the page is loaded, and until its charts are drawn, without any cache."""
        context = self._browser.new_context(viewport=viewport(DESKTOP))
        page = context.new_page()
        page.goto(f"{self._base}{path}", wait_until="load")
        page.wait_for_timeout(50)  # the end of the load event is recorded after it
        loaded = drawn = float(page.evaluate(LOADED))
        if page.locator("[data-chart]").count():
            page.locator(".canvas .main-svg").first.wait_for(state="attached")
            drawn = float(page.evaluate("performance.now()"))
        context.close()
        return loaded, drawn


def viewport(size: tuple[int, int]) -> ViewportSize:
    return {"width": size[0], "height": size[1]}


@contextmanager
def opened_camera(base: str, folder: Path) -> Iterator[Camera]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        raise SystemExit("The pictures need a browser: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield Camera(browser, base, folder)
        browser.close()
