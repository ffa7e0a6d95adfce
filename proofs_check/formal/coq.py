"""Find Coq, or fetch it without root, and run its compiler.

Coq is searched for on the PATH, then in the cache folder (FSPO_CACHE, default ~/.cache/fspo). If it is in neither, on
Debian and its derivatives the packages are downloaded by apt-get, which checks them against the signed package
lists, and unpacked into the cache; nothing is installed and no root is needed. FSPO_NO_DOWNLOAD=1 forbids that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fspo.base.errors import UserError
from fspo.base.files import cache_folder, remove_parts, whole_folder
from fspo.base.processes import end_with_parent

PACKAGES = ("coq", "libcoq-stdlib", "libcoq-core-ocaml", "libzarith-ocaml", "libfindlib-ocaml", "libgmp10")
NO_DOWNLOAD = "FSPO_NO_DOWNLOAD"
FETCH_SECONDS = 900.0
"""Most seconds that download and unpacking may take together."""
COMPILE_SECONDS = 120.0
"""Most seconds that coqc may take for one script; the slowest script needs two seconds."""
_PROGRAMS = ("usr/bin/coqc", "usr/bin/coqchk")
_LIBRARIES = (".vo", ".cmxs", ".so", "/META")


class CoqMissing(Exception):
    """Raised if Coq is neither installed nor can be downloaded; the message says why."""


@dataclass(frozen=True)
class Coq:
    """A Coq installation that works.

    Attributes
    ----------
    program : str
        Path of coqc.
    version : str
        Such as "8.16.1".
    root : Path or None
        Folder of the unpacked packages; None for an installed Coq.
    """

    program: str
    version: str
    root: Path | None


@dataclass(frozen=True)
class Compilation:
    """The result of compiling one script with coqc.

    ``ok`` means exit status 0; ``ended`` is False if coqc was killed.
    """

    ok: bool
    output: str
    errors: str
    ended: bool = True

    @property
    def first_error(self) -> str:
        """Return Coq's first error with its place, on one line."""
        return " ".join(self.errors.split())[:300] or "coqc failed without a message"

    @property
    def error_line(self) -> int | None:
        """Return the line of the first error in the script, counted from 1."""
        found = re.search(r'File "[^"]*", line (\d+), characters [^\n]*\nError', self.errors)
        return int(found[1]) if found else None


def run_coqc(
    coq: Coq, folder: Path, name: str, library: Path | None = None, seconds: float = COMPILE_SECONDS
) -> Compilation:
    """Compile ``folder/name.v`` with coqc. The script can import the compiled scripts of the folder ``library``
    (default: ``folder``) under the name FSPO.
    """
    command = [coq.program, "-q", "-Q", str(library or folder), "FSPO", f"{name}.v"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(coq, folder),
            capture_output=True,
            text=True,
            timeout=seconds,
            preexec_fn=end_with_parent,
        )
    except subprocess.TimeoutExpired:
        return Compilation(False, "", f"coqc did not finish {name}.v within {seconds:g} s", ended=False)
    except OSError as error:
        return Compilation(False, "", f"coqc did not start: {error}", ended=False)
    # A signal from outside ended coqc, for example because memory ran out: nothing is known about the script.
    if done.returncode < 0:
        return Compilation(False, "", f"coqc was ended by signal {-done.returncode} in {name}.v", ended=False)
    return Compilation(done.returncode == 0, done.stdout, done.stderr)


def find_coq() -> Coq:
    """Return the Coq that is on the PATH or in the cache. If Coq is in neither, download it into the cache.

    Raises
    ------
    CoqMissing
        If there is no Coq and it cannot be fetched; the message says why.
    """
    installed = shutil.which("coqc")
    if installed:
        return Coq(installed, _version(installed, None), None)
    asked = time.time()
    home = cache_folder() / "coq"
    found = _in_cache(home)
    if found:
        return found
    if os.environ.get(NO_DOWNLOAD, "0") not in ("", "0"):
        raise CoqMissing(f"no coqc on the PATH, none in {home}, and {NO_DOWNLOAD} forbids to fetch it")
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise CoqMissing(f"no coqc on the PATH, and without {tool} it cannot be fetched: install Coq 8.16 or later")
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / "fetch.lock", timeout=FETCH_SECONDS):
            found = _in_cache(home)
            if found:
                return found
            # While this process waited for the lock, another process tried the same download and failed.
            failed = home / "fetch.failed"
            if failed.is_file() and failed.stat().st_mtime >= asked:
                raise CoqMissing(failed.read_text(encoding="utf-8"))
            try:
                return _fetch(home)
            except CoqMissing as error:
                failed.write_text(str(error), encoding="utf-8")
                raise
    except Timeout:
        raise CoqMissing(f"another process has been fetching Coq for more than {FETCH_SECONDS:g} s") from None
    except (OSError, tarfile.TarError, UserError) as error:
        raise CoqMissing(f"Coq could not be unpacked into {home}: {error}") from error


