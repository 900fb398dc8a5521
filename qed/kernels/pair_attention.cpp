// Attention of a packed row in bfloat16, forwards and backwards, by the processor's products of pairs.
//
// Scores, shares and sums are in float32; shares and slopes of scores are rounded to bfloat16 for their products, as they
// are in torch's attention. A product reads pairs of neighbouring numbers of its left rows, and of its right columns.

#ifdef __AVX512BF16__

#include "blocks.h"

namespace {

// Copies what a head has for the keys of a segment, [count, width].
void gather_pairs(const Segment &segment, const bfloat16 *states, int64_t stride, int64_t width, bfloat16 *to) {
    for (int64_t i = 0; i < segment.count(); i++)
        std::memcpy(to + i * width, states + segment.place(i) * stride, width * sizeof *to);
}

inline Words join_pairs(Words first, Words second) { return first | second << 16; }

inline Words read_words(const bfloat16 *from) {
    return __builtin_convertvector(*reinterpret_cast<const Shorts *>(from), Words);
}

// Pairs of each row and the next one, [rows / 2, width], of numbers, [count, width], with zeros behind the last.
void pair_rows(const bfloat16 *from, int64_t count, int64_t rows, int64_t width, Pair *to) {
    typedef uint32_t Written __attribute__((vector_size(32), aligned(4), may_alias));
    for (int64_t row = 0; row < rows; row += 2)
        for (int64_t i = 0; i < width; i += LANES) {
            Words first = row < count ? read_words(from + row * width + i) : Words{};
            Words second = row + 1 < count ? read_words(from + (row + 1) * width + i) : Words{};
            *reinterpret_cast<Written *>(to + row / 2 * width + i) = join_pairs(first, second);
        }
}

inline __m256i narrow_sixteen(const float *from) { return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from)); }

// Rounds the columns of a block, [count, columns]: pairs of neighbouring columns.
void narrow_columns(const Block &block, const float *from, int64_t columns, Pair *to) {
    for (int64_t row = 0; row < block.count; row++)
        for (int64_t i = block.begin; i < block.end; i += COLUMNS)
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + (row * columns + i) / 2),
                                narrow_sixteen(from + row * columns + i));
}

// Rounds the columns of a block, [count, columns]: pairs of each row and the next one, [count / 2, columns].
void narrow_rows(const Block &block, const float *from, int64_t columns, Pair *to) {
    for (int64_t row = 0; row < block.count; row += 2)
        for (int64_t i = block.begin; i < block.end; i += COLUMNS) {
            __m256i first = narrow_sixteen(from + row * columns + i), second = _mm256_setzero_si256();
            if (row + 1 < block.count) second = narrow_sixteen(from + (row + 1) * columns + i);
            __m512i pairs = _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
            _mm512_storeu_si512(to + row / 2 * columns + i, pairs);
        }
}

void copy_pairs(const bfloat16 *from, int64_t stride, int64_t count, int64_t width, Pair *to) {
    for (int64_t i = 0; i < count; i++) std::memcpy(to + i * width / 2, from + i * stride, width * sizeof *from);
}

// Copies pairs, [count, half], to [half, columns], with zeros behind the last.
void transpose_pairs(const Pair *from, int64_t count, int64_t half, int64_t columns, Pair *to) {
    transpose(reinterpret_cast<const float *>(from), count, half, columns, reinterpret_cast<float *>(to));
}

}  // namespace

bool attend_pairs(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value, float *sums,
                  bfloat16 *out) {
    if (a.width % 16 != 0) return false;
    int64_t stride = a.heads * a.grouped * a.width, key_stride = a.heads * a.width, half = a.width / 2;
    attend_segments(a, [&](const Segment &segment, int64_t head) {
        int64_t count = segment.count(), columns = round_up(count, COLUMNS), size = columns * half;
        Room room(3 * size + QUERIES * (columns + columns / 2 + half + a.width));
        Pair *rows = room.take_pairs(size), *flipped = room.take_pairs(size), *values = room.take_pairs(size);
        Pair *shares = room.take_pairs(QUERIES * columns / 2), *own_queries = room.take_pairs(QUERIES * half);
        float *scores = room.take(QUERIES * columns), *results = room.take(QUERIES * a.width);
        bfloat16 *numbers = reinterpret_cast<bfloat16 *>(rows);
        gather_pairs(segment, key + head * a.width, key_stride, a.width, numbers);
        transpose_pairs(rows, count, half, columns, flipped);
        gather_pairs(segment, value + head * a.width, key_stride, a.width, numbers);
        pair_rows(numbers, count, columns, a.width, values);
        for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
            for (int64_t first = segment.skip; first < segment.length; first += QUERIES) {
                Block block = find_block(segment, first, a.window);
                int64_t at = block.row * stride + own * a.width;
                copy_pairs(query + at, stride, block.count, a.width, own_queries);
                multiply_seen(block, segment, Matrix<Pair>{own_queries, half, 1}, half, flipped, columns, scores);
                compute_shares(a, segment, block, own, columns, scores, sums);
                narrow_columns(block, scores, columns, shares);
                for (int64_t row = 0; row < block.count; row += TILE) {
                    int64_t tile = std::min(TILE, block.count - row);
                    int64_t seen = segment.last(first + row + tile - 1) - block.begin;
                    Matrix<Pair> left = {shares + (row * columns + block.begin) / 2, columns / 2, 1};
                    multiply<false>(left, tile, (seen + 1) / 2, values + block.begin / 2 * a.width, a.width, a.width,
                                    results + row * a.width, a.width);
                }
                copy_rows(results, a.width, block.count, a.width, out + at, stride);
            }
    });
    return true;
}

