"""Which part of a model is trained: by words, by an adapter, or by a module's own parameters."""

from __future__ import annotations

import re
from functools import lru_cache

from labkit.errors import BadValue
from labkit.memory.jobs.adapter import TENSORS, Adapter
from labkit.memory.tape.trained import ALL, NONE, Names, Trained, is_trained
from labkit.models import Model, TensorShape
from labkit.models.layout import whole
from labkit.models.tensors import by_unit

ENDS = ("embedding", "norm", "head")
_LAYERS = re.compile(
    r"layers(?:\.(?P<first>\d+)(?:-(?P<last>\d+))?)?(?:\.(?P<part>attention|mlp|norms|biases))?"
)
VALID = "embedding, norm, head, layers, layers.30-31, or layers.30.mlp (attention, norms, biases)"
# Parameters of a layer on the tape, by the names that models and modules give them; the
# projections' stand at TENSORS.
_ALIASES = {
    "attention norm": ("norm1", "ln_1", "input_layernorm", "attention_norm", "sa_norm"),
    "mlp norm": ("norm2", "ln_2", "post_attention_layernorm", "ffn_norm", "mlp_norm"),
    "query norm": ("query_norm", "q_norm", "q_a_layernorm"),
    "key norm": ("key_norm", "k_norm"),
    "latent norm": ("kv_norm", "kv_a_layernorm"),
    "query down": ("query_down", "q_a_proj"),
    "query": ("query_up", "q_b_proj"),
    "latent down": ("kv_down", "kv_a_proj_with_mqa"),
    "latent up": ("kv_up", "kv_b_proj"),
    "router": ("router",),
}
_PROJECTIONS = {"q": "query", "k": "key", "v": "value", "qkv": "qkv", "o": "out"}


def check_words(words: tuple[str, ...]) -> None:
    """Refuse words that name no part of any model.

    Raises:
        BadValue: one does not; the message says which do.
    """
    for word in words:
        if word not in ENDS and not _LAYERS.fullmatch(word):
            raise BadValue(f"trained must be among {VALID}; got {word!r}")


@lru_cache(maxsize=256)
def trained_of(
    model: Model, adapter: Adapter | None = None, words: tuple[str, ...] = ()
) -> Trained | None:
    """What is trained of a model; None where all is, or where it is not known of its layers.

    Args:
        adapter: what is trained beside it, and which of its ends are copied and trained.
        words: parts of the model, as :attr:`~labkit.memory.jobs.recipe.Recipe.trained` has them.

    Raises:
        BadValue: a word names a layer that the model does not have.
    """
    if adapter is not None and adapter.is_prompt:
        return Trained(frozenset({"prompt"}))
    if adapter is not None:
        layers = [
            frozenset({"adapters"}) if adapter.layers is None or number in adapter.layers else NONE
            for number in range(model.num_layers)
        ]
        return _trained(frozenset(adapter.saved), layers)
    if words:
        return _by_words(model, words)
    if model.layout and not all(tensor.trained for tensor in model.layout):
        return _by_tensors(model)
    return None


def is_end_trained(name: str, trained: Trained) -> bool:
    """Whether a tensor outside the layers, by its name in a model, is trained."""
    return _END.get(name.rpartition(".")[2], "norm") in trained.ends


_END = {"token": "embedding", "position": "position", "output": "head"}


def entries(model: Model, trained: Trained, *, experts: bool) -> dict[Names, int]:
    """How many layers, with experts or without, have which parameters trained."""
    dense = model.num_dense_layers
    own = range(dense, model.num_layers) if experts else range(dense)
    counts: dict[Names, int] = {}
    for number in own:
        names = trained.layers[number % len(trained.layers)]
        counts[names] = counts.get(names, 0) + 1
    return counts


def _trained(ends: Names, layers: list[Names]) -> Trained:
    """What is trained, its layers once where all are alike."""
    alike = len(set(layers)) == 1
    return Trained(ends, tuple(layers[:1] if alike else layers))


