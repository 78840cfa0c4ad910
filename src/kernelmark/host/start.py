"""Run a module of kernelmark in a child process: `python -P start.py kernelmark.runners.worker …`.

The package is imported from the folder of this file and not through the search path: another
interpreter has none, or another one, and a current folder or checkout may contain a `kernelmark` of
its own. `-P` keeps the folder of this file off the search path.
"""

import importlib.util
import runpy
import sys
from pathlib import Path


def _import_package(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(folder.name, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[folder.name] = package
    spec.loader.exec_module(package)


# Also in a process that `multiprocessing` spawns, which imports this file.
_import_package(Path(__file__).resolve().parents[1])

if __name__ == "__main__":
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__")
