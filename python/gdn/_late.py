# SPDX-License-Identifier: Apache-2.0
"""Who still holds what gdn has replaced, or looked for a package before gdn stood in for it."""

import gc
import sys
import types
import warnings

_PARTS = dict, tuple, list, types.CellType


def _owner(holder, depth=3):
    """The name of the function, class or object that a dictionary, cell or tuple is part of; None
    for what runs now."""
    if isinstance(holder, _PARTS):
        above = gc.get_referrers(holder) if depth else []
        above.sort(key=lambda x: not isinstance(x, types.FunctionType))
        return next(filter(None, (_owner(x, depth - 1) for x in above)), None)
    named = holder if isinstance(holder, (types.FunctionType, type)) else type(holder)
    return f"{named.__module__}.{named.__qualname__}" if hasattr(holder, "__dict__") else None


def _attributes(theirs, call):
    """Replaces theirs by call in attributes of objects, such as layers that were made before."""
    for each in gc.get_referrers(theirs):
        owners = gc.get_referrers(each) if isinstance(each, dict) else [each]
        for owner in owners:
            if isinstance(owner, (type, types.ModuleType, types.FunctionType)):
                continue
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                if value is theirs and name != "__wrapped__":
                    vars(owner)[name] = call


def _holders(theirs, call):
    """Returns the names of objects that still have theirs: closures, defaults, partials,
    collections."""
    own = {id(call.__dict__), *map(id, call.__closure__)}
    names = set()
    for holder in gc.get_referrers(theirs):
        if id(holder) not in own:
            names.add(_owner(holder))
    return names - {None}


def replaced(package, pairs):
    """Replaces functions in attributes of objects; pairs: of theirs and the function in its place.
    One line warns of other objects that still have theirs."""
    found = []
    for theirs, call in pairs:
        _attributes(theirs, call)
        for name in sorted(_holders(theirs, call)):
            found.append(f"{name} ({theirs.__name__})")
    if found:
        warnings.warn(f'gdn.install("{package}") comes too late for {", ".join(found)}: made '
                      "before, with the package's own function; call it first", stacklevel=5)


def made(package, names):
    """Warns by one line of modules that looked for the package earlier, and have None instead of
    it."""
    late = sorted(name for name, module in list(sys.modules.items())
                  if any(vars(module).get(n, module) is None for n in names
                         if isinstance(module, types.ModuleType)))
    if late:
        warnings.warn(f'gdn.install("{package}") comes too late for {", ".join(late)}: imported '
                      "before, without it; call it first", stacklevel=5)


def forget():
    """Makes transformers look again for packages that it has noted as absent."""
    utils = sys.modules.get("transformers.utils.import_utils")
    for name in ("is_flash_linear_attention_available", "is_causal_conv1d_available"):
        clear = getattr(getattr(utils, name, None), "cache_clear", None)
        if clear is not None:
            clear()
