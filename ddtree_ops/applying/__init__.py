"""The only writer: transactions on a host, driven step by step, and the ways back."""
