// Attention of a packed row, forwards and backwards.
//
// A query sees the prompt of its segment and what is before it in the segment. The keys of a segment are copied once for
// all of its queries, so that products read consecutive numbers; no more than a block of queries has scores in memory.
// Operands are of a precision T, and everything is computed in float32, or with products of pairs in bfloat16.

#include "blocks.h"

namespace {

// Attention of queries, [rows, heads * grouped * width], to keys and values, [inputs, heads * width], and for the backward
// pass the log of each query's sum of exponentials, [rows, heads * grouped].
template <typename T>
void attend_forward(const PackedAttention &a, const T *query, const T *key, const T *value, float *sums, T *out) {
    int64_t stride = a.heads * a.grouped * a.width, key_stride = a.heads * a.width;
    attend_segments(a, [&](const Segment &segment, int64_t head) {
        int64_t columns = round_up(segment.count(), COLUMNS), size = columns * a.width;
        Room room(2 * size + QUERIES * (columns + 2 * a.width));
        float *values = room.take(size), *flipped = room.take(size), *scores = room.take(QUERIES * columns);
        float *own_queries = room.take(QUERIES * a.width), *results = room.take(QUERIES * a.width);
        gather(segment, key + head * a.width, key_stride, a.width, values);
        transpose(values, segment.count(), a.width, columns, flipped);
        gather(segment, value + head * a.width, key_stride, a.width, values);
        for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
            for (int64_t first = segment.skip; first < segment.length; first += QUERIES) {
                Block block = find_block(segment, first, a.window);
                int64_t at = block.row * stride + own * a.width;
                copy_rows(query + at, stride, block.count, a.width, own_queries, a.width);
                multiply_seen(block, segment, Matrix<float>{own_queries, a.width, 1}, a.width, flipped, columns, scores);
                compute_shares(a, segment, block, own, columns, scores, sums);
                for (int64_t row = 0; row < block.count; row += TILE) {
                    int64_t rows = std::min(TILE, block.count - row);
                    Matrix<float> shares = {scores + row * columns + block.begin, columns, 1};
                    multiply<false>(shares, rows, segment.last(first + row + rows - 1) - block.begin,
                                    values + block.begin * a.width, a.width, a.width, results + row * a.width, a.width);
                }
                copy_rows(results, a.width, block.count, a.width, out + at, stride);
            }
    });
}

// The slopes of a segment's queries, keys and values for one head; those of keys and values are added to the outputs.
template <typename T>
void reverse_segment(const PackedAttention &a, const Segment &segment, int64_t head, const T *query, const T *key,
                     const T *value, const float *sums, const T *attended, const T *slopes, float *of_query, float *of_key,
                     float *of_value) {
    int64_t queries = a.heads * a.grouped, stride = queries * a.width, key_stride = a.heads * a.width;
    int64_t columns = round_up(segment.count(), COLUMNS), size = columns * a.width;
    Room room(5 * size + QUERIES * (2 * columns + 2 * a.width));
    float *keys = room.take(size), *flipped = room.take(size), *flipped_values = room.take(size);
    float *key_slopes = room.take(size), *value_slopes = room.take(size);
    float *weights = room.take(QUERIES * columns), *of_scores = room.take(QUERIES * columns);
    float *own_queries = room.take(QUERIES * a.width), *own_slopes = room.take(QUERIES * a.width);
    gather(segment, value + head * a.width, key_stride, a.width, keys);
    transpose(keys, segment.count(), a.width, columns, flipped_values);
    gather(segment, key + head * a.width, key_stride, a.width, keys);
    transpose(keys, segment.count(), a.width, columns, flipped);
    std::memset(key_slopes, 0, 2 * size * sizeof(float));
    for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
        for (int64_t first = segment.skip; first < segment.length; first += QUERIES) {
            Block block = find_block(segment, first, a.window);
            int64_t at = block.row * stride + own * a.width, offset = block.begin * a.width;
            copy_rows(query + at, stride, block.count, a.width, own_queries, a.width);
            copy_rows(slopes + at, stride, block.count, a.width, own_slopes, a.width);
            multiply_seen(block, segment, Matrix<float>{own_queries, a.width, 1}, a.width, flipped, columns, weights);
            multiply_seen(block, segment, Matrix<float>{own_slopes, a.width, 1}, a.width, flipped_values, columns, of_scores);
            reverse_shares(a, segment, block, own, columns, sums, attended, slopes, weights, of_scores);
            int64_t seen = segment.last(first + block.count - 1) - block.begin;
            Matrix<float> each = {of_scores + block.begin, columns, 1}, across = {of_scores + block.begin, 1, columns};
            multiply<false>(each, block.count, seen, keys + offset, a.width, a.width, of_query + at, stride);
            multiply<true>(across, seen, block.count, own_queries, a.width, a.width, key_slopes + offset, a.width);
            multiply<true>(Matrix<float>{weights + block.begin, 1, columns}, seen, block.count, own_slopes, a.width, a.width,
                           value_slopes + offset, a.width);
        }
    add_slopes(a, segment, head, key_slopes, value_slopes, of_key, of_value);
}

// The slopes of queries, keys and values, of those of the attention; those of keys and values are added to the outputs.
template <typename T>
void attend_backward(const PackedAttention &a, const T *query, const T *key, const T *value, const float *sums,
                     const T *attended, const T *slopes, float *of_query, float *of_key, float *of_value) {
    reverse_segments(a, [&](const Segment &segment, int64_t head) {
        reverse_segment(a, segment, head, query, key, value, sums, attended, slopes, of_query, of_key, of_value);
    });
}

}  // namespace

#define EXPORT(T)                                                                                                            \
    void attend_forward_##T(const PackedAttention *attention, const T *query, const T *key, const T *value, float *sums,     \
                            T *out) {                                                                                        \
        if (!attend_pairs(*attention, query, key, value, sums, out)) attend_forward(*attention, query, key, value, sums, out); \
    }                                                                                                                        \
    void attend_backward_##T(const PackedAttention *attention, const T *query, const T *key, const T *value,                 \
                             const float *sums, const T *attended, const T *slopes, float *of_query, float *of_key,          \
                             float *of_value) {                                                                              \
        if (!reverse_pairs(*attention, query, key, value, sums, attended, slopes, of_query, of_key, of_value))               \
            attend_backward(*attention, query, key, value, sums, attended, slopes, of_query, of_key, of_value);              \
    }

extern "C" {
EXPORT(float32)
EXPORT(bfloat16)
}
