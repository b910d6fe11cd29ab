"""Small networks of architectures that closed forms do not know, as their config.json has them."""

from __future__ import annotations

from typing import Any

_USUAL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "vocab_size": 331,
}
_GROUPED = _USUAL | {"num_key_value_heads": 2, "head_dim": 16}
_BERT = _USUAL | {
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_IMAGE = _USUAL | {"image_size": 32, "patch_size": 8, "num_labels": 10}
_PAIR = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 331},
    **{"encoder_ffn_dim": 192, "decoder_ffn_dim": 192},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 192, "num_layers": 2, "num_heads": 4, "vocab_size": 331}
_OPT = {
    **{"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 192},
    **{"vocab_size": 331, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **_BERT},
    "t5": {"model_type": "t5", **_T5},
    "bart": {"model_type": "bart", **_PAIR},
    "gemma2": {"model_type": "gemma2", **_GROUPED},
    "gemma3": {"model_type": "gemma3_text", **_GROUPED},
    "phi": {"model_type": "phi", **_USUAL},
    "phi3": {"model_type": "phi3", **_USUAL, "num_key_value_heads": 2, "pad_token_id": 0},
    "gpt-oss": {"model_type": "gpt_oss", **_GROUPED, **_EXPERTS},
    "opt": {"model_type": "opt", **_OPT},
    "gpt-neox": {"model_type": "gpt_neox", **_USUAL},
    "vit": {"model_type": "vit", **_IMAGE},
    "swin": {
        **{"model_type": "swin", "image_size": 32, "patch_size": 4, "embed_dim": 16},
        **{"depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
    },
    "mamba": {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 331},
}
