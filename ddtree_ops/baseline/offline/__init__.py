"""DFlash and DDTree decoding on Hugging Face models: batch 1, readable, slow, exact. Needs torch and transformers.

``python -m ddtree_ops.baseline.offline --target DIR --drafter DIR --prompts FILE --budgets 8,16,32 --out FILE.jsonl``
"""