def _in_cache(home: Path) -> Coq | None:
    for root in sorted(home.glob("debian-*"), reverse=True):
        program = root / "usr/bin/coqc"
        if program.is_file():
            return Coq(str(program), _version(str(program), root), root)
    return None


def _version(program: str, root: Path | None) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        coq = Coq(program, "", root)
        try:
            done = subprocess.run(
                [program, "--print-version"],
                env=_environment(coq, Path(scratch)),
                capture_output=True,
                text=True,
                timeout=60,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CoqMissing(f"{program} does not run: {error}") from error
    if done.returncode != 0:
        raise CoqMissing(f"{program} does not run: {' '.join(done.stderr.split())[:200]}")
    return done.stdout.split()[0]


def _environment(coq: Coq, scratch: Path) -> Mapping[str, str]:
    """Return the environment variables with which a Coq that was unpacked into the cache finds its files. Settings for
    findlib, which looks up OCaml libraries for Coq, are written into the folder ``scratch``.
    """
    environment = dict(os.environ)
    if coq.root is None:
        return environment
    ocaml = coq.root / "usr/lib/ocaml"
    settings = scratch / "findlib.conf"
    settings.write_text(f'destdir="{ocaml}"\npath="{ocaml}"\n', encoding="utf-8")
    shared = [str(folder) for folder in sorted(coq.root.glob("usr/lib/*-linux-gnu*"))]
    return environment | {
        "COQLIB": str(ocaml / "coq"),
        "COQCORELIB": str(ocaml / "coq-core"),
        "OCAMLPATH": str(ocaml),
        "OCAMLFIND_CONF": str(settings),
        "CAML_LD_LIBRARY_PATH": str(ocaml / "stublibs"),
        "LD_LIBRARY_PATH": os.pathsep.join([*filter(None, [environment.get("LD_LIBRARY_PATH")]), *shared]),
    }


def _fetch(home: Path) -> Coq:
    """Download and unpack Coq's packages. Their folder appears in the cache only when it is complete. The caller must
    hold the cache's lock.
    """
    deadline = time.monotonic() + FETCH_SECONDS
    remove_parts(home)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=home) as part:
        scratch = Path(part)
        options: list[str] = []
        listed = _command(["apt-get", "download", "--print-uris", *PACKAGES], scratch, deadline)
        if listed.returncode != 0:  # apt has no lists of packages, so fetch a private copy of the lists
            for folder in ("lists/partial", "cache/archives/partial"):
                (scratch / folder).mkdir(parents=True)
            options = ["-o", f"Dir::State::lists={scratch}/lists", "-o", f"Dir::Cache={scratch}/cache"]
            _checked(["apt-get", *options, "update"], scratch, deadline)
            listed = _checked(["apt-get", *options, "download", "--print-uris", *PACKAGES], scratch, deadline)
        sizes = {name: int(size) for name, size in re.findall(r"^'\S+' (\S+) (\d+)", listed.stdout, re.M)}
        version = next((name.split("_")[1] for name in sizes if name.startswith("coq_")), "unknown")
        target = home / f"debian-{re.sub(r'[^0-9A-Za-z.+~-]', '', version)}"
        megabytes = sum(sizes.values()) / 1e6
        print(f"fetching Coq {version} ({megabytes:.0f} MB of Debian packages) into {target}", file=sys.stderr)
        _checked(["apt-get", *options, "download", *PACKAGES], scratch, deadline)
        packages = sorted(scratch.glob("*.deb"))
        if len(packages) != len(PACKAGES):
            raise CoqMissing(f"apt-get fetched {len(packages)} of {len(PACKAGES)} packages of Coq")
        with whole_folder(target) as root:
            for package in packages:
                _unpack(package, root)
            found = _version(str(root / "usr/bin/coqc"), root)
        return Coq(str(target / "usr/bin/coqc"), found, target)


def _unpack(package: Path, root: Path) -> None:
    """Unpack from a package only what coqc needs, a third of its files: two programs, compiled libraries and
    plug-ins.
    """
    process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if name in _PROGRAMS or (name.startswith("usr/lib/") and (name.endswith(_LIBRARIES) or ".so." in name)):
                archive.extract(member, root, filter="data")
    if process.returncode != 0:
        raise CoqMissing(f"dpkg-deb could not read {package.name} (exit status {process.returncode})")


def _command(command: Sequence[str], folder: Path, deadline: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=max(1.0, deadline - time.monotonic())
        )
    except subprocess.TimeoutExpired:
        raise CoqMissing(f"{' '.join(command[:2])} took longer than {FETCH_SECONDS:g} s") from None


def _checked(command: Sequence[str], folder: Path, deadline: float) -> subprocess.CompletedProcess[str]:
    done = _command(command, folder, deadline)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
        raise CoqMissing(f"{' '.join(command[:1])} could not fetch Coq: {' '.join(lines[:2])[:300]}")
    return done
