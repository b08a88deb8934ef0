"""What users of Trainer, TRL, PEFT, Axolotl and DeepSpeed write, and what a job has instead."""

from __future__ import annotations

_BATCH = "write train.global_batch_size (train.micro_batch_size is what one GPU takes at once)"

#: A key, or a key and its value -> the end of the sentence that refuses it. docs/howto/migrate.md has the same as a
#: table.
FROM_OTHER_TOOLS: dict[str, str] = {
    "bf16": "write train.precision: mixed (or bf16)",
    "fp16": "write train.precision: fp16",
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size", "batch_size"), _BATCH),
    **dict.fromkeys(("max_seq_length", "max_seq_len", "sequence_len"), "write data.max_length"),
    **dict.fromkeys(("dataset", "datasets", "dataset_name"), "write data.path"),
    **dict.fromkeys(("num_epochs", "epochs"), "write train.num_train_epochs"),
    **dict.fromkeys(("base_model", "model_name_or_path"), "write model"),
    **dict.fromkeys(("optimizer: adamw_torch", "optimizer: adamw_torch_fused"), "write adamw"),
    **dict.fromkeys(("zero3", "layout: zero3"), "ZeRO-3 is fsdp here"),
    "gradient_accumulation_steps": "it follows from train.global_batch_size and train.micro_batch_size",
    "train_micro_batch_size_per_gpu": "write train.micro_batch_size",
    "gradient_clipping": "write train.max_grad_norm",
    "gradient_checkpointing: true": "write full",
    "gradient_checkpointing: false": "write none",
    "gradient_checkpointing: unsloth": "write offloaded",
    "activation_offloading": "write train.gradient_checkpointing: offloaded, or selective_offloaded",
    "lr": "write train.learning_rate",
    "optim": "write train.optimizer",
    "r": "write lora.r",
    "lora_r": "write lora.r",
    "lora_target_modules": "write lora.target_modules",
    "assistant_only_loss": "write data.train_on: assistant",
    "load_in_4bit": "write method: qlora",
}
