# SPDX-License-Identifier: Apache-2.0
"""
backends.py BUILD BACKEND - ggml's CPU backend and libgdn's, integrations/ggml, on the same graphs
in one process: nodes of GATED_DELTA_NET and SSM_CONV, round by round, one thread. One JSON line per
case: the least processor time of a node in microseconds, and how far the results differ.

BUILD is a build of ggml with GGML_BACKEND_DL, BACKEND the path of libggml-gdn.so.
"""

import ctypes
import glob
import json
import os
import sys
import time

import numpy as np

build, path = sys.argv[1:]


def library(name):
    return ctypes.CDLL(glob.glob(os.path.join(build, "src", name))[0], ctypes.RTLD_GLOBAL)


base, loader = library("libggml-base.so"), library("libggml.so")
P, I64 = ctypes.c_void_p, ctypes.c_int64


def function(name, result, *arguments, of=base):
    found = getattr(of, name)
    found.restype, found.argtypes = result, arguments
    return found


class Params(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("memory", P), ("no_alloc", ctypes.c_bool)]


init = function("ggml_init", P, Params)
new = function("ggml_new_tensor_4d", P, P, ctypes.c_int, I64, I64, I64, I64)
rule = function("ggml_gated_delta_net", P, P, P, P, P, P, P, P, I64)
conv = function("ggml_ssm_conv", P, P, P, P)
graph_of = function("ggml_new_graph", P, P)
expand = function("ggml_build_forward_expand", None, P, P)
allocate = function("ggml_backend_alloc_ctx_tensors", P, P, P)
data_of = function("ggml_get_data", P, P)
elements = function("ggml_nelements", I64, P)
compute = function("ggml_backend_graph_compute", ctypes.c_int, P, P)
start = function("ggml_backend_dev_init", P, P, ctypes.c_char_p)
registry_of = function("ggml_backend_dev_backend_reg", P, P)
proc = function("ggml_backend_reg_get_proc_address", P, P, ctypes.c_char_p)
load = function("ggml_backend_load", P, ctypes.c_char_p, of=loader)
device_of = function("ggml_backend_reg_dev_get", P, P, ctypes.c_size_t)


def backend(library_path):
    registry = load(library_path.encode())
    if not registry:
        sys.exit(f"{library_path}: ggml does not load it")
    made = start(device_of(registry, 0), None)
    threads = ctypes.CFUNCTYPE(None, P, ctypes.c_int)(proc(registry,
                                                           b"ggml_backend_set_n_threads"))
    threads(made, 1)
    return made


def values(tensor):
    floats = ctypes.cast(data_of(tensor), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(floats, (elements(tensor),))


def unit(shape, rng):
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def rule_node(ctx, rng, H, T):
    """Inputs of a node and the node; D is 128, gates are mild with some strong ones."""
    D, shapes = 128, ([128, H, T, 1],) * 3 + ([1, H, T, 1],) * 2 + ([128, 128, H, 1],)
    inputs = [new(ctx, 0, *shape) for shape in shapes]
    filled = (unit((T * H, D), rng), unit((T * H, D), rng), rng.standard_normal(T * H * D),
              -0.001 - 0.5 * rng.random(T * H) ** 4, rng.random(T * H),
              0.1 * rng.standard_normal(H * D * D))
    return list(zip(inputs, filled)), rule(ctx, *inputs, 1)


def conv_node(ctx, rng, channels, T):
    inputs = [new(ctx, 0, T + 3, channels, 1, 1), new(ctx, 0, 4, channels, 1, 1)]
    filled = rng.standard_normal((T + 3) * channels), rng.standard_normal(4 * channels)
    return list(zip(inputs, filled)), conv(ctx, *inputs)


class Graph:
    def __init__(self, backend, make, *sizes):
        self.backend, ctx = backend, init(Params(1 << 20, None, True))
        inputs, self.node = make(ctx, np.random.default_rng(0), *sizes)
        self.graph = graph_of(ctx)
        expand(self.graph, self.node)
        allocate(ctx, backend)
        for tensor, filled in inputs:
            values(tensor)[:] = np.asarray(filled).ravel()

    def run(self):
        begin = time.thread_time_ns()
        if compute(self.backend, self.graph) != 0:
            sys.exit("a backend failed")
        return (time.thread_time_ns() - begin) / 1000


def race(op, make, sizes, rounds):
    graphs = Graph(ours, make, *sizes), Graph(theirs, make, *sizes)
    times = np.array([[graph.run() for graph in graphs] for _ in range(rounds)]).min(0)
    a, b = (values(graph.node) for graph in graphs)
    print(json.dumps(dict(
        bench="ggml_backends", op=op, heads_or_channels=sizes[0], tokens=sizes[1],
        gdn_us=round(times[0], 1), ggml_us=round(times[1], 1),
        speedup=round(times[1] / times[0], 2),
        relative_difference=float(f"{np.linalg.norm(a - b) / np.linalg.norm(b):.2g}"))),
        flush=True)


ours = backend(path)
theirs = backend(glob.glob(os.path.join(build, "bin/libggml-cpu.so"))[0])
for tokens, rounds in (1, 400), (64, 20), (512, 6):
    race("GATED_DELTA_NET", rule_node, (32, tokens), rounds)
for tokens, rounds in (1, 400), (512, 10):
    race("SSM_CONV", conv_node, (8192, tokens), rounds)
