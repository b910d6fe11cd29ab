"""What cuBLAS keeps for its products, in torch's own allocator: part of the allocated bytes.

torch gives each handle of cuBLAS a workspace at its first product and never takes it back. Handles
belong to threads: the one that calls the model forward, and autograd's, which runs the backward
pass and what is computed again in it. TransformerEngine has one more for all its layers.
"""

from __future__ import annotations

from labkit.hardware import Accelerator
from labkit.quantities import KIB, MIB

SOURCE = (
    "pytorch, ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize, getNewWorkspace; handles by"
    " thread); TransformerEngine, pytorch/cpp_extensions/gemm.py (get_cublas_workspace)"
)
THREADS = 2
"""That multiply: the forward pass's, and autograd's."""
WIDE = (9, 10, 12)
"""Major compute capabilities for which torch takes 32 MiB: Hopper and Blackwell."""


def of_torch(card: Accelerator) -> int:
    """Bytes of each of torch's handles on that card; 0 for cards without a compute capability.

    What ROCm's build takes differs by version and is not counted.

    >>> from labkit.hardware import accelerator
    >>> of_torch(accelerator("H100")), of_torch(accelerator("A100-80GB"))
    (33554432, 8519680)
    """
    if card.capability is None:
        return 0
    return 32 * MIB if int(card.capability) in WIDE else 2 * 4096 * KIB + 8 * 16 * KIB


def of_transformer_engine(card: Accelerator) -> int:
    """Bytes of TransformerEngine's one workspace on that card (since 2.8; 1 KiB less before).

    >>> from labkit.hardware import accelerator
    >>> of_transformer_engine(accelerator("H100")), of_transformer_engine(accelerator("A10"))
    (33555456, 4194304)
    """
    if card.capability is None:
        return 0
    return 32 * MIB + KIB if card.capability >= 9 else 4 * MIB
