// Attention of a packed row, forward and backward.
//
// A query attends to the prompt of its segment and to the segment up to itself. Keys and values are copied once for all
// queries, so that matrix products read consecutive numbers; only the scores of a block of queries and a slice of keys are
// in memory at a time. Tensors have the precision T. `Operands` defines the units of products, `Unit`, of `SIZE` numbers
// each, and copies numbers into them.

#pragma once

#include "blocks.h"

namespace {

// Attention of queries, [rows, heads * grouped * width], to keys and values, [tokens, heads * width], and for the backward
// pass the log of each query's sum of exponentials, [rows, heads * grouped].
template <typename Operands, typename T>
void attend_forward(const PackedAttention &a, const T *query, const T *key, const T *value, float *sums, T *out) {
    typedef typename Operands::Unit Unit;
    int64_t queries = a.heads * a.grouped, stride = queries * a.width, units = a.width / Operands::SIZE;
    attend_segments(a, [&](const Segment &segment, int64_t head) {
        int64_t slices = divide_up(segment.count(), KEYS), columns = find_slice(segment, 0).stride(), size = columns * units;
        Room room((2 * slices + 1) * size + QUERIES * (columns + units + a.width));
        Unit *flipped = room.take<Unit>(slices * size), *values = room.take<Unit>(slices * size);
        Unit *copied = room.take<Unit>(size), *own_queries = room.take<Unit>(QUERIES * units);
        float *scores = room.take<float>(QUERIES * columns), *results = room.take<float>(QUERIES * a.width);
        for (int64_t number = 0; number < slices; number++) {
            Slice slice = find_slice(segment, number * KEYS);
            gather<Operands>(segment, slice, key + head * a.width, a.heads * a.width, a.width, copied);
            transpose(slice, copied, units, flipped + number * size);
            gather<Operands>(segment, slice, value + head * a.width, a.heads * a.width, a.width, copied);
            Operands::stack(copied, slice.count, a.width, values + number * size);
        }
        for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
            for (int64_t first = segment.skip; first < segment.length; first += QUERIES) {
                int64_t count = std::min(QUERIES, segment.length - first), row = segment.row + first - segment.skip;
                int64_t at = row * stride + own * a.width;
                Softmax<Operands> softmax(count);
                Operands::copy(query + at, stride, count, a.width, own_queries);
                bool begun = false;
                for (int64_t number = 0; number < slices; number++) {
                    Slice slice = find_slice(segment, number * KEYS);
                    Block block = find_block(segment, slice, first, QUERIES, a.window);
                    if (block.is_empty()) continue;
                    multiply_seen(block, segment, slice, Matrix<Unit>{own_queries, units, 1}, units, flipped + number * size,
                                  scores);
                    softmax.add(a, segment, slice, block, scores, results);
                    Matrix<Unit> shares = Operands::view_rows(block, slice, reinterpret_cast<Unit *>(scores));
                    auto multiply_own = begun ? multiply_values<true, Unit> : multiply_values<false, Unit>;
                    multiply_own(block, segment, slice, shares, Operands::SIZE, values + number * size, a.width, results);
                    begun = true;
                }
                softmax.divide(count, results, a.width, out + at, stride, sums + row * queries + own, queries);
            }
    });
}

// The gradients of queries, keys and values, given that of the attention; they are added to the outputs.
template <typename Operands, typename T>
void attend_backward(const PackedAttention &a, const T *query, const T *key, const T *value, const float *sums,
                     const T *attended, const T *slopes, float *of_query, float *of_key, float *of_value) {
    typedef typename Operands::Unit Unit;
    int64_t stride = a.heads * a.grouped * a.width, units = a.width / Operands::SIZE;
    std::vector<float> means = find_means(a, attended, slopes);
    reverse_slices(a, [&](const Segment &segment, const Slice &slice, int64_t head) {
        int64_t columns = slice.stride(), size = columns * units;
        Room room(4 * size + 2 * columns * a.width + QUERIES * (3 * columns + 4 * units));
        Unit *copied = room.take<Unit>(size), *keys = room.take<Unit>(size);
        Unit *flipped = room.take<Unit>(size), *flipped_values = room.take<Unit>(size);
        float *key_slopes = room.take<float>(columns * a.width), *value_slopes = room.take<float>(columns * a.width);
        float *scores = room.take<float>(QUERIES * columns), *of_scores = room.take<float>(QUERIES * columns);
        Unit *shares = reinterpret_cast<Unit *>(scores), *across = reinterpret_cast<Unit *>(of_scores);
        Unit *along = room.take<Unit>(QUERIES * columns);
        Unit *own_queries = room.take<Unit>(QUERIES * units), *own_slopes = room.take<Unit>(QUERIES * units);
        Unit *stacked_queries = room.take<Unit>(QUERIES * units), *stacked_slopes = room.take<Unit>(QUERIES * units);
        gather<Operands>(segment, slice, value + head * a.width, a.heads * a.width, a.width, copied);
        transpose(slice, copied, units, flipped_values);
        gather<Operands>(segment, slice, key + head * a.width, a.heads * a.width, a.width, copied);
        transpose(slice, copied, units, flipped);
        Operands::stack(copied, slice.count, a.width, keys);
        std::fill(key_slopes, key_slopes + 2 * columns * a.width, 0.0f);
        for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
            for (int64_t first = segment.skip; first < segment.length; first += QUERIES) {
                Block block = find_block(segment, slice, first, QUERIES, a.window);
                if (block.is_empty()) continue;
                int64_t at = block.row * stride + own * a.width, offset = block.begin * a.width;
                Operands::copy(query + at, stride, block.count, a.width, own_queries);
                Operands::copy(slopes + at, stride, block.count, a.width, own_slopes);
                multiply_seen(block, segment, slice, Matrix<Unit>{own_queries, units, 1}, units, flipped, scores);
                multiply_seen(block, segment, slice, Matrix<Unit>{own_slopes, units, 1}, units, flipped_values, of_scores);
                reverse_shares<Operands>(a, segment, slice, block, own, sums, means.data(), scores, of_scores, along);
                Operands::stack(own_queries, block.count, a.width, stacked_queries);
                Operands::stack(own_slopes, block.count, a.width, stacked_slopes);
                int64_t seen = find_columns(segment, slice, first + block.count - 1, 0).last - block.begin;
                int64_t down = divide_up(block.count, Operands::SIZE);
                multiply<true>(Operands::view_rows(block, slice, along), block.count, divide_up(seen, Operands::SIZE),
                               keys + block.begin * units, a.width, a.width, of_query + at, stride);
                multiply<true>(view_columns(block, slice, across), seen, down, stacked_queries, a.width, a.width,
                               key_slopes + offset, a.width);
                multiply<true>(view_columns(block, slice, shares), seen, down, stacked_slopes, a.width, a.width,
                               value_slopes + offset, a.width);
            }
        add_slopes(a, segment, slice, head, key_slopes, value_slopes, of_key, of_value);
    });
}

}  // namespace
