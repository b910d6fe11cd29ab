"""Two people on one notebook: needs the extra ``collab``, which ``make test`` does not install."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browser.servers import TOKEN, serving
from tests.browser.test_session import _status, browser, root, sees

pytest.importorskip("jupyter_collaboration", reason="the extra 'collab' is not installed")
pytestmark = [pytest.mark.slow, sees]
__all__ = ["browser", "root"]  # fixtures


def test_an_edit_reaches_the_other_page_and_nobody_enters_without_the_token(
    browser: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOME": tmp_path, "LABKIT_ROOT": root, "JUPYTER_TOKEN": TOKEN}.items():
        monkeypatch.setenv(name, str(value))
    command = "labkit", "lab", "--collaborative", "--no-browser", "--allow-root", "--port={port}"
    path = "notebooks/energy/alpha.ipynb"
    with serving(*command, folder=tmp_path) as address:
        assert _status(f"{address}/lab/tree/{path}") == 302  # to the login page
        assert _status(f"{address}/api/collaboration/room/JupyterLab:globalAwareness") == 403
        pages = [browser.new_context().new_page() for _ in range(2)]
        for page in pages:
            page.set_default_timeout(120_000)
            page.goto(f"{address}/lab/tree/{path}?token={TOKEN}")
            page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        first, second = pages
        first.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
        first.keyboard.type("# said by Ann\n")
        second.get_by_text("# said by Ann").first.wait_for()
        second.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
        second.keyboard.press("Control+Home")
        second.keyboard.type("# and by Ben\n")
        first.get_by_text("# and by Ben").first.wait_for()
        for page in pages:
            page.context.close()
    changed = subprocess.run(["git", "status", "--short"], cwd=root, capture_output=True, text=True)
    assert changed.stdout in ("", f" M {path}\n")  # nothing else of the session's
