"""Makes a tiny model of the Llama architecture, so that real engines run with no download. A script: model.py FOLDER.

Its weights are random and its text is nonsense, but token counts, streams, stops, cancellations and metrics are real.
Two things are arranged so that tests can rely on them. Text is printable ASCII and an answer runs to its max_tokens:
hidden channel 0 is kept at a constant that no layer writes to, so that its column of the output layer is a bias on each
token: up for printable ones, down for the end token and for halves of characters. And one seed gives the same bytes.

Written for llama.cpp (`tiny.gguf`) and for vLLM (the folder, with an adapter in `lora/`). It runs in an environment of
its own, with numpy, safetensors, tokenizers and gguf.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Weights = dict[str, Any]

LAYERS, WIDTH, HEADS, KV_HEADS, FEED, CONTEXT = 2, 128, 4, 2, 256, 32768
HEAD = WIDTH // HEADS  # 32, the least that vLLM's attention on a CPU takes
EPSILON, ROPE = 1e-5, 10000.0
PAD, START, END = SPECIALS = ("<pad>", "<start>", "<end>")
SEED = 20

WORDS = """the gateway weighs every request before it may pass and each tenant gets a fair part of what there is
tokens wait in the queue until a seat is free user assistant system model answer""".split()  # noqa: SIM905

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens by id, and merges: every byte, then each word grown letter by letter, with its space before it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, merges = [*SPECIALS, *alphabet], []
    known = set(tokens)
    for word in WORDS:
        grown = "Ġ"  # how a byte-level alphabet writes a space
        for letter in word:
            if grown + letter not in known:
                merges.append((grown, letter))
                tokens.append(grown + letter)
                known.add(grown + letter)
            grown += letter
    return tokens, merges


def tokenizer_of(tokens: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    """The byte-level tokenizer of that vocabulary; any text goes through it unchanged."""
    made = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    return made


def weights_of(tokenizer: Tokenizer) -> Weights:
    """Float32 weights under the names that Hugging Face gives them."""
    rng = np.random.default_rng(SEED)
    size = tokenizer.get_vocab_size()

    def noise(rows: int, columns: int, spread: float) -> Any:
        return rng.normal(0.0, spread, (rows, columns)).astype(np.float32)

    embedding = noise(size, WIDTH, 1.0)
    embedding[:, 0] = 5.0
    output = noise(size, WIDTH, 0.2)
    texts = [tokenizer.decode([index]) for index in range(size)]
    output[:, 0] = [4.0 if text.isascii() and text.isprintable() and text else -4.0 for text in texts]
    weights: Weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(WIDTH, np.float32),
        "lm_head.weight": output,
    }
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD, WIDTH),
        "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * HEAD),
        "mlp.gate_proj": (FEED, WIDTH),
        "mlp.up_proj": (FEED, WIDTH),
        "mlp.down_proj": (WIDTH, FEED),
    }
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            matrix = noise(*shape, 0.08)
            if name.endswith(("o_proj", "down_proj")):
                matrix[0] = 0.0  # the two that write to the hidden state leave channel 0 alone
            weights[f"model.layers.{layer}.{name}.weight"] = matrix
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = np.ones(WIDTH, np.float32)
    return weights


def write_folder(folder: Path, tokenizer: Tokenizer, weights: Weights) -> None:
    """The model as transformers and vLLM read it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {f"{name}_token_id": index for index, name in enumerate(("pad", "bos", "eos"))}
    write_json(folder / "generation_config.json", ids)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "bos_token": START,
            "eos_token": END,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    write_json(
        folder / "config.json",
        {
            **ids,
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "float32",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": WIDTH,
            "intermediate_size": FEED,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": EPSILON,
            "rope_theta": ROPE,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
    )
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_lora(folder: Path, rank: int = 4) -> None:
    """An adapter strong enough to change the text, on the query and value matrices."""
    rng = np.random.default_rng(SEED + 1)
    folder.mkdir(parents=True, exist_ok=True)
    targets = {"q_proj": HEADS * HEAD, "v_proj": KV_HEADS * HEAD}
    write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "tiny",
            "r": rank,
            "lora_alpha": 4 * rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(targets),
        },
    )
    halves: Weights = {}
    for layer in range(LAYERS):
        for module, rows in targets.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            halves[f"{name}.lora_A.weight"] = rng.normal(0, 0.5, (rank, WIDTH)).astype(np.float32)
            halves[f"{name}.lora_B.weight"] = rng.normal(0, 0.5, (rows, rank)).astype(np.float32)
    save_file(halves, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})


def write_gguf(path: Path, tokens: list[str], merges: list[tuple[str, str]], weights: Weights) -> None:
    """The same model as one file for llama.cpp."""
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(FEED)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_rope_dimension_count(HEAD)
    file.add_rope_freq_base(ROPE)
    file.add_layer_norm_rms_eps(EPSILON)
    file.add_vocab_size(len(tokens))
    file.add_file_type(gguf.LlamaFileType.ALL_F32)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIALS))
    file.add_token_types(kinds)
    file.add_token_merges([" ".join(pair) for pair in merges])
    file.add_pad_token_id(0)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_add_bos_token(False)  # the chat template writes it
    file.add_chat_template(TEMPLATE)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    file.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    file.add_tensor("output_norm.weight", weights["model.norm.weight"])
    file.add_tensor("output.weight", weights["lm_head.weight"])
    for layer in range(LAYERS):
        for theirs, ours in names.items():
            matrix = weights[f"model.layers.{layer}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                matrix = paired(matrix)
            file.add_tensor(f"blk.{layer}.{ours}.weight", matrix)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def paired(matrix: Any) -> Any:
    """Rows reordered for llama.cpp, which rotates neighbouring channels of a head; the other format rotates channel i
    with channel i + half a head."""
    rows = np.arange(matrix.shape[0]).reshape(-1, 2, HEAD // 2)
    return np.ascontiguousarray(matrix[rows.transpose(0, 2, 1).ravel()])


def write_json(path: Path, value: dict[str, Any]) -> None:
    """One small file."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Write everything into the folder named on the command line."""
    folder = Path(sys.argv[1])
    tokens, merges = vocabulary()
    tokenizer = tokenizer_of(tokens, merges)
    weights = weights_of(tokenizer)
    write_folder(folder, tokenizer, weights)
    write_lora(folder / "lora")
    write_gguf(folder / "tiny.gguf", tokens, merges, weights)


if __name__ == "__main__":
    main()
