"""Hugging Face models: their anatomy, and loading each rank's slices from safetensors."""
