// Attention of a packed row, forwards and backwards.
//
// A query sees the prompt of its segment and what is before it in the segment. The keys of a segment are copied once for
// all of its queries, so that products read consecutive numbers; no more than a block of queries has scores in memory.
// Operands are of a precision T, and everything is computed in float32.

#include <map>
#include <utility>
#include <vector>

#include "training.h"
#include "vectors.h"

namespace {

#ifdef __AVX512F__
constexpr int64_t WIDE = 16;  // numbers of a vector of products
constexpr int64_t TILE = 12;  // rows that are computed together: their sums, two vectors each, fit into the registers
#else
constexpr int64_t WIDE = LANES;
constexpr int64_t TILE = 6;
#endif
constexpr int64_t PANEL = 2 * WIDE;  // columns that are computed together
constexpr int64_t COLUMNS = 16;      // of keys come in multiples of so many
constexpr int64_t QUERIES = 48;      // of a block

inline int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// A matrix whose rows and columns are any distance apart.
struct Matrix {
    const float *numbers;
    int64_t row, column;

    Matrix skip(int64_t rows) const { return {numbers + rows * row, row, column}; }
};

// Product of `Count` rows and one or two vectors of `Size` columns; with `Adds` it is added to `out`.
template <int64_t Size, bool Two, int Count, bool Adds>
void multiply_tile(Matrix left, const float *right, int64_t right_row, int64_t inputs, float *out, int64_t out_row) {
    typedef float Sum __attribute__((vector_size(4 * Size)));
    typedef float Stored __attribute__((vector_size(4 * Size), aligned(4), may_alias));
    Sum low[Count], high[Count];
    for (int i = 0; i < Count; i++) low[i] = high[i] = Sum{};
    for (int64_t input = 0; input < inputs; input++) {
        const Stored *from = reinterpret_cast<const Stored *>(right + input * right_row);
        Sum first = from[0], second = first;
        if constexpr (Two) second = from[1];
        for (int i = 0; i < Count; i++) {
            float value = left.numbers[i * left.row + input * left.column];
            low[i] += value * first;
            if constexpr (Two) high[i] += value * second;
        }
    }
    for (int i = 0; i < Count; i++) {
        Stored *to = reinterpret_cast<Stored *>(out + i * out_row);
        to[0] = Adds ? to[0] + low[i] : low[i];
        if constexpr (Two) to[1] = Adds ? to[1] + high[i] : high[i];
    }
}

typedef void Multiply(Matrix, const float *, int64_t, int64_t, float *, int64_t);

template <int64_t Size, bool Two, bool Adds, int... Counts>
Multiply *choose(int64_t count, std::integer_sequence<int, Counts...>) {
    static Multiply *const each[] = {multiply_tile<Size, Two, Counts + 1, Adds>...};
    return each[count - 1];
}

// out[rows, width] = left[rows, inputs] right[inputs, width], or added to it; the width is a multiple of LANES.
template <bool Adds>
void multiply(Matrix left, int64_t rows, int64_t inputs, const float *right, int64_t right_row, int64_t width, float *out,
              int64_t out_row) {
    std::make_integer_sequence<int, TILE> counts;
    for (int64_t first = 0, step; first < width; first += step) {
        step = width - first >= PANEL ? PANEL : width - first >= WIDE ? WIDE : LANES;
        for (int64_t row = 0; row < rows; row += TILE) {
            int64_t count = std::min(TILE, rows - row);
            Multiply *tile = step == PANEL  ? choose<WIDE, true, Adds>(count, counts)
                             : step == WIDE ? choose<WIDE, false, Adds>(count, counts)
                                            : choose<LANES, false, Adds>(count, counts);
            tile(left.skip(row), right + first, right_row, inputs, out + row * out_row + first, out_row);
        }
    }
}

// A segment, and the keys that its queries see: the prompt's before its own.
struct Segment {
    int64_t start, length, prompt, prompt_length, skip, row;

