"""``python -m ddtree_ops``: the same as the ``ddtree-ops`` command."""

from .cli import main

main()
