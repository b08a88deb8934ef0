"""Starting, following and stopping worker processes. Knows processes and files, not tensors."""
