"""The tree's definition, heap, walk and trace records, from the payload's own ``kernels/ddtree/tree`` (no torch there).

They are loaded from the packaged payload under a name of their own, so that what judges a trace is what was deployed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddtree.tree import definition, heap, trace, walk
else:
    import importlib.util
    import sys

    from ..resources import packaged_dir

    _NAME = "ddtree_ops_tree"

    def _load(module):
        if _NAME not in sys.modules:
            folder = packaged_dir("kernels") / "ddtree" / "tree"
            spec = importlib.util.spec_from_file_location(
                _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
            package = importlib.util.module_from_spec(spec)
            sys.modules[_NAME] = package
            spec.loader.exec_module(package)
        return importlib.import_module(f"{_NAME}.{module}")

    definition, heap, trace, walk = map(_load, ("definition", "heap", "trace", "walk"))

__all__ = ["definition", "heap", "trace", "walk"]
