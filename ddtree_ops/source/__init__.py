"""Facts -> Verdict: which copy of SGLang is real, how the others differ, and what may be done. Pure functions."""
