#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
transformers runs random Qwen3-Next and Qwen3.5 by its torch functions and by gdn's:
transformers_models.py [--device cuda] [--tokens 8192] [--no-speed] [--eager]

Needs torch, transformers and gdn. First small models in float32: logits of a forward pass, greedy
tokens and their logits with the cache that grows, with the static one, and with the static one
compiled. It fails if a token differs, or a logit by more than 1e-4 of the largest, or if nothing
was compiled. Then times, in turns: a layer of Qwen3-Next's width over a prompt and over one token,
and generate() of a Qwen3.5 of four such layers, in bfloat16. On a CPU these are processor times of
one thread. A JSON line each.
"""
import argparse
import contextlib
import inspect
import json
import statistics
import sys
import time

import gdn
import gdn._transformers_step as by_step
import gdn.transformers
import torch
import transformers
from torch._dynamo.utils import counters
from transformers.generation import CompileConfig

MODELS = {"qwen3_next": "Qwen3Next", "qwen3_5": "Qwen3_5"}
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
               shared_expert_intermediate_size=16)
KINDS = ["linear_attention"] * 3 + ["full_attention"]
SMALL = dict(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=4,
             num_attention_heads=2, num_key_value_heads=1, head_dim=32, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
             layer_types=KINDS)
WIDE = dict(vocab_size=1024, hidden_size=2048, intermediate_size=5120, num_hidden_layers=4,
            num_attention_heads=16, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16,
            linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
            layer_types=KINDS)


def never(*_):
    return False


@contextlib.contextmanager
def functions(of_gdn):
    """The models' functions: gdn's, or transformers' own in torch whatever else is installed."""
    models = gdn.transformers.modules()
    modules = list(models.values())
    kept = [{f.__name__: getattr(module, f.__name__) for f in gdn.transformers.functions(name)}
            for name, module in models.items()]
    is_step = by_step._is_step
    if of_gdn:
        gdn.install("transformers")
    else:
        for module, its in zip(modules, kept):
            vars(module).update({name: inspect.unwrap(f) for name, f in its.items()})
        # Not the class's forward(), which a compiled graph has no guard for.
        by_step._is_step = never
    yield
    for module, its in zip(modules, kept):
        vars(module).update(its)
    by_step._is_step = is_step


def model_of(name, sizes, device, dtype=torch.float32):
    make = getattr(transformers, f"{MODELS[name]}ForCausalLM")
    more = EXPERTS if name == "qwen3_next" else {}
    torch.manual_seed(0)
    return make(make.config_class(**sizes, **more)).to(device, dtype).eval()


def generated(model, tokens, **options):
    return model.generate(tokens, do_sample=False, max_new_tokens=16, eos_token_id=None,
                          pad_token_id=0, return_dict_in_generate=True, output_logits=True,
                          **options)


def compiled():
    config = CompileConfig(mode="default", fullgraph=True)
    config._compile_all_devices = True  # else a CPU is left out
    return dict(cache_implementation="static", compile_config=config)


def ways(is_eager):
    """Ways to generate: a name, and options."""
    yield "dynamic cache", {}
    yield "static cache", dict(cache_implementation="static", disable_compile=True)
    if not is_eager:
        yield "static cache, compiled", compiled()


def away(got, wanted):
    """The largest difference, by the largest logit."""
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def counted():
    calls = dict.fromkeys(("prefill", "step", "conv1d"), 0)
    for name in calls:
        def call(*args, _name=name, _call=getattr(gdn.torch, name), **kwargs):
            if not torch.compiler.is_compiling():
                calls[_name] += 1
            return _call(*args, **kwargs)

        setattr(gdn.torch, name, call)
    return calls


