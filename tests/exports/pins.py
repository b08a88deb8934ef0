"""The version of each tool that exports are written for, and of what its parser needs."""

_HTTP = ("httpx", "httpcore", "h11", "anyio", "sniffio", "certifi", "idna", "charset-normalizer", "urllib3", "hf-xet")

PINS: dict[str, tuple[str, ...]] = {
    "slurm": (),  # Debian's, where it is not installed: see the check
    "kubernetes": ("kubernetes-validate==1.37.0",),
    "skypilot": ("skypilot==0.14.1",),
    "torchtitan": (
        *("torchtitan==0.3.0", "torchdata==0.11.0", "torch_checkpointing==0.1.1", "spmd_types==0.2.3"),
        *("tyro==1.0.17", "typeguard", "docstring-parser", "einops==0.8.2", "triton==3.9.0", "tensorboard", "pillow"),
    ),
    "accelerate": ("accelerate==1.15.0",),
    "trl": ("trl==1.16.0",),
    "deepspeed": ("deepspeed==0.19.8", "hjson", "py-cpuinfo", "msgpack", "einops"),
    "axolotl": (
        *("axolotl==0.19.0", "transformers==5.16.1", "peft==0.20.0", "accelerate==1.13.0", "datasets==4.8.4"),
        *("trl==1.9.0", "huggingface_hub==1.17.0", "tokenizers==0.23.1", "addict", "colorama", "python-dotenv", "fire"),
        *("posthog==6.7.11", "backoff", "distro", "requests", "termcolor", *_HTTP),
    ),
    "llama-factory": (
        *("llamafactory==0.9.5", "transformers==5.6.0", "peft==0.18.1", "accelerate==1.11.0", "datasets==4.0.0"),
        *("trl==0.24.0", "huggingface_hub==1.17.0", "tokenizers==0.22.2", "omegaconf", "antlr4-python3-runtime==4.9.3"),
        *("dill==0.3.8", "multiprocess==0.70.16", "fire", "termcolor", "requests", "tqdm", "av", "pillow", *_HTTP),
    ),
    "ms-swift": (
        *("ms-swift==4.6.0", "transformers==5.19.0", "peft==0.20.0", "accelerate==1.15.0", "datasets==4.8.4"),
        *("trl==0.29.1", "modelscope", "modelscope_hub", "cryptography", "cffi", "pycparser", "addict", "json_repair"),
        *("dacite", "binpacking", "simplejson", "sortedcontainers", "attrdict", "einops", "requests", "tqdm", "pillow"),
        *("oss2", "scipy", "transformers_stream_generator", "matplotlib", *_HTTP),
    ),
}

#: What is installed with all that it depends on; the others take torch and what goes with it from
#: below.
WHOLE = ("kubernetes", "skypilot")
