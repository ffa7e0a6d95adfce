"""Fixtures and settings for all tests. Property tests draw the same examples on every run, without a time limit.

No test asks the Hugging Face hub: where it does not answer, a model's wrong name takes half a minute.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.browser import chromium, page

__all__ = ["chromium", "page"]

os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture
def no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but their files stay empty: writing those takes most of the time."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, file, **_: Path(file).touch())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test starts first, so that no process ends long before the other."""
    items.sort(key=lambda item: "test_all_stages_run" not in item.name)
