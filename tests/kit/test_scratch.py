"""Temporary folders are removed once nobody holds them, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from labkit.kit import scratch

HOLD = """
import sys, time
from labkit.kit import scratch
with scratch.folder("labkit-test-") as folder:
    (folder / "file").write_text("x" * 1000)
    print(folder, flush=True)
    time.sleep(1000)
"""


def test_a_folder_stays_with_its_process_and_goes_with_the_next_to_look(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder:
        folder = Path(holder.stdout.readline().strip())
        assert folder.parent == tmp_path
        scratch.sweep("labkit-test-", str(tmp_path))
        assert (folder / "file").exists()
        holder.kill()
    assert (folder / "file").exists(), "nobody removed it when its process was killed"
    scratch.sweep("labkit-other-", str(tmp_path))
    assert folder.exists()
    scratch.sweep("labkit-test-", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_goes_at_the_end_of_its_block() -> None:
    with scratch.folder("labkit-test-") as folder:
        (folder / "file").write_text("x")
    assert not folder.exists()
