"""Tiny random models that speak: a byte-level tokenizer, some of its tokens longer than the pieces of a grammar."""

from __future__ import annotations

import torch
from tests import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from headstart.target.model import Target

# some span what a grammar sees as several things; words can be written in several ways
MERGES = [
    *(('"', x) for x in (":", "}", ",")),
    ("{", '"'),
    ("Ġ", '"'),
    ('":', "Ġ"),
    ('":', 'Ġ"'),
    ('",', 'Ġ"'),
    *((x, x) for x in "}01"),
    ("r", "e"),
    ("re", "d"),
    ("g", "re"),
    ("e", "n"),
    ("gre", "en"),
]

TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t.function | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}<assistant>"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes, a few merges, the special tokens ``</s>`` and ``<pad>``, and a template that knows tools."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *("".join(pair) for pair in MERGES), "</s>", "<pad>"]
    inner = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=MERGES))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="<pad>")
    made.chat_template = TEMPLATE
    return made


def target(seed: int = 0, *, exact: bool = True) -> Target:
    """A target around a fresh random model of that tokenizer, its logits padded beyond it."""
    own = tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        **{**tiny.SIZES, "vocab_size": len(own) + 5, "eos_token_id": own.eos_token_id, "max_position_embeddings": 1024},
        head_dim=32,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return Target(model, own, name=f"spoken-{seed}", kv_tokens=8192, exact=exact)
