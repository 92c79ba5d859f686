#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small hybrid of bytes as GGUF, by llama.cpp's converter: convert.py LLAMA_CPP MODEL OUT.gguf

MODEL is a folder that `gdn generate` takes, LLAMA_CPP a checkout of llama.cpp. Its converter writes
all tensors; only the vocabulary is made here, because a byte has no tokenizer.json. --random writes
MODEL first: a hybrid of 8 layers with random weights, as wide as Qwen3.5's smallest.
"""
import argparse
import json
import pathlib
import sys

import torch

WIDE = dict(vocab_size=256, hidden_size=1024, intermediate_size=3584, num_hidden_layers=8,
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
            num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16,
            linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128)


def byte_letters():
    """The characters that stand for bytes in a byte-level vocabulary."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in keep else next(others)) for b in range(256)]


def set_vocab(model):
    import gguf

    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(byte_letters())
    writer.add_token_types([gguf.TokenType.NORMAL] * 256)
    writer.add_token_merges(["a b"])  # none is refused
    writer.add_add_bos_token(False)


def convert(source, model, out):
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    import gguf
    from conversion.qwen import Qwen3_5TextModel as Converter

    config = json.loads((model / "config.json").read_text())
    types = gguf.LlamaFileType
    is_f32 = config.get("dtype") == "float32"
    file_type = types.ALL_F32 if is_f32 else types.MOSTLY_BF16
    Converter.set_vocab, Converter.no_mtp = set_vocab, True
    with torch.inference_mode():
        Converter(model, file_type, out, model_name=model.name).write()


def write_random(folder):
    """The weights as transformers draws them, in bfloat16."""
    sys.modules.setdefault("fla", None)  # its kernels need a GPU
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    base = json.loads((pathlib.Path(__file__).parents[3] / "examples/tinylm/model/config.json")
                      .read_text())
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**base, **WIDE}))
    model.to(torch.bfloat16).save_pretrained(folder)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("llama", type=pathlib.Path, metavar="LLAMA_CPP")
    p.add_argument("model", type=pathlib.Path, metavar="MODEL")
    p.add_argument("out", type=pathlib.Path, metavar="OUT")
    p.add_argument("--random", action="store_true", help="write MODEL first")
    args = p.parse_args()
    if args.random:
        write_random(args.model)
    convert(args.llama, args.model, args.out)


if __name__ == "__main__":
    main()
