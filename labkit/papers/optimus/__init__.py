"""Optimus (EuroSys'18): workers and parameter servers by what one more of them saves.

    from labkit.papers import optimus

    law = optimus.ServerSpeed.from_peaks(8, 12, 10)  # fastest divisions of 20 tasks
    trace = cluster.generate(9, num_gpus=39, kinds=("ResNet-50",), gpus={2: 1})
    cluster.compare(trace, machines, optimus.task_policies({"ResNet-50": law}, 39))

``servers`` says how long steps take and who gets tasks, ``blocks`` which server holds which
parameters, ``forecast`` when a training converges; ``experiment`` compares ways to hand out tasks
over draws of jobs, ``figures`` draws.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "blocks": ["place_blocks"],
        "experiment": ["FILES", "MIXES", "Experiment", "Method", "Networks", "blocks_of"],
        "figures": ["figure_forecasts", "figure_gains", "figure_idea", "figure_speeds"],
        "forecast": ["converged_epoch", "digit_losses"],
        "servers": [
            "ServerSpeed",
            "equal_shares",
            "least_mean_s",
            "marginal_gains",
            "task_policies",
        ],
    },
)
