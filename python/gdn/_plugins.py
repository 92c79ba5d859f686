# SPDX-License-Identifier: Apache-2.0
"""
Entry points that engines call wherever gdn is installed. Nothing changes unless the user asks for
gdn, and an engine that gdn does not fit gets a warning in the log.
"""

import importlib
import logging
import os


def _register(name):
    try:
        importlib.import_module(f"gdn.{name}").register()
    except ImportError as error:
        logging.getLogger("gdn").warning("gdn.%s is not used: %s", name, error)


def vllm():
    """vllm.general_plugins: gdn.vllm.register() if the environment has GDN_VLLM=1."""
    if os.environ.get("GDN_VLLM", "0") not in ("", "0"):
        _register("vllm")


def sglang():
    """sglang.srt.plugins: gdn.sglang.register(), which offers a choice of a flag."""
    _register("sglang")
