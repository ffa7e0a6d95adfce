"""Fixtures and settings for all tests.

A test may ask for a browser (`tests.browser`). Property tests draw the same examples on every run and have no time
limit, because a busy machine is slow.
"""

from hypothesis import HealthCheck, settings

from tests.browser import chromium, page

__all__ = ["chromium", "page"]

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
