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

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from labkit.workbook.run.runner import CellListener, ListeningManager

CELL_LIMIT_S = 600
IOPUB_LIMIT_S = 60


class LabkitEngine:
    """The engine papermill finds under the name ``labkit``.

    Understands papermill's options, any trait of nbclient's ``NotebookClient``, and three of its
    own: ``notebook_timeout`` (seconds), ``cell_listener``
    (:data:`labkit.workbook.run.runner.CellListener`) and ``kernel_mark`` (``LABKIT_KERNEL_ID``).

    papermill loads its engines in the middle of its own import, so this class has their methods
    but not their base class, and meets papermill only when it is called.
    """

    @classmethod
    def execute_notebook(
        cls,
        nb: NotebookNode,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool | dict[str, Any] = True,
        log_output: bool = False,
        autosave_cell_every: int = 30,
        cell_listener: CellListener | None = None,
        **kwargs: Any,
    ) -> NotebookNode:
        from labkit.workbook.run.runner import ListeningManager

        manager = ListeningManager(
            nb,
            output_path=output_path,
            progress_bar=progress_bar,
            log_output=log_output,
            autosave_cell_every=autosave_cell_every,
            listener=cell_listener,
        )
        manager.notebook_start()
        try:
            cls.execute_managed_notebook(manager, kernel_name, log_output=log_output, **kwargs)
        finally:
            manager.cleanup_pbar()
            manager.notebook_complete()
        return manager.nb

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: ListeningManager,
        kernel_name: str,
        *,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        input_path: Any = None,
        **kwargs: Any,
    ) -> None:
        from papermill.log import logger

        from labkit.workbook.run.runner import LabkitClient

        kwargs.pop("startup_timeout", None)  # papermill's name for it is start_timeout
        plain_limit = kwargs.pop("timeout", None)
        limit = execution_timeout or plain_limit or CELL_LIMIT_S
        options = {"record_timing": False, "iopub_timeout": IOPUB_LIMIT_S, **kwargs}
        LabkitClient(
            nb_man,
            kernel_name=kernel_name,
            timeout=limit,
            startup_timeout=start_timeout,
            log=logger,
            **options,
        ).execute()

    @classmethod
    def nb_kernel_name(cls, nb: NotebookNode, name: str | None = None) -> str:
        from papermill.utils import nb_kernel_name

        return nb_kernel_name(nb, name)

    @classmethod
    def nb_language(cls, nb: NotebookNode, language: str | None = None) -> str:
        from papermill.utils import nb_language

        return nb_language(nb, language)
