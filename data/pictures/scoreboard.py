"""Take the README's picture of the scoreboard from the built site: ``make picture`` runs this.

It needs playwright (extra ``dev``) and a Chromium on the system, and writes ``scoreboard.png``
beside itself.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "results" / "site" / "scoreboard.html"
PICTURE = Path(__file__).with_suffix(".png")
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH_PX = 1000
NUM_ROWS = 3
MOST_BYTES = 200_000
"""A reader of the README waits for every byte, and git keeps each version of it."""


def main() -> None:
    chromium = os.environ.get("LABKIT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
    if not chromium:
        sys.exit("no Chromium found: install one, or set LABKIT_CHROMIUM to it")
    if not PAGE.is_file():
        sys.exit(f"{PAGE.relative_to(ROOT)} is not built: `labkit site` builds it")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        window = {"width": WIDTH_PX, "height": 4000}
        page = browser.new_page(viewport=window, color_scheme="light")
        page.goto(PAGE.as_uri())
        table = page.locator("table").first
        head = page.locator("h1").bounding_box()
        last = table.locator("tbody tr").nth(NUM_ROWS - 1).bounding_box()
        assert head is not None
        assert last is not None
        height = last["y"] + last["height"] - head["y"]
        clip = {"x": 0.0, "y": head["y"], "width": float(WIDTH_PX), "height": height}
        picture = page.screenshot(clip=clip)
        browser.close()
    if len(picture) > MOST_BYTES:
        sys.exit(f"the picture takes {len(picture):,} bytes, more than {MOST_BYTES:,}: show less")
    PICTURE.write_bytes(picture)


if __name__ == "__main__":
    main()
