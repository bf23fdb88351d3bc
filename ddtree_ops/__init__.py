"""ddtree-ops: bring DDTree speculative decoding into an existing SGLang over SSH, and take it back byte for byte."""

__version__ = "0.1.0"
