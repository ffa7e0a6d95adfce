"""A pytest plugin: compare every array that the modules take and return with the shape in its type."""

from jaxtyping import install_import_hook

MODULES = ("fspo.objective", "fspo.advantages", "fspo.policy", "fspo.rules", "fspo.stats")
"""The modules and rooms whose arrays carry their shapes in their types."""


def pytest_configure() -> None:
    """Check the modules from now on; they must not have been imported before."""
    install_import_hook(MODULES, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
