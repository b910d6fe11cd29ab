"""What ``labkit doctor`` examines: this machine, its packages, this checkout and its data.

A check is a function from a :class:`Checkout` to findings. One that itself breaks is a finding
too: a doctor that dies of what it looks at helps nobody.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any, Literal, get_args

from labkit.errors import LabkitError, UsageError
from labkit.quantities import format_bytes

OLDEST_PYTHON = (3, 11)
TESTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
LEAST_FREE_BYTES, COMFORTABLE_FREE_BYTES = 200 * 10**6, 2 * 10**9
COMFORTABLE_MEMORY_BYTES = 4 * 10**9
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REINSTALL = "run `make` (or pip install -c constraints.txt -e '.[torch,lab,dev]')"

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check saw, and what to do about it where it is not well."""

    check: str
    status: Status
    observed: str
    advice: str = ""


def finding(status: Status, check: str, observed: str, advice: str = "") -> Finding:
    """What a check saw; the advice is kept where something is not well."""
    advice = "" if status == "ok" else advice
    return Finding(check=check, status=status, observed=observed, advice=advice)


ok, warn, fail = (partial(finding, status) for status in get_args(Status))


class Checkout:
    """The workbook under examination; everything is read once, when first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def project(self) -> dict[str, Any]:
        """The ``project`` table of pyproject.toml."""
        import tomllib

        return tomllib.loads((self.root / "pyproject.toml").read_text("utf-8"))["project"]

    @cached_property
    def pins(self) -> dict[str, str]:
        """Package -> version that constraints.txt pins; names normalised."""
        text = (self.root / "constraints.txt").read_text("utf-8")
        pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, flags=re.MULTILINE)
        return {_normal(name): version for name, version in pins}

    @cached_property
    def notebooks(self) -> dict[str, Path]:
        from labkit.workbook import notebooks

        return notebooks.paths(self.root)

    @cached_property
    def files_needed(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Notebook -> dataset -> files it declares."""
        from labkit import datasets
        from labkit.workbook import notebooks

        return {
            key: datasets.needed(notebooks.dataset_names(notebooks.read(path)), self.root)
            for key, path in self.notebooks.items()
        }

    @cached_property
    def data_missing(self) -> bool:
        """Whether some notebook would run on a stand-in as things are."""
        from labkit import datasets

        return not all(
            datasets.available(name, files, self.root)
            for wanted in self.files_needed.values()
            for name, files in wanted.items()
        )


def examine(
    root: Path | None = None, about: Callable[[str], object] = lambda title: None
) -> Iterator[Finding]:
    """All findings for the workbook at ``root`` (default: the one around the working directory).

    ``about`` is told the title of each check as it begins.
    """
    from labkit.files import project_root

    try:
        checkout = Checkout(root or project_root())
    except UsageError as error:
        yield fail("workbook", str(error))
        return
    for check in CHECKS:
        about(_title(check))
        try:
            yield from check(checkout)
        except LabkitError as error:
            yield fail(_title(check), str(error))
        except Exception as error:
            problem = f"the check itself failed: {type(error).__name__}: {error}"
            yield fail(_title(check), problem)


def check_python(checkout: Checkout) -> Iterator[Finding]:
    running, version = sys.version_info[:2], sys.version.split()[0]
    if running < OLDEST_PYTHON:
        yield fail("python", version, "make a new .venv with Python 3.11 or newer")
    elif running not in TESTED_PYTHONS:
        tested = "pinned versions are tested with Python 3.11 to 3.13"
        yield warn("python", version, f"{tested}; should one not install, use those")
    else:
        yield ok("python", f"{version} ({sys.executable})")


def check_machine(checkout: Checkout) -> Iterator[Finding]:
    import psutil

    from labkit.workbook.run.provenance import usable_cores

    memory = psutil.virtual_memory()
    free, total = format_bytes(memory.available), format_bytes(memory.total)
    sizes = f"{usable_cores()} cores, {free} of {total} memory free"
    status: Status = "ok" if memory.available >= COMFORTABLE_MEMORY_BYTES else "warn"
    yield finding(status, "cores, memory", sizes, "run notebooks one at a time: make JOBS=1")


