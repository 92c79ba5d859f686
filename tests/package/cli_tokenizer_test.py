#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tokenizers of `gdn generate`, from outside: cli_tokenizer_test.py GDN [--filter WORD]

Python, and the package tokenizers where it is installed, judge.
"""
import json
import random
import re
import subprocess
import sys
import time
import unicodedata

import cli_test as cli
import qwen35
from cli_generate_test import folder, generate, model
from cli_test import BAD, OK, Skip, check, refused, write

# ---- Tokenizer ----------------------------------------------------------------------------

QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
          r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = QWEN35.replace(r"[\p{L}\p{M}]+", r"\p{L}+").replace(r"\p{M}", "")
# Texts in pieces, by the first expression and, where it differs, by the second.
PIECES = [
    ["The", " delta", " rule", "'s", " keys", ",", "  ", " don", "'T", " ", " ", "1", "2", "."],
    ["a", " \n\n", "  ", " b", "\t", "\t", "c", "?!\r\n", "\r\n", "x", "  "],
    ["na\u00efve", " \u65e5\u672c", "\u3002", "\u00bd", " \u20ac", "5", "\u00a0x", "\u2003",
     " y"],
    [["e\u0301t\u00e9", "-\u0301a"], ["e", "\u0301t\u00e9", "-\u0301", "a"]],
    ["<|go|>", "it", "<|go|>", "<|", "go"],
]
MERGES = ["T h", "Th e", "\u0120 d", "e l", "\u0120d el", "t a", "\u0120del ta", "l e", "r u",
          "\u0120 \u0120", "\u010a \u010a", "\u00c3 \u00af", "d o", "\u0120 k"]


def letters():
    """The character that stands for each byte."""
    shown = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    rest = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
         "use_regex": False}


def pre_tokenizer(pattern=QWEN35, split=(), letters=()):
    """Changed options of the two parts: split, letters."""
    first = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False}
    return {"type": "Sequence", "pretokenizers": [dict(first, **dict(split)),
                                                  dict(BYTES, **dict(letters))]}


def added(number, content, **changes):
    return dict({"id": number, "content": content, "single_word": False, "lstrip": False,
                 "rstrip": False, "normalized": False, "special": True}, **changes)


def tokenizer(pattern=QWEN35, **changes):
    words = sorted(letters().values()) + [m.replace(" ", "") for m in MERGES]
    model = {"type": "BPE", "vocab": {w: i for i, w in enumerate(words)}, "merges": MERGES}
    whole = {"version": "1.0", "truncation": None, "padding": None, "post_processor": None,
             "decoder": BYTES, "normalizer": {"type": "NFC"}, "model": model,
             "pre_tokenizer": pre_tokenizer(pattern),
             "added_tokens": [added(len(words), "<|go|>")]}
    return {**whole, **changes}


def merged(piece, vocab):
    """Tokens of one piece: of all pairs the first in MERGES, until there is none."""
    if piece == "<|go|>":
        return [len(vocab)]
    parts, of = [letters()[b] for b in piece.encode()], {m: i for i, m in enumerate(MERGES)}
    while True:
        pairs = [(of.get(f"{a} {b}", len(of)), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        rank, i = min(pairs, default=(len(of), 0))
        if rank == len(of):
            return [vocab[p] for p in parts]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def with_tokenizer(text, name="bpe", vocab=300):
    """A folder with a model of so many tokens and this tokenizer.json."""
    config = dict(qwen35.CONFIG, vocab_size=vocab)
    tensors, _ = qwen35.random_weights(config, 8)
    where = folder(config, {"model.safetensors": tensors}, name=name)
    write(name + "/tokenizer.json", text if isinstance(text, bytes) else json.dumps(text).encode())
    return where


def test_bpe():
    """Tokens of a prompt, and their bytes back."""
    for pattern in (QWEN35, QWEN2):
        where = with_tokenizer(tokenizer(pattern, normalizer=None))
        words = tokenizer()["model"]["vocab"]
        back = {i: bytes({c: b for b, c in letters().items()}[c] for c in w)
                for w, i in words.items()}
        back[len(words)] = b"<|go|>"
        for pieces in PIECES:
            if isinstance(pieces[0], list):
                pieces = pieces[pattern == QWEN2]
            prompt = "".join(pieces)
            text, tokens, _ = generate(where, "-n", "4", prompt=prompt)
            want = sum((merged(piece, words) for piece in pieces), [])
            check(tokens[:-4] == want, repr(prompt), tokens[:-4], "wanted", want)
            added = b"".join(back.get(t, b"") for t in tokens[-4:])
            check(text == prompt.encode() + added, text, added)


def test_bpe_tokenizers():
    """Random Unicode, beside Hugging Face's own."""
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        raise Skip(str(missing))
    rng = random.Random(11)
    some = list("aZ's  \n\r\t09.,!-") + ["'LL", " \n ", "<|go|>", "<|", "The delta"]
    known = [chr(c) for c in range(0x80, 0x3000) if unicodedata.category(chr(c)) != "Cn"]
    some += rng.sample(known, 60) + ["\U0001f600", "\u0301"]
    for pattern in (QWEN35, QWEN2):
        theirs = tokenizer(pattern)
        where, judge_of = with_tokenizer(theirs), Tokenizer.from_str(json.dumps(theirs))
        for _ in range(20):
            prompt = unicodedata.normalize("NFC", "".join(rng.choices(some, k=40)))
            _, tokens, _ = generate(where, "-n", "0", prompt=prompt)
            want = judge_of.encode(prompt).ids
            check(tokens == want, repr(prompt), tokens, "wanted", want)