def _by_words(model: Model, words: tuple[str, ...]) -> Trained:
    """What words say of a model."""
    ends: set[str] = set()
    chosen: list[set[str]] = [set() for _ in range(model.num_layers)]
    for word in words:
        if word in ENDS:
            ends.add("embedding" if word == "head" and model.tied else word)
            continue
        said = _LAYERS.fullmatch(word)
        assert said is not None
        first = int(said["first"] or 0)
        last = int(said["last"] or said["first"] or model.num_layers - 1)
        if not first <= last < model.num_layers:
            raise BadValue(
                f"trained must name layers from 0 to {model.num_layers - 1} of {model.name}, in"
                f" order; got {word!r}"
            )
        for names in chosen[first : last + 1]:
            names.add(said["part"] or "all")
    if "embedding" in ends and model.positions:
        ends.add("position")
    layers = [ALL if "all" in names else frozenset(names) for names in chosen]
    biased = any(model.has_bias(where) for where in ("qkv", "out", "mlp"))
    biased = biased or model.norm == "layernorm"
    if not biased and any("biases" in names for names in layers):
        raise BadValue(f"trained must name no biases: {model.name} has none")
    return _trained(frozenset(ends), layers)


def _by_tensors(model: Model) -> Trained | None:
    """What a module's own parameters say; None where their names mean nothing here."""
    if not model.hidden:
        return None
    units = by_unit(tensor for tensor in model.layout if tensor.unit != "root")
    if len(units) != model.num_layers:
        return None
    ends = frozenset(
        _end_of(tensor, model)
        for tensor in model.layout
        if tensor.trained and tensor.unit == "root"
    )
    layers = [_names_of(members, model) for members in units.values()]
    if any(names is None for names in layers) or not _norm_is_one(model):
        return None
    return _trained(ends, [names for names in layers if names is not None])


def _end_of(tensor: TensorShape, model: Model) -> str:
    """The part outside the layers that a tensor is."""
    if tensor.role == "embedding":
        return "embedding" if tensor.shape[0] == model.vocab else "position"
    return "head" if tensor.role == "head" else "norm"


def _norm_is_one(model: Model) -> bool:
    """Whether the last norm's tensors are all trained or all frozen."""
    ends = [t for t in model.layout if t.unit == "root" and _end_of(t, model) == "norm"]
    return len({tensor.trained for tensor in ends}) <= 1


def _names_of(members: tuple[TensorShape, ...], model: Model) -> Names | None:
    """What of a layer is trained; None where a name is not known."""
    flags = {tensor.trained for tensor in members}
    if len(flags) == 1:
        return ALL if flags == {True} else NONE
    by_name: dict[str, bool] = {}
    for tensor in members:
        name = tape_name(tensor.name, model)
        if name is None or by_name.setdefault(name, tensor.trained) != tensor.trained:
            return None
    if not by_name.keys() <= _known(model):
        return None
    return frozenset(name for name, trained in by_name.items() if trained)


@lru_cache(maxsize=64)
def _known(model: Model) -> frozenset[str | None]:
    """The tape's names of the parameters of a model's layers."""
    blocks = (unit for unit in whole(model) if "block" in unit.name)
    return frozenset(tape_name(tensor.name, model) for unit in blocks for tensor in unit.tensors)


def tape_name(name: str, model: Model) -> str | None:
    """What a tensor of a layer is called on the tape; None where its name is not known.

    >>> tape_name("model.layers.3.self_attn.q_proj.weight", Model.preset("llama-2-7b"))
    'query'
    """
    *path, kind = name.split(".")
    if kind not in {"weight", "bias"}:  # a parameter of the layer's own, such as stacked experts
        path.append(kind)
    last = path[-1]
    found = next((to for to, names in _ALIASES.items() if last in names), None)
    if found is None:
        attends = any("att" in part for part in path[:-1])
        wanted = ["q", "k", "v", "qkv", "o"] if attends else ["gate", "up", "down"]
        if not any("att" in part or "mlp" in part for part in path[:-1]):
            wanted = list(TENSORS)  # a model's own names, which stand for one thing each
        target = next((t for t in wanted if last in TENSORS[t]), None)
        if target is None:
            return None
        found = _PROJECTIONS.get(target) or _of_mlp(target, path, model)
    return f"{found}, bias" if kind == "bias" else found


def _of_mlp(target: str, path: list[str], model: Model) -> str:
    """A projection of an MLP, of shared experts or of routed ones."""
    if any("shared" in part for part in path):
        return f"{target} m"
    if any("expert" in part for part in path):
        return target
    return f"{target} f" if model.mlp == "swiglu" else f"mlp {target}"


def trained_in_layer(tensor: TensorShape, names: Names, model: Model) -> bool:
    """Whether a tensor of a described model's layer is among the trained ones."""
    return is_trained(str(tape_name(tensor.name, model)), names)