def check_disk(checkout: Checkout) -> Iterator[Finding]:
    free = shutil.disk_usage(checkout.root).free
    limits = (free < COMFORTABLE_FREE_BYTES) + (free < LEAST_FREE_BYTES)
    advice = "make room: results and their site take some 100 MB"
    yield finding(get_args(Status)[limits], "disk", f"{format_bytes(free)} free", advice)


def check_packages(checkout: Checkout) -> Iterator[Finding]:
    """Each dependency, imported for real, and its version beside the pinned one."""
    for requirement in checkout.project["dependencies"]:
        yield _package(_name(requirement), checkout.pins, must_import=True)
    for extra, requirements in checkout.project["optional-dependencies"].items():
        for requirement in requirements:
            finding = _package(_name(requirement), checkout.pins, must_import=False)
            if finding.status == "fail":
                finding = warn(finding.check, finding.observed, f"optional ({extra}); {REINSTALL}")
            yield finding


def check_versions(checkout: Checkout) -> Iterator[Finding]:
    """Indirect dependencies that are not at their pinned version."""
    extras = checkout.project["optional-dependencies"].values()
    requirements = [*checkout.project["dependencies"], *(text for e in extras for text in e)]
    direct = {_normal(_name(text)) for text in requirements}
    other = {
        f"{name} {version} (pinned {pin})"
        for name, pin in checkout.pins.items()
        if name not in direct and (version := _version(name)) and not _same(version, pin)
    }
    if other:
        yield warn("indirect packages", f"not as pinned: {', '.join(sorted(other))}", REINSTALL)
    else:
        yield ok("indirect packages", "all as constraints.txt pins")


def check_kernel(checkout: Checkout) -> Iterator[Finding]:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    advice = "python -m ipykernel install --sys-prefix"
    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield fail("jupyter kernel", "no kernel named python3", advice)
        return
    # A bare name stands for jupyter_client's own interpreter.
    if command in (Path(command).name, str(Path(sys.executable).absolute())):
        yield ok("jupyter kernel", "python3, this interpreter")
    else:
        yield warn("jupyter kernel", f"python3 starts {command}, not {sys.executable}", advice)


def check_engine(checkout: Checkout) -> Iterator[Finding]:
    entries = metadata.entry_points(group="papermill.engine", name="labkit")
    if not entries:
        yield fail("papermill engine", "papermill does not know the labkit engine", REINSTALL)
        return
    yield ok("papermill engine", f"labkit ({next(iter(entries)).load().__name__})")


def check_torch(checkout: Checkout) -> Iterator[Finding]:
    if util.find_spec("torch") is None:
        advice = "only measured memory needs it: pip install -c constraints.txt -e '.[torch]'"
        yield warn("torch", "not installed", advice)
        return
    import torch
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        yield ok("torch", f"{torch.__version__}, gloo")
    else:
        advice = "sharded memory cannot be measured without torch's gloo back end"
        yield warn("torch", f"{torch.__version__}, without gloo", advice)


def check_slides(checkout: Checkout) -> Iterator[Finding]:
    """What the export needs: reveal.js from sphinx-revealjs, and for its tests a browser."""
    from importlib.resources import files

    asset = files("sphinx_revealjs") / "_static" / "revealjs" / "dist" / "reveal.js"
    if asset.is_file():
        yield ok("reveal.js", "in sphinx-revealjs")
    else:
        yield fail("reveal.js", "sphinx-revealjs does not hold it where it should", REINSTALL)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    advice = "optional: only the tests that look at slides are skipped"
    observed = browser or "no Chromium or Chrome on PATH"
    yield finding("ok" if browser else "warn", "browser", observed, advice)


def check_folders(checkout: Checkout) -> Iterator[Finding]:
    from labkit.datasets import cache_folder

    for name, folder in (("results/", checkout.root / "results"), ("cache", cache_folder())):
        advice = f"make {folder} writable" + (", or set LABKIT_CACHE" if name == "cache" else "")
        problem = _write_problem(folder)
        status: Status = "fail" if problem else "ok"
        yield finding(status, f"{name} writable", problem or str(folder), advice)


def check_results(checkout: Checkout) -> Iterator[Finding]:
    """What a run left that the next one makes good."""
    from labkit.workbook.run import guard

    left = guard.left_over(checkout.root)
    yield finding("warn" if left else "ok", "results", "; ".join(left) or "whole", "labkit run")


