// Attention of a packed row in bfloat16 by AMX tiles, as `attend_pairs` and `reverse_pairs`.
//
// The functions return false without computing anything if there are no tiles or heads do not suit them (`fits_tiles`).

#pragma once

#include "tiles.h"
#include "training.h"

#ifdef HAS_TILES
bool attend_in_tiles(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value, float *sums,
                     bfloat16 *out);
bool reverse_in_tiles(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value,
                      const float *sums, const bfloat16 *attended, const bfloat16 *slopes, float *of_query, float *of_key,
                      float *of_value);
#else
inline bool attend_in_tiles(const PackedAttention &, const bfloat16 *, const bfloat16 *, const bfloat16 *, float *,
                            bfloat16 *) {
    return false;
}

inline bool reverse_in_tiles(const PackedAttention &, const bfloat16 *, const bfloat16 *, const bfloat16 *, const float *,
                             const bfloat16 *, const bfloat16 *, float *, float *, float *) {
    return false;
}
#endif
