"""A papermill engine that does not hang: ``papermill --engine labkit in.ipynb out.ipynb``.

Over papermill's own engine it adds

- a cure for notebooks that stop for ever on ``interact()`` and other ``Output`` widgets,
- kernels reached over Unix sockets in a private folder, so kernels that start at the same time
  never race for a port,
- a limit for every cell (600 s unless ``execution_timeout`` says otherwise) and, on request, for
  the notebook as a whole (``notebook_timeout``); past it the kernel and all it started are killed,
  and they are at its end too: daemons and sessions of their own are known by ``kernel_mark``,
- no clock times in cell metadata.
"""

from typing import Any


class _Late:
    """Stands for :class:`labkit.workbook.run.runner.LabkitEngine`, which needs all of papermill:
    papermill loads its engines in the middle of its own import."""

    def __getattr__(self, name: str) -> Any:
        from labkit.workbook.run import runner

        return getattr(runner.LabkitEngine, name)


LabkitEngine = _Late()
