"""The API reference under ``results/site/api``: pdoc over the engines' public names.

pdoc reads the names that a module holds. Ours load on first use, so each is loaded beforehand.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import labkit
from labkit.kit import page

FOLDER = "api"
_BESIDES = ("labkit.hardware", "labkit.models", "labkit.quantities")
_TEMPLATE = Path(__file__).parent / "templates" / "reference.html.j2"
_STAMP = ".made-from"


def write(site: Path) -> bool:
    """Write the reference unless it stands there, made from the same library; whether it wrote.

    Before the site is written, so that its pages lead there; who reads an older one meanwhile finds
    every file whole.
    """
    folder = site / FOLDER
    stamp = folder / _STAMP
    state = _fingerprint()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == state:
        return False
    import pdoc
    from jinja2 import ChoiceLoader, DictLoader

    names = _names()
    pdoc.render.configure(docformat="google", show_source=False)
    environment = pdoc.render.env
    template = {"module.html.jinja2": _TEMPLATE.read_text(encoding="utf-8")}
    standard: Any = environment.loader
    environment.loader = ChoiceLoader([DictLoader(template), standard])
    asset: Any = page.environment("labkit.kit").globals["asset"]
    environment.globals |= {
        "policy": page.policy(own_files=True, scripts="'unsafe-inline'"),
        "theme": asset("theme.js"),
    }
    site.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".api-", dir=site) as building:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # annotations that name types pandas has for checkers
            pdoc.pdoc(*names, output_directory=Path(building))
        _replace(folder, Path(building))
    stamp.write_text(state, encoding="utf-8")
    return True


def _replace(folder: Path, made: Path) -> None:
    """Put the files of ``made`` in ``folder``, each in one step, and remove those it lacks."""
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    for name in sorted(names):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / name, target)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder) not in names:
            path.unlink()


def _fingerprint() -> str:
    """Of the library and of pdoc; the rest of the site does not show in the reference."""
    digest = hashlib.sha256(metadata.version("pdoc").encode())
    for path in sorted((*Path(labkit.__file__).parent.rglob("*.py"), _TEMPLATE)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _names() -> list[str]:
    """Every public module of the library, after its public names were loaded into it."""
    engines = (module for name in labkit.LATE.values() for module in _loaded(import_module(name)))
    return ["labkit", *dict.fromkeys(module.__name__ for module in engines), *_BESIDES]


def _loaded(module: ModuleType) -> Iterator[ModuleType]:
    """``module`` and the public modules below it, each holding its public names."""
    yield module
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        vars(module)[name] = value
        if isinstance(value, ModuleType) and value.__name__.startswith(module.__name__):
            yield from _loaded(value)
