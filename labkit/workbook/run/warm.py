"""What the pool's fork server loads once, so that none of the workers it forks has to.

Besides papermill that is nbformat's schema, which it compiles for the first notebook, and what
jupyter_client looks up in every package's metadata: a fifth of a second a notebook.
"""

import gc
from contextlib import suppress

import nbformat
import psutil  # noqa: F401
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.provisioning import KernelProvisionerFactory

import labkit.workbook.run.runner  # noqa: F401

nbformat.validate(nbformat.v4.new_notebook())
KernelProvisionerFactory.instance()
with suppress(NoSuchKernel):
    KernelSpecManager().get_kernel_spec("python3")
gc.freeze()  # else every worker's first collection visits, and so copies, all that is loaded
