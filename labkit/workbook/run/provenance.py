"""Where a result comes from: the machine, the versions and the commit it was made with."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import labkit
from labkit.workbook.run.fingerprint import DISTRIBUTIONS, installed


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory (bytes) and operating system."""
    import psutil

    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def usable_cores() -> int:
    """Cores this process may run on, which a container may keep below those there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    if model := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return model[1].strip()
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def full_versions() -> dict[str, str]:
    """Python to the patch level, labkit, and the libraries that compute or execute."""
    own = {"python": platform.python_version(), "labkit": labkit.__version__}
    return own | installed((*DISTRIBUTIONS, "ipywidgets", "nbformat", "pyarrow"))


@lru_cache(maxsize=8)
def git_commit(root: Path) -> str | None:
    """The checkout's commit, with ``-dirty`` where tracked files differ; None outside git."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
