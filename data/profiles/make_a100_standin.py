"""Stand-ins for the A100 stage profiles of GPT-3 175B and Bloom: a model, not a measurement.

Run it from anywhere; it writes standin_a100_gpt3-175b.csv and standin_a100_bloom.csv beside
itself, the same bytes each time. Columns as in the published profiles: stage, instruction,
frequency (MHz), time (s), energy (J of one GPU).

Work. A forward pass of one microbatch through a stage takes, per token, ``24 h^2 + 4 s h`` FLOP
for each transformer layer and ``2 h V`` for the output layer on the last stage (h hidden size,
s sequence length, V vocabulary); a backward pass takes twice that. Layers are split as evenly as
whole layers allow. GPT-3 175B: 96 layers, h = 12288, s = 2048, V = 51200 (padded), 12 layers a
stage, so its last stage is the heaviest. Bloom: 70 layers, h = 14336, s = 2048, V = 250880,
9 layers a stage and 7 on the last, so its last stage, output layer included, is the lightest.
Each stage is spread over 8 GPUs; a microbatch is one sequence.

Time. At the highest clock a GPU sustains half of the A100's 312 TFLOP/s (dense bf16). One fifth
of the time is bound by memory and does not depend on the SM clock, the rest is inversely
proportional to it: ``t(f) = t_max (0.2 + 0.8 f_max / f)``.

Power. ``P(f) = 100 W + 300 W (f / f_max) (V(f) / V_max)^2``: leakage, memory and fans, plus the
dynamic power of CMOS logic; 400 W, the A100 SXM's limit, at the highest clock. The supply voltage
is constant up to 1000 MHz and rises linearly to the highest clock: ``V / V_max`` from 0.75 to 1.

Energy is power times time: least near 1000 MHz, where slower clocks stop lowering the voltage and
static power takes over. The constants are round numbers of ours within what such a GPU is known to
do; none was fitted to the published profiles.
"""

from pathlib import Path

CLOCKS_MHZ = range(1410, 840, -15)
SEQUENCE_TOKENS = 2048
GPUS_PER_STAGE = 8
SUSTAINED_FLOPS_PER_S = 0.5 * 312e12
MODELS = {
    "gpt3-175b": {"hidden": 12288, "vocabulary": 51200, "layers": (12,) * 8},
    "bloom": {"hidden": 14336, "vocabulary": 250880, "layers": (9,) * 7 + (7,)},
}


def stage_flops(layers: int, hidden: int, vocabulary: int, is_last: bool) -> float:
    """Forward FLOP of one microbatch on one GPU of a stage."""
    per_token = layers * (24 * hidden**2 + 4 * SEQUENCE_TOKENS * hidden)
    per_token += 2 * hidden * vocabulary * is_last
    return per_token * SEQUENCE_TOKENS / GPUS_PER_STAGE


def slowdown(clock_mhz: float) -> float:
    """Duration relative to that at the highest clock."""
    return 0.2 + 0.8 * CLOCKS_MHZ[0] / clock_mhz


def power_w(clock_mhz: float) -> float:
    """Draw of one busy GPU."""
    relative_voltage = 0.75 + 0.25 * max(0.0, clock_mhz - 1000) / (CLOCKS_MHZ[0] - 1000)
    return 100 + 300 * clock_mhz / CLOCKS_MHZ[0] * relative_voltage**2


def rows(hidden: int, vocabulary: int, layers: tuple[int, ...]) -> list[str]:
    table = []
    for stage, count in enumerate(layers):
        flops = stage_flops(count, hidden, vocabulary, stage == len(layers) - 1)
        for clock_mhz in CLOCKS_MHZ:
            for instruction, factor in (("forward", 1), ("backward", 2)):
                time_s = factor * flops / SUSTAINED_FLOPS_PER_S * slowdown(clock_mhz)
                energy_j = time_s * power_w(clock_mhz)
                table.append(f"{stage},{instruction},{clock_mhz},{time_s:.6g},{energy_j:.6g}")
    return table


def main() -> None:
    for name, model in MODELS.items():
        lines = [
            "# STAND-IN, not a measurement: a model of ours, made by make_a100_standin.py",
            "stage,instruction,frequency,time,energy",
            *rows(**model),
        ]
        path = Path(__file__).with_name(f"standin_a100_{name}.csv")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
