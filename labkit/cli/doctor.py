"""``labkit doctor``: whether this machine and checkout can do the work, and what to do if not.

A check is a function from a :class:`Checkout` to findings. One that itself breaks is a finding
too: a doctor that dies of what it looks at helps nobody.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Literal, get_args

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit import extras
from labkit.errors import LabkitError, UsageError
from labkit.files import project_root
from labkit.quantities import format_bytes

commands = typer.Typer()

TESTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
LEAST_FREE_BYTES = 200 * 10**6
COMFORTABLE_FREE_BYTES = 2 * 10**9
COMFORTABLE_MEMORY_BYTES = 4 * 10**9
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REINSTALL = "run `make` (or pip install -c constraints.txt -e '.[workbook,torch,lab,dev]')"
ALWAYS = ("", "workbook")
"""The extras without which no notebook of a workbook runs; \"\" is what the engines need."""

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
    def requirements(self) -> list[tuple[str, str]]:
        """Each package that pyproject.toml asks for, and the first extra that does ("": always).

        What an extra asks for by naming another extra is listed with that one. A group's own
        workbook has no such file: there it is what the installed labkit asks for.
        """
        import tomllib

        file = self.root / "pyproject.toml"
        if file.is_file():
            project = tomllib.loads(file.read_text("utf-8"))["project"]
            own_name = project["name"]
            groups = {"": project["dependencies"], **project["optional-dependencies"]}
        else:
            own_name = extras.DISTRIBUTION
            groups = _installed_requirements()
        asked: dict[str, str] = {}
        for extra, texts in groups.items():
            for text in texts:
                name = re.split(r"[\s\[<>=!~;(]", text)[0]
                if name != own_name:
                    asked.setdefault(name, extra)
        return list(asked.items())

    @cached_property
    def pins(self) -> dict[str, str]:
        """Package -> version that constraints.txt pins; names normalised. A group's own workbook
        need not pin any."""
        file = self.root / "constraints.txt"
        text = file.read_text("utf-8") if file.is_file() else ""
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


def examine(about: Callable[[str], object] = lambda title: None) -> Iterator[Finding]:
    """All findings for the workbook; ``about`` is told the title of each check as it begins."""
    try:
        checkout = Checkout(project_root())
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
    running = sys.version_info[:2]
    version = sys.version.split()[0]
    if running < TESTED_PYTHONS[0]:
        yield fail("python", version, "make a new .venv with Python 3.11 or newer")
    elif running not in TESTED_PYTHONS:
        tested = "pinned versions are tested with Python 3.11 to 3.13"
        yield warn("python", version, f"{tested}; should one not install, use those")
    else:
        yield ok("python", f"{version} ({sys.executable})")


def check_machine(checkout: Checkout) -> Iterator[Finding]:
    import psutil

    from labkit.workbook.run.fingerprint import usable_cores

    memory = psutil.virtual_memory()
    free = format_bytes(memory.available)
    total = format_bytes(memory.total)
    sizes = f"{usable_cores()} cores, {free} of {total} memory free"
    status: Status = "ok" if memory.available >= COMFORTABLE_MEMORY_BYTES else "warn"
    yield finding(status, "cores, memory", sizes, "run notebooks one at a time: make JOBS=1")


def check_disk(checkout: Checkout) -> Iterator[Finding]:
    free = shutil.disk_usage(checkout.root).free
    status: Status = "ok"
    if free < LEAST_FREE_BYTES:
        status = "fail"
    elif free < COMFORTABLE_FREE_BYTES:
        status = "warn"
    advice = "make room: results and their site take some 100 MB"
    yield finding(status, "disk", f"{format_bytes(free)} free", advice)


def check_packages(checkout: Checkout) -> Iterator[Finding]:
    """Each dependency, imported for real, and its version beside the pinned one."""
    for name, extra in checkout.requirements:
        is_needed = extra in ALWAYS
        seen = _package(name, checkout.pins, must_import=is_needed)
        if not is_needed and seen.status == "fail":
            advice = f"optional: pip install -c constraints.txt -e '.[{extra}]'"
            seen = warn(seen.check, seen.observed, advice)
        yield seen


