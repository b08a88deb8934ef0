"""Models of random weights in real shapes, made on the device, and rows of known lengths: nothing is downloaded.

    python models.py FOLDER cuda toy 8b

FOLDER/models/NAME is what `from_pretrained` loads; FOLDER/rows-N.jsonl has rows of more than N tokens, FOLDER/
rows-0.jsonl documents of many lengths. On `cpu` every model has four small blocks.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import ROOT, Bench


def _llama(vocabulary: int, hidden: int, layers: int, heads: int, key_values: int, inner: int, **more: Any) -> Any:
    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": key_values}
    return {"model_type": "llama", **sizes, **heads_of, "max_position_embeddings": 16384, **more}


#: Name -> what its config.json states, by the catalogue's name of a model of the same shape.
SHAPES = {
    "toy": _llama(4096, 256, 4, 8, 4, 768),
    "0.5b": _llama(151936, 896, 24, 14, 2, 4864, model_type="qwen2", tie_word_embeddings=True),
    "1b": _llama(128256, 2048, 16, 32, 8, 8192, tie_word_embeddings=True),
    "8b": _llama(128256, 4096, 32, 32, 8, 14336),
    "tinyllama": _llama(32000, 2048, 22, 32, 4, 5632),
    "codellama": _llama(32000, 8192, 48, 64, 8, 22016),
}
LIKE = {
    "0.5b": "qwen2.5-0.5b",
    "1b": "llama-3.2-1b",
    "8b": "llama-3.1-8b",
    "tinyllama": "tinyllama-1.1b",
    "codellama": "codellama-34b",
}
TINY = _llama(1024, 64, 4, 4, 2, 128)
#: Tokens -> how many rows of that length.
ROWS = {512: 256, 1024: 1024, 2048: 128, 4096: 64}
DOCUMENTS = 800


def shape_of(name: str, device: str) -> dict[str, Any]:
    """What its config.json states."""
    return dict(SHAPES[name]) if device == "cuda" else {**TINY, "model_type": SHAPES[name]["model_type"]}


def write_rows(bench: Bench) -> None:
    """Rows of random words, each at least one token; the same in every run."""
    draw = random.Random(7)  # noqa: S311 - rows, no secrets
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = sorted({"".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(3000)})
    shares = [1 / (rank + 3) for rank in range(len(words))]
    lengths = [max(16, min(4000, int(draw.lognormvariate(5.6, 0.9)))) for _ in range(DOCUMENTS)]
    files = {bench.rows(0): [bench.length(count) + 2 for count in lengths]}
    files |= {bench.rows(tokens): [bench.length(tokens) + 8] * count for tokens, count in ROWS.items()}
    for path, counts in files.items():
        texts = (" ".join(draw.choices(words, shares, k=count)) for count in counts)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def main() -> None:
    """Makes what is not there yet; prints the parameters of each model."""
    folder, device, *names = sys.argv[1:]
    bench = Bench(folder=Path(folder), device=device, over=0)
    if not bench.rows(0).exists():
        write_rows(bench)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sys.path.insert(0, str(ROOT / "examples/demo"))
    from make_model import make_tokenizer

    tokenizer = make_tokenizer([bench.rows(512)], vocabulary_size=1000)
    tokens = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    ids = {f"{name}_token_id": number for name, number in tokens.items()}
    parameters = {}
    for name in names:
        whole = bench.folder / "models" / name
        if (whole / "config.json").exists():
            continue
        stated = shape_of(name, device)
        kind = torch.bfloat16 if device == "cuda" and name != "toy" else torch.float32
        config = AutoConfig.for_model(stated.pop("model_type"), **stated, **ids)
        torch.manual_seed(1)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=kind)
        whole.parent.mkdir(exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=whole.parent))
        try:
            model.save_pretrained(making)
            tokenizer.save_pretrained(making)
            making.rename(whole)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        parameters[name] = sum(parameter.numel() for parameter in model.parameters())
        del model
    print(json.dumps(parameters))


if __name__ == "__main__":
    main()
