"""The browser for every test that asks for one. Settings of every property test: the same examples on every run, and no
verdict from a busy machine's clock.
"""

from hypothesis import HealthCheck, settings

from tests.browser import chromium, page

__all__ = ["chromium", "page"]

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