def judged(prompts, **changes):
    """The tokens of the tokenizers package."""
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        raise Skip(str(missing))
    text = tokenizer(**changes)
    where, theirs = with_tokenizer(text, name="judged"), Tokenizer.from_str(json.dumps(text))
    for prompt in prompts:
        _, tokens, _ = generate(where, "-n", "0", prompt=prompt)
        check(tokens == theirs.encode(prompt).ids, changes, repr(prompt), tokens,
              theirs.encode(prompt).ids)


def test_bpe_options():
    """Options that are computed, beside Hugging Face's own."""
    prompts = ("The delta", " delta", "Thel  ", "xxab bcb", "abc <|go|>", "Theta")
    model, n = tokenizer()["model"], len(tokenizer()["model"]["vocab"])
    sequence = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    template = {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
                "single": [{"Sequence": {"id": "A", "type_id": 0}}]}
    for changes in (
        {"model": dict(model, ignore_merges=True, merges=MERGES[:3])},
        {"model": dict(model, merges=[*MERGES, MERGES[0], MERGES[3]])},
        {"model": dict(model, dropout=None, continuing_subword_prefix="", end_of_word_suffix="",
                       unk_token=None, fuse_unk=False, byte_fallback=False)},
        {"added_tokens": [added(n, "ab", normalized=True), added(n + 1, "bc"), added(n + 2, "cb")]},
        {"added_tokens": [added(n, "<|go|>"), added(n + 1, "bc", normalized=True),
                          added(n + 2, "abcd", normalized=True)]},
        {"added_tokens": [added(model["vocab"]["The"], "The"), added(n, "xx")]},
        {"normalizer": None}, {"normalizer": sequence}, {"post_processor": BYTES},
        {"post_processor": template}, {"truncation": {"direction": "Right", "max_length": 100,
                                                      "strategy": "LongestFirst", "stride": 0}},
    ):
        judged(prompts, **changes)


def test_normal_form_of_python():
    """A prompt in any form has the tokens of its NFC."""
    rng, where = random.Random(14), with_tokenizer(tokenizer())
    some = [chr(c) for c in range(0x250) if c > 31] + ["\u0301", "\u0323", "\u0308", "\u1100",
                                                     "\u1161", "\u11a8", "\u212b", "\u0958"]
    for _ in range(6):
        prompt = "".join(rng.choices(some, k=80) + rng.choices(some[-8:], k=20))
        want = generate(where, "-n", "0", prompt=unicodedata.normalize("NFC", prompt))[1]
        for form in ("NFC", "NFD"):
            again = generate(where, "-n", "0", prompt=unicodedata.normalize(form, prompt))[1]
            check(again == want, form, repr(prompt))
        check(generate(where, "-n", "0", prompt=prompt)[1] == want, repr(prompt))


