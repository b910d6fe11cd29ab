"""``labkit swap``: what to keep of a forward pass and what to recompute, from the shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from labkit import swap
from labkit.kit.command import Commands, option
from labkit.kit.report import Report, Sheet, records
from labkit.swap.chain import Chain

commands = Commands(
    "swap", "Recomputation: what a chain of blocks keeps for its backward pass, and what it costs."
)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A ResNet, captured without numbers, or equal blocks."""

    layers: Annotated[int, option("Convolutions of a ResNet; 0 for equal blocks.", min=0)] = 152
    batch: Annotated[int, option("Images of 224 × 224.", min=1)] = 32
    blocks: Annotated[int, option("Equal blocks of one byte each, without --layers.", min=1)] = 64

    def chain(self) -> Chain:
        if not self.layers:
            return Chain.even(self.blocks)
        shape = (self.batch, 3, 224, 224)
        return swap.capture(lambda: swap.resnet(self.layers), shape)[0]


def _row(chain: Chain, method: str) -> dict[str, Any]:
    judged = swap.plan(chain, method).replay()
    added = judged.added_fraction
    return {"method": method, "peak_bytes": judged.peak_bytes, "added_cost_fraction": added}


@commands.add(examples=["labkit swap compare --layers 50", "labkit swap compare --layers 0"])
def compare(network: Network) -> Report:
    """Every method on one network: the bytes at the peak, and the cost it adds."""
    import pandas as pd

    chain = network.chain()
    table = pd.DataFrame([_row(chain, method) for method in swap.METHODS])
    return Report(
        title=f"{chain.num_blocks} blocks, recomputed in {len(table)} ways",
        tables=[Sheet(table=table)],
        notes=["parameters, their gradients and an optimizer's states come on top"],
        data={"command": "compare", "rows": records(table)},
        figures=lambda: [
            (
                "Time against memory",
                "The line is the exact optimum, which no plan of the kind beats.",
                swap.figures.figure_tradeoff(chain),
            )
        ],
    )


@commands.add(examples=["labkit swap plan --layers 50 --method searched"])
def plan(
    network: Network,
    method: Annotated[str, option(f"One of {', '.join(swap.METHODS)}.")] = "searched",
) -> Report:
    """The operations of one method's plan, in order, with the bytes held during each."""
    chain = network.chain()
    chosen = swap.plan(chain, method)
    judged = chosen.replay()
    table = chosen.frame()
    return Report(
        title=f"{chain.num_blocks} blocks: {chosen.method}",
        facts=[
            ("peak_bytes", judged.peak_bytes, ""),
            ("added_cost_fraction", judged.added_fraction, "of a step that recomputes nothing"),
        ],
        tables=[Sheet(table=table)],
        data={"command": "plan", "peak_bytes": judged.peak_bytes, "operations": records(table)},
    )
