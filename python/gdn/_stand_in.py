# SPDX-License-Identifier: Apache-2.0
"""Replaces the functions of a package; or, if it cannot be imported, the package."""

import importlib
import sys
import types
from importlib.machinery import ModuleSpec

from . import _drop_in, _late


def _loaded(name):
    try:
        return importlib.import_module(name)
    except Exception:  # the package is absent, or cannot be imported on this machine
        return None


def _make(package, version, modules):
    """New modules of these names, and of the packages above them, in sys.modules."""
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        del sys.modules[name]  # remains of a failed import
    parents = {".".join(parts[:n]) for parts in (name.split(".") for name in modules)
               for n in range(1, len(parts) + 1)}
    for name in sorted(parents):
        module = types.ModuleType(name, f"gdn under the names of {package}")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__, module.is_gdn = [], True
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    for name, names in modules.items():  # also if a module has the name of one inside it
        vars(sys.modules[name]).update(names)
    sys.modules[package].__version__ = version


def install(package, version, modules, probe=None, keep=()):
    """
    Puts the functions of modules {module: {name: ours}} into the place of the package's, in modules
    and objects made already too; where its module probe is not importable, makes new modules with
    all names. Warns of what it comes too late for.
    An importable package keeps its classes, which call its functions, and the functions that keep
    names. A second call changes nothing.
    """
    found = _loaded(probe or package)
    if found is None:
        _make(package, version, modules)
        _late.forget()
        _late.made(package, {n for names in modules.values() for n, ours in names.items()
                             if isinstance(ours, types.FunctionType)})
    elif not getattr(found, "is_gdn", False):
        pairs = []
        for name, names in modules.items():
            theirs = _loaded(name)
            for n, ours in names.items():
                function = getattr(theirs, n, None)
                if isinstance(ours, types.FunctionType) and function is not None and n not in keep:
                    pairs.append((function, _drop_in.replace(ours, function)))
        _late.replaced(package, [pair for pair in pairs if pair[1] is not None])
