"""Shared by all tests: shapes in signatures are checked, examples are drawn from a fixed seed."""

import jaxtyping
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook
from playwright.sync_api import sync_playwright

from browser import executable

# Every function of the package checks the shapes in its signature while the tests run.
install_import_hook("attnconv", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

settings.register_profile("book", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("book")


@pytest.fixture
def no_signature_checks():
    """Let wrong shapes through to the package's own checks, as they come where no hook is installed."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=executable(playwright), args=options)
        yield browser
        browser.close()
