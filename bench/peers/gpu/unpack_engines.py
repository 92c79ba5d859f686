#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's and SGLang's functions without the engines: unpack_engines.py FOLDER WHEEL...

Unpacks from their wheels the files that engines.py, channels.py and race_conv.py import, and writes
what those import in turn: packages with nothing in them, and the few names below. A FOLDER of 6 MB,
for PYTHONPATH; 5.4 MB of it are FlashKDA, compiled. The wheels, of 336 and 39 MB:

    pip download --no-deps vllm==0.33.0 sglang==0.5.23
"""
import argparse
import pathlib
import zipfile

VLLM = "vllm/model_executor/layers/mamba/ops"
VLLM_RULE = "vllm/third_party/flash_linear_attention/ops"
VLLM_KDA = "vllm/models/kimi_k3/nvidia/ops/third_party/kda"
SGLANG, SGLANG_RULE = "sglang/kernels/ops", "sglang/kernels/ops/attention/fla"
CHUNKS = ("chunk", "chunk_delta_h", "chunk_o", "cumsum", "fused_recurrent", "index", "l2norm", "op",
          "utils", "wy_fast")
FILES = {
    "vllm": [f"{VLLM}/causal_conv1d.py", *(f"{VLLM_RULE}/{name}.py" for name in (
        *CHUNKS, "chunk_scaled_dot_kkt", "solve_tril", "fused_sigmoid_gating")),
             *(f"{VLLM_KDA}/{name}.py" for name in (
                 "chunk", "chunk_intra", "chunk_intra_token_parallel", "fused_recurrent")),
             "vllm/utils/math_utils.py", "vllm/_flashkda_C.abi3.so"],
    "sglang": [f"{SGLANG}/mamba/causal_conv1d_triton.py",
               f"{SGLANG}/attention/linear/fused_sigmoid_gating_recurrent.py",
               *(f"{SGLANG_RULE}/{name}.py" for name in (*CHUNKS, "chunk_fwd"))],
}
CAPABILITY = '''import torch


def capability():
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


'''
STANDING_IN = {
    "vllm/platforms/__init__.py": CAPABILITY + '''class current_platform:
    is_rocm = is_xpu = is_cpu = staticmethod(lambda: False)
    is_cuda = is_cuda_alike = staticmethod(torch.cuda.is_available)
    is_arch_support_pdl = staticmethod(lambda: capability()[0] >= 9)

    @staticmethod
    def has_device_capability(least, device_id=0):
        return 10 * capability()[0] + capability()[1] >= least

    @staticmethod
    def is_device_capability_family(family, device_id=0):
        return capability()[0] == family // 10
''',
    "vllm/triton_utils/__init__.py": '''import triton
import triton.language as tl
import triton.language.extra.libdevice as tldevice
''',
    "vllm/utils/gpu_sync_debug.py": "from contextlib import nullcontext as gpu_sync_allowed\n",
    "vllm/utils/torch_utils.py": '''def async_tensor_h2d(x, device, dtype):
    return x.to(device=device, dtype=dtype)
''',
    "vllm/v1/attention/backends/utils.py": "NULL_BLOCK_ID, PAD_SLOT_ID = 0, -1\n",
    "sglang/kernels/jit/utils.py": CAPABILITY + '''def is_arch_support_pdl():
    return capability()[0] >= 9
''',
    "sglang/srt/utils/__init__.py": CAPABILITY + '''def get_device_sm():
    return 10 * capability()[0] + capability()[1]


def is_cuda():
    return torch.cuda.is_available()


def is_sm90_supported():
    return capability()[0] == 9


def is_hip():
    return False


is_gfx95_supported = is_cpu = is_npu = is_xpu = is_hip
''',
    "sglang/srt/utils/common.py": '''import torch
from packaging import version

torch_release = version.parse(torch.__version__).release
''',
}


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    p.add_argument("wheels", type=pathlib.Path, nargs="+", metavar="WHEEL")
    args = p.parse_args()
    for wheel in args.wheels:
        engine, version = wheel.name.split("-")[:2]
        if engine not in FILES:
            p.error(f"{wheel.name}: wanted a wheel of {' or '.join(FILES)}")
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES[engine]:
                write(args.folder / name, archive.read(name))
        for name, text in STANDING_IN.items():
            if name.startswith(engine):
                write(args.folder / name, text.encode())
        for folder in {f for file in (args.folder / engine).rglob("*.py") for f in file.parents
                       if args.folder in f.parents}:
            if not (folder / "__init__.py").exists():
                write(folder / "__init__.py", b"")
        write(args.folder / engine / "__init__.py", f'__version__ = "{version}"\n'.encode())


if __name__ == "__main__":
    main()