    int64_t count() const { return prompt_length + length; }
    int64_t place(int64_t key) const { return key < prompt_length ? prompt + key : start + key - prompt_length; }
    int64_t last(int64_t query) const { return prompt_length + query + 1; }  // behind the last key of a query
    int64_t first(int64_t query, int64_t window) const { return window ? std::max<int64_t>(0, last(query) - window) : 0; }
};

Segment read_segment(const PackedAttention &a, int64_t number) {
    Segment segment;
    std::memcpy(&segment, a.segments + 6 * number, sizeof segment);
    return segment;
}

// The numbers of the segments that add to the same slopes: those of a prompt.
std::vector<std::vector<int64_t>> group_by_prompt(const PackedAttention &a) {
    std::map<int64_t, std::vector<int64_t>> groups;
    for (int64_t number = 0; number < a.count; number++) {
        Segment segment = read_segment(a, number);
        groups[segment.prompt_length ? segment.prompt : segment.start].push_back(number);
    }
    std::vector<std::vector<int64_t>> found;
    for (auto &group : groups) found.push_back(std::move(group.second));
    return found;
}

// Consecutive queries of a segment: the first one, how many, their first row, and the columns of keys that they see, whole
// vectors.
struct Block {
    int64_t query, count, row, begin, end;
};

Block find_block(const Segment &segment, int64_t query, int64_t window) {
    int64_t count = std::min(QUERIES, segment.length - query);
    return {query, count, segment.row + query - segment.skip, segment.first(query, window) / COLUMNS * COLUMNS,
            round_up(segment.last(query + count - 1), COLUMNS)};
}

template <typename T, typename To>
inline void copy(const T *from, int64_t width, To *to) {
    for (int64_t i = 0; i < width; i += LANES) store(load(from + i), to + i);
}

template <typename T, typename To>
void copy_rows(const T *from, int64_t stride, int64_t count, int64_t width, To *to, int64_t to_stride) {
    for (int64_t i = 0; i < count; i++) copy(from + i * stride, width, to + i * to_stride);
}

// Copies what a head has for the keys of a segment, [count, width].
template <typename T>
void gather(const Segment &segment, const T *states, int64_t stride, int64_t width, float *to) {
    copy_rows(states + segment.prompt * stride, stride, segment.prompt_length, width, to, width);
    copy_rows(states + segment.start * stride, stride, segment.length, width, to + segment.prompt_length * width, width);
}

inline void transpose_block(Vector *rows) {
    Vector pairs[LANES], quads[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = SHUFFLE(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = SHUFFLE(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            quads[i + 2 * j] = SHUFFLE(pairs[i + j], pairs[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            quads[i + 2 * j + 1] = SHUFFLE(pairs[i + j], pairs[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        rows[i] = SHUFFLE(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = SHUFFLE(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// Copies [count, width] to [width, columns], with zeros behind the last; both sizes are multiples of LANES.
void transpose(const float *from, int64_t count, int64_t width, int64_t columns, float *to) {
    for (int64_t j = 0; j < columns; j += LANES)
        for (int64_t i = 0; i < width; i += LANES) {
            Vector rows[LANES];
            for (int64_t k = 0; k < LANES; k++) rows[k] = j + k < count ? load(from + (j + k) * width + i) : Vector{};
            transpose_block(rows);
            for (int64_t k = 0; k < LANES; k++) store(rows[k], to + (i + k) * columns + j);
        }
}

// The products of a block's queries with the keys up to the last one of each tile, [block, columns].
void multiply_seen(const Block &block, const Segment &segment, Matrix left, int64_t width, const float *transposed,
                   int64_t columns, float *out) {
    for (int64_t row = 0; row < block.count; row += TILE) {
        int64_t rows = std::min(TILE, block.count - row);
        int64_t end = round_up(segment.last(block.query + row + rows - 1), COLUMNS);
        multiply<false>(left.skip(row), rows, width, transposed + block.begin, columns, end - block.begin,
                        out + row * columns + block.begin, columns);
    }
}

// The vector of scores at i, with `other` outside [first, last).
inline Vector load_seen(const float *scores, int64_t i, int64_t first, int64_t last, float other) {
    Vector found = load(scores + i);
    if (i >= first && i + LANES <= last) return found;
    for (int64_t lane = 0; lane < LANES; lane++)
        if (i + lane < first || i + lane >= last) found[lane] = other;
    return found;
}

// Puts exp(scaling * score - shift) in the place of the scores in [first, last), and 0 elsewhere in [begin, end). Returns
// their sum.
float exponentiate(float *scores, int64_t first, int64_t last, int64_t begin, int64_t end, float scaling, float shift) {
    Vector sum = {};
    for (int64_t i = begin; i < end; i += LANES) {
        Vector weights = {};
        if (i + LANES > first && i < last) {
            store(exponential(load(scores + i) * scaling - shift), scores + i);
            weights = load_seen(scores, i, first, last, 0);
        }
        store(weights, scores + i);
        sum += weights;
    }
    return add_up(sum);
}

float find_most(const float *scores, int64_t first, int64_t last) {
    Vector most = fill(-INFINITY);
    for (int64_t i = first / LANES * LANES; i < last; i += LANES) {
        Vector each = load_seen(scores, i, first, last, -INFINITY);
        most = each > most ? each : most;
    }
    return find_largest(most);
}

// Memory of a thread for a segment of one head: so many copies of its keys, blocks of scores, and blocks of queries.
struct Room {
    Room(int64_t columns, int64_t width, int64_t copies, int64_t scores, int64_t queries)
        : next(find_room(columns * (copies * width + scores * QUERIES) + queries * QUERIES * width)) {}

    float *take(int64_t count) {
        float *taken = next;
        next += count;
        return taken;
    }

    float *next;
};

// Attention of queries, [rows, heads * grouped * width], to keys and values, [inputs, heads * width], and for the backward
// pass the log of each query's sum of exponentials, [rows, heads * grouped].
template <typename T>
void attend_forward(const PackedAttention &a, const T *query, const T *key, const T *value, float *sums, T *out) {
    int64_t queries = a.heads * a.grouped, stride = queries * a.width, key_stride = a.heads * a.width;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(a.threads) if (a.threads > 1)
    for (int64_t number = 0; number < a.count; number++)
        for (int64_t head = 0; head < a.heads; head++) {
            Segment segment = read_segment(a, number);
            if (segment.skip == segment.length) continue;
            int64_t columns = round_up(segment.count(), COLUMNS), size = columns * a.width;
            Room room(columns, a.width, 2, 1, 2);
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
                    multiply_seen(block, segment, {own_queries, a.width, 1}, a.width, flipped, columns, scores);
                    for (int64_t row = 0; row < block.count; row++) {
                        float *line = scores + row * columns;
                        int64_t begin = segment.first(first + row, a.window), last = segment.last(first + row);
                        float most = find_most(line, begin, last) * a.scaling;
                        float total = exponentiate(line, begin, last, block.begin, block.end, a.scaling, most);
                        sums[(block.row + row) * queries + own] = most + std::log(total);
                        Vector share = fill(1 / total);
                        for (int64_t i = block.begin; i < block.end; i += LANES) store(load(line + i) * share, line + i);
                    }
                    for (int64_t row = 0; row < block.count; row += TILE) {
                        int64_t rows = std::min(TILE, block.count - row);
                        Matrix weights = {scores + row * columns + block.begin, columns, 1};
                        multiply<false>(weights, rows, segment.last(first + row + rows - 1) - block.begin,
                                        values + block.begin * a.width, a.width, a.width, results + row * a.width, a.width);
                    }
                    copy_rows(results, a.width, block.count, a.width, out + at, stride);
                }
        }
}

// The slopes of a segment's queries, keys and values for one head; those of keys and values are added to the outputs.
template <typename T>
void reverse_segment(const PackedAttention &a, const Segment &segment, int64_t head, const T *query, const T *key,
                     const T *value, const float *sums, const T *attended, const T *slopes, float *of_query, float *of_key,
                     float *of_value) {
    int64_t queries = a.heads * a.grouped, stride = queries * a.width, key_stride = a.heads * a.width;
    int64_t columns = round_up(segment.count(), COLUMNS), size = columns * a.width;
    Room room(columns, a.width, 5, 2, 2);
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
            multiply_seen(block, segment, {own_queries, a.width, 1}, a.width, flipped, columns, weights);
            multiply_seen(block, segment, {own_slopes, a.width, 1}, a.width, flipped_values, columns, of_scores);
            for (int64_t row = 0; row < block.count; row++) {
                float *line = weights + row * columns, *other = of_scores + row * columns;
                int64_t last = segment.last(first + row);
                exponentiate(line, segment.first(first + row, a.window), last, block.begin, block.end, a.scaling,
                             sums[(block.row + row) * queries + own]);
                const T *result = attended + at + row * stride;
                Vector sum = {};
                for (int64_t i = 0; i < a.width; i += LANES) sum += load(result + i) * load(own_slopes + row * a.width + i);
                float mean = add_up(sum);
                for (int64_t i = block.begin; i < block.end; i += LANES)  // nothing is computed behind the last key
                    store(i < last ? load(line + i) * (load(other + i) - mean) * a.scaling : Vector{}, other + i);
            }
            int64_t seen = segment.last(first + block.count - 1) - block.begin;
            Matrix each = {of_scores + block.begin, columns, 1}, across = {of_scores + block.begin, 1, columns};
            multiply<false>(each, block.count, seen, keys + offset, a.width, a.width, of_query + at, stride);
            multiply<true>(across, seen, block.count, own_queries, a.width, a.width, key_slopes + offset, a.width);
            multiply<true>({weights + block.begin, 1, columns}, seen, block.count, own_slopes, a.width, a.width,
                           value_slopes + offset, a.width);
        }
    for (int64_t i = 0; i < segment.count(); i++) {
        int64_t to = segment.place(i) * key_stride + head * a.width;
        for (int64_t j = 0; j < a.width; j += LANES) {
            store(load(of_key + to + j) + load(key_slopes + i * a.width + j), of_key + to + j);
            store(load(of_value + to + j) + load(value_slopes + i * a.width + j), of_value + to + j);
        }
    }
}

// The slopes of queries, keys and values, of those of the attention; those of keys and values are added to the outputs.
template <typename T>
void attend_backward(const PackedAttention &a, const T *query, const T *key, const T *value, const float *sums,
                     const T *attended, const T *slopes, float *of_query, float *of_key, float *of_value) {
    std::vector<std::vector<int64_t>> groups = group_by_prompt(a);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(a.threads) if (a.threads > 1)
    for (size_t group = 0; group < groups.size(); group++)
        for (int64_t head = 0; head < a.heads; head++)
            for (int64_t number : groups[group]) {
                Segment segment = read_segment(a, number);
                if (segment.skip < segment.length)
                    reverse_segment(a, segment, head, query, key, value, sums, attended, slopes, of_query, of_key, of_value);
            }
}

}  // namespace

#define EXPORT(T)                                                                                                            \
    void attend_forward_##T(const PackedAttention *attention, const T *query, const T *key, const T *value, float *sums,     \
                            T *out) {                                                                                        \
        attend_forward(*attention, query, key, value, sums, out);                                                            \
    }                                                                                                                        \
    void attend_backward_##T(const PackedAttention *attention, const T *query, const T *key, const T *value,                 \
                             const float *sums, const T *attended, const T *slopes, float *of_query, float *of_key,          \
                             float *of_value) {                                                                              \
        attend_backward(*attention, query, key, value, sums, attended, slopes, of_query, of_key, of_value);                  \
    }

extern "C" {
EXPORT(float32)
EXPORT(bfloat16)
}
