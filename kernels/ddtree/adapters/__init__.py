"""What touches SGLang: verify input, commit, worker, per-release differences, metrics."""