def check_versions(checkout: Checkout) -> Iterator[Finding]:
    """Indirect dependencies that are not at their pinned version."""
    from labkit.workbook.run.fingerprint import installed

    if not checkout.pins:
        yield ok("indirect packages", "none pinned: there is no constraints.txt")
        return
    direct = {_normal(name) for name, _ in checkout.requirements}
    other = {name: pin for name, pin in checkout.pins.items() if name not in direct}
    unlike = [
        f"{name} {version} (pinned {other[name]})"
        for name, version in installed(other).items()
        if not _same(version, other[name])
    ]
    if unlike:
        yield warn("indirect packages", f"not as pinned: {', '.join(sorted(unlike))}", REINSTALL)
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
        advice = f"only measured memory needs it: {extras.command('torch')}"
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

    if not checkout.notebooks and not (checkout.root / "pyproject.toml").is_file():
        yield ok("notebooks", "none yet: labkit queue add, then labkit new KEY")
        return
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
    """Whether notebooks find the published files they declare: a line for each state."""
    from labkit import datasets

    sets: dict[str, dict[str, list[str]]] = {}
    for key, wanted in checkout.files_needed.items():
        for name, files in wanted.items():
            found = datasets.fingerprint(name, files, checkout.root).partition(":")[0]
            state = found if found in ("corrupt", "stand-in") else "published"
            sets.setdefault(state, {}).setdefault(name, []).append(key)
    for state, users in sets.items():
        listed = "; ".join(f"{name} ({', '.join(keys)})" for name, keys in users.items())
        if state == "corrupt":
            problem = f"damaged in the mirror: {listed}"
            yield fail("published data", problem, "labkit data verify says which files")
        elif state == "stand-in":
            problem = f"not all here, so that notebooks run on stand-ins: {listed}"
            advice = f"labkit data fetch {' '.join(users)}, or set LABKIT_DATA_MIRROR"
            yield warn("published data", problem, advice)
        else:
            yield ok("published data", f"as published: {listed}")


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
    from labkit.workbook.run.fingerprint import installed

    version = installed((name,)).get(name)
    pin = pins.get(_normal(name))
    check = f"package {name}"
    if version is None:
        return fail(check, "not installed", REINSTALL)
    if must_import:
        try:
            import_module(_imported_as(name))
        except Exception as error:
            problem = f"{version} does not import: {type(error).__name__}: {error}"
            return fail(check, problem, REINSTALL)
    if pin is None and pins:
        return warn(check, f"{version}, not pinned", "make constraints adds it")
    if pin is not None and not _same(version, pin):
        return warn(check, f"{version}, pinned {pin}", REINSTALL)
    return ok(check, version)


def _installed_requirements() -> dict[str, list[str]]:
    """Extra -> requirements of the installed labkit; "" is what it always asks for. What its
    own developers need is left out."""
    try:
        texts = metadata.requires(extras.DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise LabkitError(
            f"{extras.DISTRIBUTION} is not installed, so what it needs is not known; {REINSTALL}"
        ) from None
    groups: dict[str, list[str]] = {"": []}
    for text in texts:
        of_extra = re.search(r"extra == ['\"]([\w-]+)", text)
        groups.setdefault(of_extra[1] if of_extra else "", []).append(text)
    groups.pop("dev", None)
    return groups


def _imported_as(name: str) -> str:
    """The module of the distribution ``name``: its own name where it has such a module, else the
    first that it installed (``yaml`` of PyYAML, ``bs4`` of beautifulsoup4)."""
    own = name.replace("-", "_")
    if util.find_spec(own.split(".")[0]) is not None:
        return own
    files = metadata.files(name) or ()
    packages = (file.parts[0] for file in files if file.name == "__init__.py")
    return next((package for package in packages if package[0].isalpha()), own)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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


# ---------------------------------------------------------------- the command


@commands.command()
def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
    everything: bool = typer.Option(
        False, "--all", help="Show every package, also those that are well."
    ),
) -> None:
    """Check this machine and this checkout, and say what to do where something is not well.

    Warnings are things the workbook can live with, such as data that is not here. Exit code 1
    where a check fails.

    [bold]Examples[/bold]: [cyan]labkit doctor[/cyan], [cyan]labkit doctor --json[/cyan]
    """
    terminal = Console(stderr=True, force_terminal=sys.stderr.isatty())
    with terminal.status("") as status:  # says what is being looked at
        findings = list(examine(lambda title: status.update(f"checking {title}")))
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        listed = [{"found" if k == "observed" else k: row[k] for k in row} for row in rows]
        report = {"ok": not failed, "findings": listed}
        typer.echo(json.dumps(report, indent=1))
    else:
        _show(findings if everything else list(_folded(findings)))
    if failed:
        raise typer.Exit(1)


def _folded(findings: list[Finding]) -> Iterator[Finding]:
    """The findings with all well packages in one line."""
    well = [f for f in findings if f.check.startswith("package ") and f.status == "ok"]
    for finding in findings:
        if finding not in well:
            yield finding
        elif finding is well[0]:
            observed = f"{len(well)} installed, as constraints.txt pins"
            yield Finding(check="packages", status="ok", observed=observed)


def _show(findings: list[Finding]) -> None:
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.observed)
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="cyan")
        table.add_row(Text(finding.status, style=styles[finding.status]), Text(finding.check), text)
    counts = {status: sum(f.status == status for f in findings) for status in styles}
    console = Console()
    console.print(table)
    console.print(
        f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed", highlight=False
    )