def test_normal_form():
    """A prompt in any form, beside Hugging Face's own."""
    rng = random.Random(12)
    old = unicodedata.ucd_3_2_0  # characters that every version knows
    marks = [chr(c) for c in range(0x300, 0x3100) if old.combining(chr(c))]
    apart = [chr(c) for c in range(0x30000) if old.decomposition(chr(c))[:1].isalnum()]
    hangul = [chr(c) for c in (0x1100, 0x1112, 0x1161, 0x1175, 0x11a7, 0x11a8, 0x11c2, 0xac00,
                               0xac01, 0xd7a3)]
    known = "aeoAE " + "\u0301\u0323\u0308\u0304\u0345\u03b1\u1fb3"
    prompts = ["<|go|>e\u0301<|go|>", "\u212b\u0958\U0001d15e", "q\u0307\u0323"]
    for _ in range(25):
        some = rng.sample(marks, 8) + rng.sample(apart, 12) + hangul + list(known)
        prompts.append("".join(rng.choices(some, k=60)))
    go, e = tokenizer()["added_tokens"], added(len(tokenizer()["model"]["vocab"]) + 1, "\u00e9x",
                                               normalized=True)
    judged(prompts + ["e\u0301x \u00e9x"], added_tokens=[*go, e])
    judged(prompts[:3], added_tokens=[*go, dict(e, normalized=False)])


def test_long_words():
    """Pieces of many tokens, beside Hugging Face's own; they take no square of the time."""
    rng, start = random.Random(13), time.monotonic()
    letters_of = tokenizer()["model"]
    merges = ["a a", "aa aa", "a b", "ab a", "aa b", "b b", "b a", "ab ab", "ba b"]
    merges += [f"{'a' * 2**i} {'a' * 2**i}" for i in range(2, 11)]
    words = sorted({*letters_of["vocab"], *(m.replace(" ", "") for m in merges)})
    changed = dict(letters_of, merges=merges, vocab={w: i for i, w in enumerate(words)})
    prompts = ["a" * 100000, "".join(rng.choices("ab", k=500)), "".join(rng.choices("aab", k=7))]
    judged(prompts, model=changed, added_tokens=[])
    check(time.monotonic() - start < 30, time.monotonic() - start, "seconds")


def test_bpe_options_refused():
    """Options that change the text, and are not computed."""
    model, n = tokenizer()["model"], len(tokenizer()["model"]["vocab"])
    digits = {"type": "Digits", "individual_digits": True}
    two = pre_tokenizer()
    two["pretokenizers"].insert(0, two["pretokenizers"][0])
    alone = pre_tokenizer()["pretokenizers"][0]
    three = pre_tokenizer()
    three["pretokenizers"].append(digits)
    template = {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
                "single": [{"SpecialToken": {"id": "<|go|>", "type_id": 0}},
                           {"Sequence": {"id": "A", "type_id": 0}}]}
    no_regex = dict(BYTES)
    del no_regex["use_regex"]
    for changes, *names in (
        ({"pre_tokenizer": pre_tokenizer(letters={"add_prefix_space": True})}, "add_prefix_space"),
        ({"pre_tokenizer": pre_tokenizer(letters={"use_regex": True})}, "use_regex"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [alone, no_regex]}}, "use_regex"),
        ({"pre_tokenizer": pre_tokenizer(split={"behavior": "Removed"})}, "behavior", "Removed"),
        ({"pre_tokenizer": pre_tokenizer(split={"invert": True})}, "invert"),
        ({"pre_tokenizer": pre_tokenizer(split={"pattern": {"String": " "}})}, "pre_tokenizer"),
        ({"pre_tokenizer": two}, "pre_tokenizer"), ({"pre_tokenizer": three}, "pre_tokenizer"),
        ({"pre_tokenizer": alone}, "pre_tokenizer"), ({"pre_tokenizer": None}, "pre_tokenizer"),
        ({"pre_tokenizer": BYTES}, "pre_tokenizer"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}},
         "normalizer", "Strip"),
        ({"normalizer": {"type": "NFKC"}}, "normalizer", "NFKC"),
        ({"post_processor": template}, "post_processor"),
        ({"post_processor": {"type": "Sequence", "processors": [BYTES, template]}},
         "post_processor"),
        ({"decoder": {"type": "Metaspace"}}, "decoder", "Metaspace"),
        ({"padding": {"strategy": {"Fixed": 64}, "direction": "Right"}}, "padding", "strategy"),
        ({"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
                         "stride": 0}}, "truncation", "max_length"),
        ({"model": dict(model, dropout=0.1)}, "dropout"),
        ({"model": dict(model, end_of_word_suffix="</w>")}, "end_of_word_suffix"),
        ({"model": dict(model, continuing_subword_prefix="##")}, "continuing_subword_prefix"),
        ({"model": dict(model, new_option=3)}, "new_option"), ({"other": 1}, "other"),
        ({"added_tokens": [added(n, "<|go|>", lstrip=True)]}, "lstrip", "<|go|>"),
        ({"added_tokens": [added(n, "<|go|>", rstrip=True)]}, "rstrip", "<|go|>"),
        ({"added_tokens": [added(n, "<|go|>", single_word=True)]}, "single_word", "<|go|>"),
        ({"added_tokens": [added(n + 1, "<|go|>")]}, "<|go|>", "id"),
        ({"added_tokens": [added(n, "The")]}, "'The'", "id"),
    ):
        where = with_tokenizer(tokenizer(**changes))
        refused("generate", where, "-p", "abc", names=["tokenizer.json", *names])


