"""Machines that refuse: permissions that hold for root too, and disks too small."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

PR_CAPBSET_DROP = 24
OVERRIDES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what lets root pass the permissions of files."""
ON_SMALL_DISK = (
    'mount -t tmpfs -o "size=$1" none "$2" && cp -r "$3/." "$2" && shift 3 && "$@"; status=$?; '
    'rm -rf "$KEEP"; cp -r "$DISK/." "$KEEP"; exit $status'
)


def _bound_by_permissions() -> None:
    """Called in a child before it becomes the command: root gives up what others do not have."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    for capability in OVERRIDES if prctl else ():
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def run_bound(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` with ``environment`` over this one's, bound by the permissions of files."""
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        preexec_fn=_bound_by_permissions,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


def run_on_small_disk(
    command: Sequence[str], environment: Mapping[str, str], *, disk: Path, keep: Path, size: str
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` with a file system of ``size`` at the folder ``disk``.

    It starts with what ``keep`` holds, which at the end holds what the small disk did. Skips the
    test where this machine lets nobody mount.
    """
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no mount namespace, so there is no small disk to fill")
    script = ["unshare", "-rm", "sh", "-c", ON_SMALL_DISK, "sh", size, str(disk), str(keep)]
    return subprocess.run(
        [*script, *command],
        env={**os.environ, **environment, "DISK": str(disk), "KEEP": str(keep)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
