// Attention of a packed row in bfloat16 by the CPU's dot products of pairs.
//
// Scores, attention weights ("shares") and sums are in float32; weights and gradients of scores are rounded to bfloat16
// for their products, as in torch's attention. A product reads pairs of neighbouring numbers of its left rows, and of its
// right columns.

#ifdef __AVX512BF16__

#include "pair_attention.h"

#include "packed_attention.h"
#include "tile_attention.h"

namespace {

inline Words join(Words first, Words second) { return first | second << 16; }

inline Words read_words(const bfloat16 *from) {
    return __builtin_convertvector(*reinterpret_cast<const Shorts *>(from), Words);
}

// Operands of products of pairs.
struct Pairs {
    typedef Pair Unit;
    static constexpr int64_t SIZE = 2;

    static void copy(const bfloat16 *from, int64_t stride, int64_t count, int64_t width, Pair *to) {
        for (int64_t i = 0; i < count; i++) std::memcpy(to + i * width / 2, from + i * stride, width * sizeof *from);
    }

    // Pairs of each of `count` rows and the next one, with zeros after the last.
    static void stack(const Pair *pairs, int64_t count, int64_t width, Pair *to) {
        typedef uint32_t Written __attribute__((vector_size(32), aligned(4), may_alias));
        const bfloat16 *from = reinterpret_cast<const bfloat16 *>(pairs);
        for (int64_t row = 0; row < count; row += 2)
            for (int64_t i = 0; i < width; i += LANES) {
                Words first = read_words(from + row * width + i), second = {};
                if (row + 1 < count) second = read_words(from + (row + 1) * width + i);
                *reinterpret_cast<Written *>(to + row / 2 * width + i) = join(first, second);
            }
    }

    // Writes rounded pairs of neighbouring columns.
    static void write_row(Wide numbers, int64_t row, int64_t column, const Slice &slice, Pair *to) {
        __m256i rounded = (__m256i)_mm512_cvtneps_pbh((__m512)numbers);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + (row * slice.stride() + column) / 2), rounded);
    }

    static void write_rows(const Wide *numbers, int64_t row, int64_t column, const Slice &slice, Pair *to) {
        write_row(numbers[0], row, column, slice, to);
        write_row(numbers[1], row + 1, column, slice, to);
    }

    // Writes rounded pairs of a row and the next one.
    static void write_columns(const Wide *numbers, int64_t row, int64_t column, const Slice &slice, Pair *to) {
        __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh((__m512)numbers[1], (__m512)numbers[0]);
        _mm512_storeu_si512(to + row / 2 * slice.stride() + column, interleave(rounded));
    }

    static Matrix<Pair> view_rows(const Block &block, const Slice &slice, const Pair *from) {
        return {from + block.begin / 2, slice.stride() / 2, 1};
    }
};

inline bool are_pairs(const PackedAttention &a) { return a.width % 16 == 0; }

}  // namespace

bool attend_pairs(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value, float *sums,
                  bfloat16 *out) {
    if (attend_in_tiles(a, query, key, value, sums, out)) return true;
    if (!are_pairs(a)) return false;
    attend_forward<Pairs>(a, query, key, value, sums, out);
    return true;
}

bool reverse_pairs(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value,
                   const float *sums, const bfloat16 *attended, const bfloat16 *slopes, float *of_query, float *of_key,
                   float *of_value) {
    if (reverse_in_tiles(a, query, key, value, sums, attended, slopes, of_query, of_key, of_value)) return true;
    if (!are_pairs(a)) return false;
    attend_backward<Pairs>(a, query, key, value, sums, attended, slopes, of_query, of_key, of_value);
    return true;
}

#endif
