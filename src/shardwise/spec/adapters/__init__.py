"""Which modules LoRA adapts or copies, by PEFT's rules."""
