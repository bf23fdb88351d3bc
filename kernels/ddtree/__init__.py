"""DDTree speculative decoding for SGLang: draft-tree verification over a DFlash block drafter."""
