// The structure that the functions of an update share; `qed/kernels/structures.py` has the same fields.

#pragma once

#include <cstdint>

// Attention of a layer over a packed row.
struct PackedAttention {
    const int64_t *segments;  // [count, 6], see `qed.models.suffixes.Suffixes`
    int64_t count, heads, grouped, width, window, threads;  // `heads` of keys, each for `grouped` queries; window 0: none
    float scaling;
};
