"""Shared by all tests: shapes in signatures are checked, examples are drawn from a fixed seed."""

import jaxtyping
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

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
