#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command with the emulated device: cli_device_test.py GDN FOLDER VECTORS [--filter WORD]

GDN has the images of tests/emulated; FOLDER has the emulated driver. Single cases alone: the
kernels run on this processor.
"""
import json
import os
import sys

import cli_test as cli
from cli_test import OK, check


def device(*args, chip="sm_80", driver=True, log="0"):
    env = {"GDN_EMULATED": chip, "GDN_LOG": log}
    if driver:
        path = os.environ.get("LD_LIBRARY_PATH", "")
        env["LD_LIBRARY_PATH"] = DRIVER + (":" + path if path else "")
    status, out, err = cli.gdn(*args, env=env)
    check(status == OK, args, status, out, err)
    return out, err


def test_check_reaches_kernels():
    """More than four tokens of rows whose states are all kept: kernels that no case reached."""
    for dtype in ("BF16", "F16"):
        case = f"decode {dtype.lower()} state f32 k_last 128x128 heads 2/4 T6* each rows"
        out, _ = device("check", "--backend", "cuda", "--function", case, "--verbose")
        check(f"gdn_decode_window_k128_many_F32_{dtype}_128" in out and "FAILED" not in out, out)


def test_check_reaches_the_family():
    """States of 8 bits and records of gates per channel."""
    for case, kernel in (("kda decode f32 state i8 k_last 256x40 heads 2/4 T1 raw",
                          "gdn_decode_channels_walk_vk_256"),
                         ("gdn2 record bf16 state f32 k_last 60x100",
                          "gdn_decode_record_count")):
        out, _ = device("check", "--backend", "cuda", "--function", case, "--verbose")
        check(kernel in out and "FAILED" not in out, out)


def test_check_names_every_kernel_of_gradients():
    """A call names all that it launched, or gdn check reports kernels that no case has run."""
    for case, kernels in (("conv_backward bf16 W6", "conv_backward_tokens_8 "
                           "conv_backward_states_8 conv_backward_sums_0"),
                          ("gates_backward f32 D7", "gates_backward_rows gates_backward_sums"),
                          ("rmsnorm_backward f32 D7", "rmsnorm_backward_sums"),
                          ("layer kimi_linear bf16 V64 prefill",
                           "prefill_channels_chunks_BF16_64"),
                          ("layer_backward kimi_linear f32 V51", "backward_channels_gates"),
                          ("layer_backward qwen3_5 f32 V64",
                           "conv_backward_tokens_4 layer_add")):
        out, _ = device("check", "--backend", "cuda", "--function", case, "--verbose")
        ran = out.split()
        check(all("gdn_" + k in out for k in kernels.split()) and "FAILED" not in ran, out)


def test_layer_gradients():
    """gdn run on a device: the gradients of a layer, beside their expected values."""
    path = os.path.join(cli.VECTORS, "backward_layer_qwen3_5.safetensors")
    out, _ = device("run", "--backend", "cuda", path)
    check("gdn_layer_add" in out and out.count(" ok\n") == 11 and "FAIL" not in out, out)


def test_info_lists_kernels():
    """gdn info lists the kernels of the build, with a device and without one."""
    for driver in (True, False):
        out, _ = device("info", "--json", driver=driver)
        here = json.loads(out)
        names = here["device_kernels"]
        check(len(names) > 100 and len(set(names)) == len(names), len(names))
        check("gdn_decode_window_k128_many_F32_BF16_128" in names, names)
        check(not set(names) & set(here["kernels"]), here["kernels"])
        text, _ = device("info", driver=driver)
        check(f"{len(names)} kernels in this build's" in text, text)
        check(all(name in text for name in names), text)
        check(("1 devices here: emulated" in text) == driver, text)


def test_newer_chip():
    """What is no Hopper runs the portable code and says so, in the log and in gdn info."""
    words = "portable kernels; untested"
    for chip in ("sm_80", "sm_90", "sm_100"):
        out, _ = device("info", chip=chip)
        check((words in out) == (chip != "sm_90") and f"({chip}" in out, chip, out)
        _, err = device("check", "--backend", "cuda", "--function", "l2norm f32 D7", chip=chip,
                        log="1")
        check((words in err) == (chip != "sm_90") and chip in err, chip, err)


if __name__ == "__main__":
    DRIVER = os.path.abspath(sys.argv.pop(2))
    sys.exit(cli.main(globals()))
