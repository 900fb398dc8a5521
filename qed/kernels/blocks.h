// Blocks of queries of a packed row, the products of small matrices, and what else attention forwards and backwards needs.

#pragma once

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include <map>
#include <utility>
#include <vector>

#include "training.h"
#include "vectors.h"

namespace {

constexpr int64_t COLUMNS = 16;  // of keys come in multiples of so many
constexpr int64_t QUERIES = 48;  // of a block

inline int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

typedef uint32_t Pair;  // two numbers in bfloat16, the first in the lower half

// A matrix whose rows and columns are any distance apart. A unit is a number, or a pair of neighbouring ones of a row.
template <typename Unit>
struct Matrix {
    const Unit *units;
    int64_t row, column;

    Matrix skip(int64_t rows) const { return {units + rows * row, row, column}; }
};

template <typename Sum>
inline Sum add_product(Sum sum, float left, Sum right) {
    return sum + left * right;
}

#ifdef __AVX512BF16__
typedef float Sixteen __attribute__((vector_size(64)));
typedef uint32_t SixteenPairs __attribute__((vector_size(64)));

inline Sixteen add_product(Sixteen sum, Pair left, SixteenPairs right) {
    return (Sixteen)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(left), (__m512bh)right);
}

inline Vector add_product(Vector sum, Pair left, Words right) {
    return (Vector)_mm256_dpbf16_ps((__m256)sum, (__m256bh)_mm256_set1_epi32(left), (__m256bh)right);
}
#endif

