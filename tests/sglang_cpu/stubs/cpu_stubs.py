"""Import-time stand-ins that let an unmodified SGLang wheel load without a GPU build.

Put this folder first on PYTHONPATH (``sitecustomize`` then imports this module in every process), or import
it yourself before transformers. Two finders are installed:

* before the first ``import torchvision``, the schemas of ``torchvision::nms`` and ``torchvision::qnms`` are
  declared, because the ordinary torchvision wheel cannot load its compiled operators next to a CPU-only torch;
* ``sgl_kernel.kvcacheio`` (imported by SGLang 0.5.11 to 0.5.13) resolves to a module whose functions raise
  when called.

Do not widen the second finder to every ``sgl_kernel.*`` sub-module: some SGLang releases then take code
paths that read attributes such as ``scalar_types.uint4b8``.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class TorchvisionOps(importlib.abc.MetaPathFinder):
    """Declare the two missing operators just before torchvision is imported; never finds a module itself."""

    library = None
    schemas = (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    )

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and TorchvisionOps.library is None:
            TorchvisionOps.library = False  # importing torch below comes back through this finder
            import torch

            TorchvisionOps.library = torch.library.Library("torchvision", "DEF")
            for schema in self.schemas:
                TorchvisionOps.library.define(schema)
        return


class StubModule(types.ModuleType):
    """A module that has every attribute; each is a function that raises when called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args, **kwargs):
            raise RuntimeError(f"{self.__name__} stub called: {name}")

        return missing


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Resolve the listed sub-modules to stubs."""

    names = ("sgl_kernel.kvcacheio",)

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name in self.names else None

    def create_module(self, spec):
        module = StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, TorchvisionOps())
sys.meta_path.append(StubFinder())