def compare(name, common, calls, options):
    model = model_of(name, SMALL, options.device)
    tokens, found = torch.randint(1, 64, (2, 75), device=options.device), {}
    for of_gdn in (False, True):
        calls.update(dict.fromkeys(calls, 0))
        with functions(of_gdn):
            found[of_gdn] = {"forward": (None, model(tokens).logits)}
            for way, more in ways(options.eager):
                torch._dynamo.reset()
                counters.clear()
                out = generated(model, tokens, **more)
                found[of_gdn][way] = out.sequences, torch.stack(out.logits)
            graphs, breaks = counters["stats"]["unique_graphs"], counters["graph_break"]
    holds = all(calls.values()) and (graphs > 0 or options.eager)
    for way, (sequences, logits) in found[True].items():
        right, wanted = found[False][way]
        line = dict(common, model=name, way=way, logits=away(logits, wanted))
        if right is not None:
            line["equal_tokens"] = torch.equal(sequences, right)
        if "compiled" in way:
            line.update(graphs=graphs, graph_breaks=sum(breaks.values()))
        print(json.dumps(line), flush=True)
        holds &= line["logits"] < 1e-4 and line.get("equal_tokens", True)
    return holds


# ---- Times -------------------------------------------------------------------------------------


def clock(device):
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def in_turns(call, device, rounds):
    """Median seconds of call by transformers' functions and by gdn's."""
    times = {False: [], True: []}
    for i in range(-1, rounds):
        for of_gdn in times:
            with functions(of_gdn):
                start = clock(device)
                call()
                if i >= 0:
                    times[of_gdn].append(clock(device) - start)
    return [statistics.median(x) for x in times.values()]


def speed(device, common, options):
    model = model_of("qwen3_5", WIDE, device, torch.bfloat16)
    layer, hidden = model.model.layers[0].linear_attn, WIDE["hidden_size"]
    dtype = dict(device=device, dtype=torch.bfloat16)
    prompt = torch.randint(1, 1024, (1, options.tokens), device=device)
    x, cache = torch.randn(1, options.tokens, hidden, **dtype), model(prompt).past_key_values
    one = torch.randn(1, 1, hidden, **dtype)
    cached = [n for n in inspect.signature(inspect.unwrap(type(layer).forward)).parameters
              if n.startswith("cache")][0]

    def new(n, **more):
        return model.generate(prompt, do_sample=False, max_new_tokens=n, min_new_tokens=n,
                              eos_token_id=None, pad_token_id=0, **more)

    def say(what, theirs, ours):
        print(json.dumps(dict(common, what=what, peer_ms=1e3 * theirs, ms=1e3 * ours,
                              speedup=theirs / ours)), flush=True)

    calls = {f"layer, {options.tokens} tokens": (lambda: layer(x), 1),
             "layer, one token": (lambda: [layer(one, **{cached: cache}) for _ in range(20)], 20),
             "first token of generate()": (lambda: new(1), 1)}
    for what, (call, n) in calls.items():
        say(what, *(t / n for t in in_turns(call, device, options.rounds)))
    for what, more in (("", {}), (", compiled", compiled())):
        if more and (options.eager or device == "cpu"):
            continue  # compiling takes minutes on a CPU
        few, many = (in_turns(lambda n=n: new(n, **more), device, options.rounds) for n in (1, 33))
        say(f"each later token of generate(){what}", *((b - a) / 32 for a, b in zip(few, many)))


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cpu")
    p.add_argument("--tokens", type=int, default=1024, help="of a prompt (%(default)s)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--no-speed", action="store_true")
    p.add_argument("--eager", action="store_true", help="compile nothing")
    options = p.parse_args()
    device, holds = options.device, True
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        gdn.torch.warm_up(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    common = dict(peer=f"transformers {transformers.__version__}, torch {torch.__version__}",
                  device=torch.cuda.get_device_name() if device != "cpu" else gdn.info()["isa"])
    with torch.no_grad():
        calls = counted()
        for name in MODELS:
            holds &= compare(name, common, calls, options)
        if not options.no_speed:
            speed(device, common, options)
    return None if holds else "transformers_models: results differ, or no call was gdn's"


if __name__ == "__main__":
    sys.exit(main())
