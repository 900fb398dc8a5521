// Attention of a packed row by products of pairs in bfloat16, as `attend_forward` and `attend_backward`.
//
// The functions return false without computing anything if operands are float32 or their width is not a multiple of 16,
// or if the CPU has no such products.

#pragma once

#include "training.h"
#include "vectors.h"

template <typename T>
inline bool attend_pairs(const PackedAttention &, const T *, const T *, const T *, float *, T *) {
    return false;
}

template <typename T>
inline bool reverse_pairs(const PackedAttention &, const T *, const T *, const T *, const float *, const T *, const T *,
                          float *, float *, float *) {
    return false;
}

#ifdef __AVX512BF16__
bool attend_pairs(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value, float *sums,
                  bfloat16 *out);
bool reverse_pairs(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value,
                   const float *sums, const bfloat16 *attended, const bfloat16 *slopes, float *of_query, float *of_key,
                   float *of_value);
#endif