def check_papers(checkout: Checkout) -> Iterator[Finding]:
    """The bibliography and the reading queue can be read."""
    from labkit.workbook.queue import bibliography, reading_queue

    yield ok("bibliography", f"{len(bibliography.load(checkout.root))} papers")
    yield ok("reading queue", f"{len(reading_queue.load(checkout.root))} papers")


def check_notebooks(checkout: Checkout) -> Iterator[Finding]:
    """Every notebook and its claims can be read."""
    from labkit.workbook import notebooks
    from labkit.workbook.review import claims

    if not checkout.notebooks:
        advice = "this checkout is not whole: notebooks/ should hold some"
        yield fail("notebooks", "none", advice)
        return
    for path in checkout.notebooks.values():
        notebooks.read(path)
    yield ok("notebooks", f"{len(checkout.notebooks)}: {', '.join(checkout.notebooks)}")
    count = sum(len(claims.load(checkout.root, key)) for key in checkout.notebooks)
    yield ok("claims", f"{count} of {len(checkout.notebooks)} papers")


def check_data(checkout: Checkout) -> Iterator[Finding]:
    """Whether each notebook finds the published files it declares."""
    from labkit import datasets

    for key, wanted in checkout.files_needed.items():
        for name, files in wanted.items():
            state = datasets.fingerprint(name, files, checkout.root).partition(":")[0]
            check = f"data of {key}"
            if state == "corrupt":
                problem = f"{name} in the mirror is damaged"
                yield fail(check, problem, "labkit data verify says which")
            elif state == "stand-in":
                advice = f"labkit data fetch {name}, or set LABKIT_DATA_MIRROR"
                yield warn(check, f"{name} is not all here: it runs on the stand-in", advice)
            else:
                yield ok(check, f"{name}, {len(files)} files as published")


def check_network(checkout: Checkout) -> Iterator[Finding]:
    """Fetch the smallest published file, for a few seconds at most, and keep nothing."""
    from tempfile import TemporaryDirectory

    from labkit.datasets.download import DownloadError, download
    from labkit.datasets.registry import load_registry
    from labkit.datasets.store import offline

    if offline():
        yield ok("network", "not tried: LABKIT_OFFLINE is set")
        return
    everything = [f for d in load_registry(checkout.root).datasets.values() for f in d.files]
    smallest = min(everything, key=lambda file: file.size_bytes)
    with TemporaryDirectory() as folder:
        try:
            download(smallest.url, Path(folder) / "probe", smallest.size_bytes, label="network")
        except DownloadError as error:
            if checkout.data_missing:
                yield warn("network", str(error), "published data cannot be downloaded from here")
            else:
                yield ok("network", f"{error} (not needed: the data is here)")
            return
    yield ok("network", "published data can be downloaded")


CHECKS: tuple[Callable[[Checkout], Iterator[Finding]], ...] = tuple(
    function for name, function in list(globals().items()) if name.startswith("check_")
)


def _package(name: str, pins: Mapping[str, str], *, must_import: bool) -> Finding:
    check, version, pin = f"package {name}", _version(name), pins.get(_normal(name))
    if version is None:
        return fail(check, "not installed", REINSTALL)
    if must_import:
        try:
            import_module(name.replace("-", "_"))
        except Exception as error:
            problem = f"{version} does not import: {type(error).__name__}: {error}"
            return fail(check, problem, REINSTALL)
    if pin is None:
        return warn(check, f"{version}, not pinned", "make constraints adds it")
    if not _same(version, pin):
        return warn(check, f"{version}, pinned {pin}", REINSTALL)
    return ok(check, version)


def _name(requirement: str) -> str:
    """The package of a requirement: ``torch`` for ``torch==2.13.0``."""
    return re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _same(version: str, pin: str) -> bool:
    """Equal but for the local part: ``2.13.0+cpu`` is ``2.13.0``."""
    return version.partition("+")[0] == pin.partition("+")[0]


def _write_problem(folder: Path) -> str:
    """Why a file cannot be made in ``folder`` (or, if absent, in its parent), else nothing."""
    from tempfile import TemporaryFile

    while not folder.exists():
        folder = folder.parent
    try:
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def _title(check: Callable[[Checkout], Iterator[Finding]]) -> str:
    return check.__name__.removeprefix("check_").replace("_", " ")
