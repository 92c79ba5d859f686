# SPDX-License-Identifier: Apache-2.0
"""
Modules whose weight says all, so that an operator may compute them without a call. This runs in
every call of a layer, so it reads the dictionaries of modules, which is quicker than attributes.
"""

from torch.nn.modules import module as _modules


def is_whole(weight):
    """Returns whether the tensor itself holds its numbers. Sharded and quantised tensors do not."""
    return not hasattr(type(weight), "__tensor_flatten__")


def is_hooked(module):
    """Whether a call of the module does more than the forward() of its class. accelerate, for one,
    assigns another forward() to the module itself."""
    own = module.__dict__
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own
                or own["_backward_hooks"] or own["_backward_pre_hooks"])


def has_global_hooks():
    """Whether there are hooks of the calls of all modules."""
    return bool(_modules._global_forward_hooks or _modules._global_forward_pre_hooks)


def weight_of(module, kinds, takes_bias=False):
    """The weight of a module, or None if it does not say all (with a bias, if takes_bias).
    Adapters, parametrisations and sharding give the module a class that is not in kinds."""
    if type(module) not in kinds or is_hooked(module):
        return None
    own = module.__dict__["_parameters"]
    weight, has_bias = own.get("weight"), own.get("bias") is not None
    return weight if is_whole(weight) and (takes_bias or not has_bias) else None
