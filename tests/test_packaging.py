"""What pyproject.toml asks for: a core without torch, which other trainers' published requirements allow."""

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.test_budget import ROOT, tracked

READ = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = READ["project"], READ["tool"]
CORE = {r.name: r for r in map(Requirement, PROJECT["dependencies"])}
EXTRAS = PROJECT["optional-dependencies"]
PUBLISHED = {
    "verl 0.9.1": ["numpy>=2.0.0", "pandas", "pyarrow>=19.0.0"],
    "trl 1.16.0": ["jinja2", "numpy>=1.26.0", "pandas>=2.1.1", "psutil>=5.9.4", "pyarrow>=21.0.0", "pyyaml>=6.0.1"],
    "openrlhf 0.11.2": ["tqdm"],
    "deepspeed 0.19.8, for openrlhf": ["numpy", "psutil", "tqdm"],
    "ms-swift 4.6.0": ["matplotlib", "numpy", "pandas", "pyyaml>=5.4", "scipy", "tqdm"],
    "areal 1.0.4": ["matplotlib", "pandas", "psutil", "pyyaml", "seaborn", "tqdm"],
}
"""Of the published requirements (Requires-Dist, without extras) those that the core has too. The other 26 of OpenRLHF
0.11.2, of which some have no wheel, were resolved with the core by `pip install --dry-run --only-binary :all:`."""


@pytest.mark.parametrize("trainer", PUBLISHED)
def test_the_core_fits_beside_other_trainers(trainer: str) -> None:
    for line in PUBLISHED[trainer]:
        theirs = Requirement(line)
        ours = CORE[theirs.name]
        known = [version(theirs.name), *re.findall(r"[\d.]+", f"{ours.specifier},{theirs.specifier}")]
        assert any(v in ours.specifier and v in theirs.specifier for v in map(Version, known)), (line, str(ours))


def test_the_package_brings_the_files_that_its_code_reads() -> None:
    packages = TOOLS["setuptools"]["package-data"]
    patterns = [(ROOT / name.replace(".", "/"), pattern) for name, of in packages.items() for pattern in of]
    brought = {path for folder, pattern in patterns for path in folder.glob(pattern)}
    code = [name for package in {name.split(".")[0] for name in packages} for name in tracked(f"{package}/*")]
    assert {ROOT / name for name in code if not name.endswith(".py")} == brought


def test_torch_and_what_needs_it_are_no_part_of_the_core() -> None:
    heavy = {"torch", "transformers", "accelerate", "safetensors", "tokenizers"}
    assert not (heavy | {"mpmath", "hypothesis"}) & CORE.keys()
    assert heavy <= {Requirement(r).name for r in EXTRAS["train"]}
    assert "mpmath" in {Requirement(r).name for r in EXTRAS["proofs"]}


def test_the_extras_of_the_tests_bring_all_others_but_those_that_clash() -> None:
    """verl asks for an older transformers."""
    brought = {name for r in EXTRAS["all"] + EXTRAS["test"] for name in Requirement(r).extras}
    assert EXTRAS.keys() - brought == {"verl", "test", "dev"}
