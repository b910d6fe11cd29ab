"""PipeSwitch: a model arrives over the host link while its first layers already run on the GPU.

    from labkit.papers import pipeswitch

    layers = pipeswitch.Layers.bert_base(total_s=0.02)
    link = pipeswitch.Link(bandwidth_bytes_per_s=1.2e10, call_s=2e-5)
    groups = pipeswitch.best_groups(layers, link)
    pipeswitch.stream(layers, link, groups).end_s, pipeswitch.bound_s(layers, link)

``layers`` holds models, links and groups of layers, ``experiment`` the paper's comparison beside
the authors' reruns, ``figures`` draws.

Source: Bai et al., PipeSwitch: Fast Pipelined Context Switching for Deep Learning Applications
(OSDI'20).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "experiment": ["Experiment", "Way", "read_reruns"],
        "figures": ["figure_stream", "figure_ways"],
        "layers": ["Layers", "Link", "Stream", "best_groups", "bound_s", "equal_groups", "stream"],
    },
)
