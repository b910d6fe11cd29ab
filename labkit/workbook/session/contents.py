"""How JupyterLab reads the workbook's notebooks: so that to open one changes nothing.

Lab writes what the kernel says of its language into a notebook that says otherwise, and the tab
then shows unsaved changes before anybody typed. Committed notebooks leave out what differs from
machine to machine (:mod:`labkit.workbook.normalise`), so they are handed out as this machine's
kernel has it, and saved as they were.
"""

from __future__ import annotations

from typing import Any

from ipykernel.ipkernel import IPythonKernel
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager


class Contents(AsyncLargeFileManager):
    """The server's files, a paper's notebook with the language that the running kernel has."""

    async def get(self, path: str, *given: Any, **options: Any) -> Any:
        """Read a file as Jupyter does."""
        model = await super().get(path, *given, **options)
        if model["type"] == "notebook" and model["content"]:
            told(model["content"]["metadata"])
        return model


def told(metadata: dict[str, Any]) -> None:
    """Say in a notebook's metadata what a kernel of this interpreter says of its language.

    >>> metadata = {"labkit": {}, "kernelspec": {"name": "python3"}}
    >>> told(metadata)
    >>> metadata["language_info"]["name"]
    'python'
    """
    if "labkit" in metadata and metadata.get("kernelspec", {}).get("name") == "python3":
        metadata["language_info"] = dict(IPythonKernel.language_info)