// Product of `Count` rows of units and one or two vectors of `Size` columns; with `Adds` it is added to `out`.
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
        for (int64_t row = 0; row < rows; row += TILE) {
            int64_t count = std::min(TILE, rows - row);
            Multiply<Unit> *tile = step == PANEL  ? choose<Unit, WIDE, true, Adds>(count, counts)
                                   : step == WIDE ? choose<Unit, WIDE, false, Adds>(count, counts)
                                                  : choose<Unit, LANES, false, Adds>(count, counts);
            tile(left.skip(row), right + first, right_row, units, out + row * out_row + first, out_row);
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

inline Segment read_segment(const PackedAttention &a, int64_t number) {
    Segment segment;
    std::memcpy(&segment, a.segments + 6 * number, sizeof segment);
    return segment;
}

// The numbers of the segments that add to the same slopes: those of a prompt.
inline std::vector<std::vector<int64_t>> group_by_prompt(const PackedAttention &a) {
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

inline Block find_block(const Segment &segment, int64_t query, int64_t window) {
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

// Copies [count, width] to [width, columns], with zeros behind the last; both sizes are multiples of LANES.
inline void transpose(const float *from, int64_t count, int64_t width, int64_t columns, float *to) {
    for (int64_t j = 0; j < columns; j += LANES)
        for (int64_t i = 0; i < width; i += LANES) {
            Vector rows[LANES];
            for (int64_t k = 0; k < LANES; k++) rows[k] = j + k < count ? load(from + (j + k) * width + i) : Vector{};
            transpose_block(rows);
            for (int64_t k = 0; k < LANES; k++) store(rows[k], to + (i + k) * columns + j);
        }
}

// The products of a block's queries with the keys up to the last one of each tile, [block, columns].
template <typename Unit>
void multiply_seen(const Block &block, const Segment &segment, Matrix<Unit> left, int64_t width, const Unit *transposed,
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
inline float exponentiate(float *scores, int64_t first, int64_t last, int64_t begin, int64_t end, float scaling, float shift) {
    Wide sum = {};
    for (int64_t i = begin; i < end; i += WIDE) {
        Wide weights = {};
        if (i + WIDE > first && i < last) {
            weights = exponential(load_wide(scores + i) * scaling - shift);
            if (i < first || i + WIDE > last)
                for (int64_t lane = 0; lane < WIDE; lane++)
                    if (i + lane < first || i + lane >= last) weights[lane] = 0;
        }
        store_wide(weights, scores + i);
        sum += weights;
    }
    return add_up_wide(sum);
}

inline float find_most(const float *scores, int64_t first, int64_t last) {
    Vector most = fill(-INFINITY);
    for (int64_t i = first / LANES * LANES; i < last; i += LANES) {
        Vector each = load_seen(scores, i, first, last, -INFINITY);
        most = each > most ? each : most;
    }
    return find_largest(most);
}

// Puts each key's share in the place of a block's scores, of the head `own` of queries, and the log of each query's sum of
// exponentials into `sums`.
inline void compute_shares(const PackedAttention &a, const Segment &segment, const Block &block, int64_t own, int64_t columns,
                           float *scores, float *sums) {
    for (int64_t row = 0; row < block.count; row++) {
        float *line = scores + row * columns;
        int64_t begin = segment.first(block.query + row, a.window), last = segment.last(block.query + row);
        float most = find_most(line, begin, last) * a.scaling;
        float total = exponentiate(line, begin, last, block.begin, block.end, a.scaling, most);
        sums[(block.row + row) * a.heads * a.grouped + own] = most + std::log(total);
        Vector share = fill(1 / total);
        for (int64_t i = block.begin; i < block.end; i += LANES) store(load(line + i) * share, line + i);
    }
}

// Puts each key's share in the place of a block's scores, and the slopes of the scores in the place of those of the shares.
template <typename T>
void reverse_shares(const PackedAttention &a, const Segment &segment, const Block &block, int64_t own, int64_t columns,
                    const float *sums, const T *attended, const T *slopes, float *scores, float *of_shares) {
    int64_t queries = a.heads * a.grouped;
    for (int64_t row = 0; row < block.count; row++) {
        float *line = scores + row * columns, *other = of_shares + row * columns;
        int64_t at = (block.row + row) * queries + own, last = segment.last(block.query + row);
        exponentiate(line, segment.first(block.query + row, a.window), last, block.begin, block.end, a.scaling, sums[at]);
        Vector sum = {};
        for (int64_t i = at * a.width; i < (at + 1) * a.width; i += LANES) sum += load(attended + i) * load(slopes + i);
        float mean = add_up(sum);
        for (int64_t i = block.begin; i < block.end; i += LANES)  // nothing is computed behind the last key
            store(i < last ? load(line + i) * (load(other + i) - mean) * a.scaling : Vector{}, other + i);
    }
}

// Adds the slopes of a segment's keys and values, [count, width], to those of all inputs.
inline void add_slopes(const PackedAttention &a, const Segment &segment, int64_t head, const float *key_slopes,
                       const float *value_slopes, float *of_key, float *of_value) {
    for (int64_t i = 0; i < segment.count(); i++) {
        int64_t to = (segment.place(i) * a.heads + head) * a.width;
        for (int64_t j = 0; j < a.width; j += LANES) {
            store(load(of_key + to + j) + load(key_slopes + i * a.width + j), of_key + to + j);
            store(load(of_value + to + j) + load(value_slopes + i * a.width + j), of_value + to + j);
        }
    }
}

// Calls a function for each segment that has queries and each head of keys.
template <typename Attend>
void attend_segments(const PackedAttention &a, Attend attend) {
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(a.threads) if (a.threads > 1)
    for (int64_t number = 0; number < a.count; number++)
        for (int64_t head = 0; head < a.heads; head++) {
            Segment segment = read_segment(a, number);
            if (segment.skip < segment.length) attend(segment, head);
        }
}

// Calls a function for each segment and head of keys; segments that add to the same slopes one after another.
template <typename Reverse>
void reverse_segments(const PackedAttention &a, Reverse reverse) {
    std::vector<std::vector<int64_t>> groups = group_by_prompt(a);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(a.threads) if (a.threads > 1)
    for (size_t group = 0; group < groups.size(); group++)
        for (int64_t head = 0; head < a.heads; head++)
            for (int64_t number : groups[group]) {
                Segment segment = read_segment(a, number);
                if (segment.skip < segment.length) reverse(segment, head);
            }
}

// Memory of a thread for a segment of one head, of so many numbers.
struct Room {
    explicit Room(int64_t count) : next(find_room(count)) {}

    float *take(int64_t count) {
        float *taken = next;
        next += count;
        return taken;
    }

    Pair *take_pairs(int64_t count) { return reinterpret_cast<Pair *>(take(count)); }

    float *next;
};

}  // namespace

// As `attend_forward` and `attend_backward`, with products of pairs in bfloat16. They return false where they do not compute
// the operands: in float32, of other widths than multiples of 16, and on processors without such products.
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