bool reverse_pairs(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value,
                   const float *sums, const bfloat16 *attended, const bfloat16 *slopes, float *of_query, float *of_key,
                   float *of_value) {
    if (a.width % 16 != 0) return false;
    int64_t stride = a.heads * a.grouped * a.width, key_stride = a.heads * a.width, half = a.width / 2;
    reverse_segments(a, [&](const Segment &segment, int64_t head) {
        int64_t count = segment.count(), columns = round_up(count, COLUMNS), size = columns * half;
        Room room(8 * size + QUERIES * (2 * columns + 3 * columns / 2 + 2 * a.width));
        Pair *rows = room.take_pairs(size), *flipped = room.take_pairs(size), *flipped_values = room.take_pairs(size);
        Pair *keys = room.take_pairs(size);
        float *key_slopes = room.take(2 * size), *value_slopes = room.take(2 * size);
        float *scores = room.take(QUERIES * columns), *of_scores = room.take(QUERIES * columns);
        Pair *across = room.take_pairs(QUERIES * columns / 2), *shares = room.take_pairs(QUERIES * columns / 2);
        Pair *along = room.take_pairs(QUERIES * columns / 2);
        Pair *own_queries = room.take_pairs(QUERIES * half), *own_slopes = room.take_pairs(QUERIES * half);
        Pair *paired_queries = room.take_pairs(QUERIES * half), *paired_slopes = room.take_pairs(QUERIES * half);
        bfloat16 *numbers = reinterpret_cast<bfloat16 *>(rows);
        gather_pairs(segment, value + head * a.width, key_stride, a.width, numbers);
        transpose_pairs(rows, count, half, columns, flipped_values);
        gather_pairs(segment, key + head * a.width, key_stride, a.width, numbers);
        transpose_pairs(rows, count, half, columns, flipped);
        pair_rows(numbers, count, columns, a.width, keys);
        std::memset(key_slopes, 0, 4 * size * sizeof(float));
        for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
            for (int64_t first = segment.skip; first < segment.length; first += QUERIES) {
                Block block = find_block(segment, first, a.window);
                int64_t at = block.row * stride + own * a.width, offset = block.begin * a.width;
                copy_pairs(query + at, stride, block.count, a.width, own_queries);
                copy_pairs(slopes + at, stride, block.count, a.width, own_slopes);
                multiply_seen(block, segment, Matrix<Pair>{own_queries, half, 1}, half, flipped, columns, scores);
                multiply_seen(block, segment, Matrix<Pair>{own_slopes, half, 1}, half, flipped_values, columns, of_scores);
                reverse_shares(a, segment, block, own, columns, sums, attended, slopes, scores, of_scores);
                pair_rows(reinterpret_cast<bfloat16 *>(own_queries), block.count, QUERIES, a.width, paired_queries);
                pair_rows(reinterpret_cast<bfloat16 *>(own_slopes), block.count, QUERIES, a.width, paired_slopes);
                narrow_columns(block, of_scores, columns, along);
                narrow_rows(block, of_scores, columns, across);
                narrow_rows(block, scores, columns, shares);
                int64_t seen = segment.last(first + block.count - 1) - block.begin, pairs = (block.count + 1) / 2;
                multiply<false>(Matrix<Pair>{along + block.begin / 2, columns / 2, 1}, block.count, (seen + 1) / 2,
                                keys + offset / 2, a.width, a.width, of_query + at, stride);
                multiply<true>(Matrix<Pair>{across + block.begin, 1, columns}, seen, pairs, paired_queries, a.width, a.width,
                               key_slopes + offset, a.width);
                multiply<true>(Matrix<Pair>{shares + block.begin, 1, columns}, seen, pairs, paired_slopes, a.width, a.width,
                               value_slopes + offset, a.width);
            }
        add_slopes(a, segment, head, key_slopes, value_slopes, of_key, of_value);
    });
    return true;
}

#endif
