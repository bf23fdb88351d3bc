"""Builders that turn drafter logits into verify-ready tree tensors."""
