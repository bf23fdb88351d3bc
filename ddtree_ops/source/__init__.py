"""Facts -> Verdict: which copy of SGLang is real, and how the copies differ."""