def test_files_beside_the_tokenizer():
    """tokenizer_config.json changes nothing, and no other form of a tokenizer is passed over."""
    n = len(tokenizer()["model"]["vocab"])
    where = with_tokenizer(tokenizer())
    good = {"add_bos_token": False, "add_prefix_space": False, "chat_template": "x",
            "added_tokens_decoder": {str(n): dict(added(n, "<|go|>"))}}
    del good["added_tokens_decoder"][str(n)]["id"]
    write("bpe/tokenizer_config.json", json.dumps(good).encode())
    generate(where, "-n", "1", prompt="abc")
    lstrip = {str(n): added(n, "<|go|>", lstrip=True)}
    for change, name in (({"add_bos_token": True}, "add_bos_token"),
                         ({"add_eos_token": True}, "add_eos_token"),
                         ({"add_prefix_space": True}, "add_prefix_space"),
                         ({"split_special_tokens": True}, "split_special_tokens"),
                         ({"added_tokens_decoder": lstrip}, "lstrip"),
                         ({"added_tokens_decoder": {str(n + 1): added(n, "x")}}, "'x'")):
        write("bpe/tokenizer_config.json", json.dumps(dict(good, **change)).encode())
        refused("generate", where, "-p", "abc", names=["tokenizer_config.json", name])
    config = dict(qwen35.CONFIG)
    bytewise = folder(config, {"model.safetensors": qwen35.random_weights(config, 1)[0]})
    write("folder/vocab.json", b"{}")
    refused("generate", bytewise, "-p", "a", names=["vocab.json"])


def test_bpe_refused():
    def bad(text, *names, vocab=300):
        refused("generate", with_tokenizer(text, vocab=vocab), "-p", "abc", names=names)

    good = tokenizer()
    model = good["model"]
    bad(b"{", "tokenizer.json", "not JSON")
    bad({}, "model.type")
    bad(tokenizer(r"\s+"), "pre_tokenizer")
    bad(tokenizer(normalizer={"type": "Lowercase"}), "Lowercase")
    bad(tokenizer(model=dict(model, type="Unigram")), "Unigram")
    bad(tokenizer(model=dict(model, vocab=[])), "vocab")
    bad(tokenizer(model=dict(model, merges={})), "merges")
    bad(tokenizer(model=dict(model, merges=["a b"])), "merge 0")
    bad(tokenizer(model=dict(model, merges=["ab"])), "merge 0")
    bad(tokenizer(model=dict(model, vocab=dict(model["vocab"], a="b"))), "'a'")
    bad(tokenizer(model=dict(model, vocab=dict(model["vocab"], a=-1))), "'a'")
    bad(tokenizer(model=dict(model, vocab=dict(model["vocab"], a=0))), "'a'", "number, 0")
    bad(tokenizer(model=dict(model, vocab=dict(model["vocab"], a=1.5))), "'a'")
    bad(good, "from 0 to 255", vocab=256)
    few = {w: i for w, i in model["vocab"].items() if w != "c"}
    go = added(len(model["vocab"]) - 1, "<|go|>")
    bad(tokenizer(model=dict(model, vocab=few), added_tokens=[]), "byte 99")
    for number in (1e300, -1e300, 2.0**31, -2.0**63):
        bad(tokenizer(model=dict(model, vocab=dict(model["vocab"], a=number))), "'a'")
        bad(tokenizer(added_tokens=[dict(go, id=number)]), "<|go|>")
    bad(tokenizer(added_tokens=[{"id": 3}]), "added_tokens")
    bad(tokenizer(added_tokens=[added(300, "<|x|>")]), "'<|x|>'")
    text, rng = json.dumps(good).encode(), random.Random(4)
    where = with_tokenizer(good)
    for i in range(60):
        at = rng.randrange(len(text))
        changed = text[:at] + rng.randbytes(1) + text[at + 1 :] if i % 6 else text[:at]
        write("bpe/tokenizer.json", changed)
        p = subprocess.run([cli.GDN, "generate", where, "-p", "The end", "-n", "1"],
                           capture_output=True, timeout=300)
        check(p.returncode == OK or (p.returncode == BAD and p.stderr.count(b"\n") == 1), p)


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
