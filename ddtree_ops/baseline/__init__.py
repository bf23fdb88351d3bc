"""Offline baselines: our own slow and exact DFlash and DDTree decoding, traces, their comparison, budget curves.

``offline/`` needs torch and transformers and runs on the host; everything else is plain Python and runs here.
"""
