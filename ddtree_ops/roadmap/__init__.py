"""The roadmap's result tables, made from ``benchmarks/results/*.json``: ``python -m ddtree_ops.roadmap [--check]``.

Tables of results are never typed. In ``sglang-ddtree-roadmap.md`` they stand between markers; this package makes what
stands there, and ``--check`` (in the tests) fails when a table is not what the files say.
"""
