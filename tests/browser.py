"""Find a browser, serve the built site, and open its pages offline."""

import functools
import http.server
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_build" / "html"
PAGES = sorted(
    str(path.relative_to(SITE)) for folder in ("book", "notebooks") for path in (SITE / folder).glob("*.html")
)
HOW_TO_GET_ONE = (
    "no browser: install chromium (on Debian: apt install chromium), "
    "run 'playwright install chromium', or name one in ATTNCONV_BROWSER"
)


def executable(playwright) -> str:
    """Path of the browser to use; without one the test is skipped, or fails where CI=true."""
    named = os.environ.get("ATTNCONV_BROWSER")
    if named:
        if not shutil.which(named):
            pytest.fail(f"ATTNCONV_BROWSER: expected a program, got {named!r}")
        return shutil.which(named)
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), playwright.chromium.executable_path)
    if not Path(found).is_file():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(HOW_TO_GET_ONE)
    return found


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder: Path):
    """Serve a folder on a free port of this machine; give its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Visit:
    """A page with everything that went wrong on it: console errors, script errors, requests to other hosts."""

    def __init__(self, browser, address, *, width=1300, theme="light", touch=False, motion=False, scripts=True):
        self.address = address
        self.wrong = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 844 if width < 600 else 900},
            color_scheme=theme,
            has_touch=touch,
            reduced_motion="no-preference" if motion else "reduce",
            java_script_enabled=scripts,
        )
        self.context.add_init_script(
            f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')"
        )
        self.context.route(lambda url: not url.startswith((address, "data:", "blob:", "file:")), self._refuse)
        self.page = self.context.new_page()
        self.page.on(
            "console",
            lambda m: (
                self.wrong.append(f"console: {m.text} {m.location}") if m.type in ("error", "warning") else None
            ),
        )
        self.page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        self.page.on("requestfailed", lambda request: self.wrong.append(f"failed: {request.url}"))

    def _refuse(self, route):
        self.wrong.append(f"request to another host: {route.request.url}")
        route.abort()

    def open(self, page):
        """Open a page of the site and wait until formulas and figures stand."""
        self.page.goto(page if "://" in page else f"{self.address}/{page}", wait_until="load")
        self.page.wait_for_function(
            "() => !window.MathJax?.startup?.promise || window.MathJax.startup.promise.then(() => true)"
        )
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.attnconv-figure')].every((f) => f.dataset.ready === 'true')"
        )
        return self.page

    def close(self):
        """Close the page."""
        self.context.close()
