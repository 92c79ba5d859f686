# SPDX-License-Identifier: Apache-2.0
#
# The rooms of the source and their floors (docs/design/architecture.md), for includes.sh and
# calls.sh. A room may use itself and rooms of lower floors. ops, cpu and cuda are wings, and none
# uses another. Areas of kernels are the folders of src/cuda but driver and device. The limits of
# the interface are below the loops, and src/internal is what the command may use beside gdn.h.

function room_of(path,    part) {
    split(path, part, "/")
    if (part[1] != "src") return part[1]
    if (part[2] == "cuda" && part[3] == "driver" && path ~ /\.cu$/) return "cuda/image"
    if (part[2] == "cuda" || (part[2] "/" part[3]) in floor) return part[2] "/" part[3]
    return part[2]
}

function floor_of(room) { return room in floor ? floor[room] : 99 }

function wing(room) { return room ~ /^(ops|cpu|cuda\/.*)$/ ? substr(room, 1, 3) : "" }

function is_area(room) { return room ~ /^cuda\// && room !~ /^cuda\/(driver|device|image)$/ }

# Returns why room a may not use room b, or "".
function wall(a, b) {
    if (a == b) return ""
    if (wing(a) && wing(b) && wing(a) != wing(b)) return "is of another wing"
    return floor_of(b) >= floor_of(a) ? "is not below " a : ""
}

BEGIN {
    count = split("include 0 core/limits.h 1 cpu/loops 2 core 3 batch 4 state 5 calls 6 ops 7 " \
        "cpu 7 cuda/driver 7 cuda/device 8 cuda/image 9 cuda/conv 9 cuda/decode 9 " \
        "cuda/rowwise 9 cuda/state 9 cuda/prefill 10 cuda/backward 11 cuda/split 11 cuda/layer 12 " \
        "examples 13 internal 13 cli 14 tests 15", word, " ")
    for (i = 1; i < count; i += 2) floor[word[i]] = word[i + 1]
}
