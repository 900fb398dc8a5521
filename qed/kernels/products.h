// Products of small matrices of numbers in float32, or of pairs of numbers in bfloat16.

#pragma once

#include <utility>

#include "matrices.h"

namespace {

template <typename Sum>
inline Sum add_product(Sum sum, float left, Sum right) {
    return sum + left * right;
}

#ifdef __AVX512BF16__
typedef float Sixteen __attribute__((vector_size(64)));
typedef uint32_t SixteenPairs __attribute__((vector_size(64)));

// Interleaves 32 halves: each of the first 16, followed by the one 16 places after it.
inline __m512i interleave(__m512i halves) {
    const SixteenPairs first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return _mm512_permutexvar_epi16((__m512i)(first | (first + 16) << 16), halves);
}

inline Sixteen add_product(Sixteen sum, Pair left, SixteenPairs right) {
    return (Sixteen)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(left), (__m512bh)right);
}

inline Vector add_product(Vector sum, Pair left, Words right) {
    return (Vector)_mm256_dpbf16_ps((__m256)sum, (__m256bh)_mm256_set1_epi32(left), (__m256bh)right);
}
#endif

// The product of `Count` rows of units and one or two vectors of `Size` columns; with `Adds` it is added to `out`.
template <typename Unit, int64_t Size, bool Two, int Count, bool Adds>
void multiply_tile(Matrix<Unit> left, const Unit *right, int64_t right_row, int64_t units, float *out, int64_t out_row) {
    typedef Unit Column __attribute__((vector_size(4 * Size)));
    typedef Unit Read __attribute__((vector_size(4 * Size), aligned(4), may_alias));
    typedef float Sum __attribute__((vector_size(4 * Size)));
    typedef float Stored __attribute__((vector_size(4 * Size), aligned(4), may_alias));
    Sum low[Count], high[Count];
    for (int i = 0; i < Count; i++) low[i] = high[i] = Sum{};
    for (int64_t unit = 0; unit < units; unit++) {
        const Read *from = reinterpret_cast<const Read *>(right + unit * right_row);
        Column first = from[0], second = first;
        if constexpr (Two) second = from[1];
        keep(first);
        keep(second);
        for (int i = 0; i < Count; i++) {
            Unit value = left.units[i * left.row + unit * left.column];
            low[i] = add_product(low[i], value, first);
            if constexpr (Two) high[i] = add_product(high[i], value, second);
        }
    }
    for (int i = 0; i < Count; i++) {
        Stored *to = reinterpret_cast<Stored *>(out + i * out_row);
        to[0] = Adds ? to[0] + low[i] : low[i];
        if constexpr (Two) to[1] = Adds ? to[1] + high[i] : high[i];
    }
}

template <typename Unit>
using Multiply = void(Matrix<Unit>, const Unit *, int64_t, int64_t, float *, int64_t);

template <typename Unit, int64_t Size, bool Two, bool Adds, int... Counts>
Multiply<Unit> *choose(int64_t count, std::integer_sequence<int, Counts...>) {
    static Multiply<Unit> *const each[] = {multiply_tile<Unit, Size, Two, Counts + 1, Adds>...};
    return each[count - 1];
}

// out[rows, width] = left[rows, units] right[units, width], or added to it; the width is a multiple of LANES.
template <bool Adds, typename Unit>
void multiply(Matrix<Unit> left, int64_t rows, int64_t units, const Unit *right, int64_t right_row, int64_t width, float *out,
              int64_t out_row) {
    std::make_integer_sequence<int, TILE> counts;
    for (int64_t first = 0, step; first < width; first += step) {
        step = width - first >= PANEL ? PANEL : width - first >= WIDE ? WIDE : LANES;
        for (int64_t row = 0, count; row < rows; row += count) {
            count = count_tile(rows - row);
            Multiply<Unit> *tile = step == PANEL  ? choose<Unit, WIDE, true, Adds>(count, counts)
                                   : step == WIDE ? choose<Unit, WIDE, false, Adds>(count, counts)
                                                  : choose<Unit, LANES, false, Adds>(count, counts);
            tile(left.skip(row), right + first, right_row, units, out + row * out_row + first, out_row);
        }
    }
}

}  // namespace
