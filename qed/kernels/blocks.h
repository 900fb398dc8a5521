// Blocks of queries and slices of keys of a packed row, and what else the forward and backward pass of attention need.

#pragma once

#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "products.h"
#include "training.h"

namespace {

constexpr int64_t COLUMNS = 16;  // numbers of key columns are multiples of this
constexpr int64_t QUERIES = 48;  // queries of a block
constexpr int64_t KEYS = 512;    // keys of a slice: what a block computes with them stays in the CPU's cache

inline int64_t divide_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

inline int64_t round_up(int64_t count, int64_t multiple) { return divide_up(count, multiple) * multiple; }

// A segment, and the keys that its queries attend to: those of the prompt before its own.
struct Segment {
    int64_t start, length, prompt, prompt_length, skip, row;

    int64_t count() const { return prompt_length + length; }
    int64_t place(int64_t key) const { return key < prompt_length ? prompt + key : start + key - prompt_length; }
    int64_t last(int64_t query) const { return prompt_length + query + 1; }  // after the last key of a query
    int64_t first(int64_t query, int64_t window) const { return window ? std::max<int64_t>(0, last(query) - window) : 0; }
};

inline Segment read_segment(const PackedAttention &a, int64_t number) {
    Segment segment;
    std::memcpy(&segment, a.segments + 6 * number, sizeof segment);
    return segment;
}

// The indices of the segments that add to the same gradients, grouped by their prompt.
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

// Consecutive keys of a segment. Scores have a column for each of them.
struct Slice {
    int64_t first, count;

    int64_t columns() const { return round_up(count, COLUMNS); }
    // Between rows: with a power of two, the elements of a column would compete for the same cache lines.
    int64_t stride() const { return columns() + COLUMNS; }
};

inline Slice find_slice(const Segment &segment, int64_t first, int64_t most = KEYS) {
    return {first, std::min(most, segment.count() - first)};
}

// Consecutive queries of a segment: the first one, how many, their first row, and the columns of a slice that they attend
// to, rounded to whole vectors.
struct Block {
    int64_t query, count, row, begin, end;

    bool is_empty() const { return begin >= end; }
};

inline Block find_block(const Segment &segment, const Slice &slice, int64_t query, int64_t most, int64_t window) {
    int64_t count = std::min(most, segment.length - query);
    int64_t first = std::max<int64_t>(0, segment.first(query, window) - slice.first);
    int64_t last = std::min(slice.count, segment.last(query + count - 1) - slice.first);
    return {query, count, segment.row + query - segment.skip, first / COLUMNS * COLUMNS, round_up(last, COLUMNS)};
}

// The columns of a slice that a query attends to: the first one, and the one after the last.
struct Columns {
    int64_t first, last;

    bool is_empty() const { return first >= last; }
};

inline Columns find_columns(const Segment &segment, const Slice &slice, int64_t query, int64_t window) {
    return {std::max<int64_t>(0, segment.first(query, window) - slice.first),
            std::min(slice.count, segment.last(query) - slice.first)};
}

template <typename T, typename To>
inline void copy(const T *from, int64_t width, To *to) {
    for (int64_t i = 0; i < width; i += LANES) store(load(from + i), to + i);
}

template <typename T, typename To>
void copy_rows(const T *from, int64_t stride, int64_t count, int64_t width, To *to, int64_t to_stride) {
    for (int64_t i = 0; i < count; i++) copy(from + i * stride, width, to + i * to_stride);
}

// Copies the keys or values of a head for the keys of a slice, [count, width].
template <typename Operands, typename T>
void gather(const Segment &segment, const Slice &slice, const T *states, int64_t stride, int64_t width,
            typename Operands::Unit *to) {
    int64_t of_prompt = std::min(std::max<int64_t>(0, segment.prompt_length - slice.first), slice.count);
    const T *prompt = states + segment.place(slice.first) * stride;
    const T *behind = states + segment.place(slice.first + of_prompt) * stride;
    Operands::copy(prompt, stride, of_prompt, width, to);
    Operands::copy(behind, stride, slice.count - of_prompt, width, to + of_prompt * width / Operands::SIZE);
}

// Copies the keys of a slice, [count, width] units, to [width, columns], with zeros after the last.
template <typename Unit>
void transpose(const Slice &slice, const Unit *from, int64_t width, Unit *to) {
    const float *source = reinterpret_cast<const float *>(from);
    float *target = reinterpret_cast<float *>(to);
    for (int64_t j = 0; j < slice.columns(); j += LANES)
        for (int64_t i = 0; i < width; i += LANES) {
            Vector rows[LANES];
            for (int64_t k = 0; k < LANES; k++) rows[k] = j + k < slice.count ? load(source + (j + k) * width + i) : Vector{};
            transpose_block(rows);
            for (int64_t k = 0; k < LANES; k++) store(rows[k], target + (i + k) * slice.stride() + j);
        }
}

// The products of a block's queries with the keys of a slice up to the last one that each tile sees, [block, columns].
template <typename Unit>
void multiply_seen(const Block &block, const Segment &segment, const Slice &slice, Matrix<Unit> left, int64_t width,
                   const Unit *transposed, float *out) {
    for (int64_t row = 0; row < block.count; row += TILE) {
        int64_t rows = std::min(TILE, block.count - row), stride = slice.stride();
        int64_t end = round_up(find_columns(segment, slice, block.query + row + rows - 1, 0).last, COLUMNS);
        if (end > block.begin)
            multiply<false>(left.skip(row), rows, width, transposed + block.begin, stride, end - block.begin,
                            out + row * stride + block.begin, stride);
    }
}

// The values of a slice, [count, width], weighted by the attention weights ("shares") of each query, [block, width]; with
// `Adds` they are added to the results. Units have `size` columns.
template <bool Adds, typename Unit>
void multiply_values(const Block &block, const Segment &segment, const Slice &slice, Matrix<Unit> shares, int64_t size,
                     const Unit *values, int64_t width, float *results) {
    for (int64_t row = 0; row < block.count; row += TILE) {
        int64_t rows = std::min(TILE, block.count - row);
        int64_t last = find_columns(segment, slice, block.query + row + rows - 1, 0).last;
        int64_t units = divide_up(std::max<int64_t>(0, last - block.begin), size);
        multiply<Adds>(shares.skip(row), rows, units, values + block.begin / size * width, width, width, results + row * width,
                       width);
    }
}

// The numbers of columns i to i + WIDE, with `other` in the masked ones.
inline Wide keep_seen(Wide numbers, int64_t i, const Columns &seen, float other) {
    typedef int32_t Whole __attribute__((vector_size(sizeof(Wide))));
    constexpr int32_t lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Whole column;
    std::memcpy(&column, lanes, sizeof column);
    column += int32_t(i);
    return (column >= int32_t(seen.first)) & (column < int32_t(seen.last)) ? numbers : Wide{} + other;
}

// Folds a function over the vectors of columns from `begin` to `end`: it is called with its last result, the first column,
// and as a type whether all columns are visible, so that no mask is needed.
template <typename State, typename Each>
inline State fold_columns(int64_t begin, int64_t end, const Columns &seen, State state, Each each) {
    int64_t i = begin, first = std::min(end, round_up(seen.first, WIDE)), last = std::min(end, seen.last / WIDE * WIDE);
    for (; i < first; i += WIDE) state = each(state, i, std::false_type());
    for (; i < last; i += WIDE) state = each(state, i, std::true_type());
    for (; i < end; i += WIDE) state = each(state, i, std::false_type());
    return state;
}

inline float find_most(const float *scores, const Columns &seen) {
    auto keep_largest = [&](Wide most, int64_t i, auto is_whole) {
        Wide each = load_wide(scores + i);
        if (!is_whole) each = keep_seen(each, i, seen, -INFINITY);
        return each > most ? each : most;
    };
    return find_largest(fold_columns(seen.first / WIDE * WIDE, seen.last, seen, Wide{} - INFINITY, keep_largest));
}

// The softmax of a block's scores, slice by slice (arXiv 2205.14135).
template <typename Operands>
struct Softmax {
    typedef typename Operands::Unit Unit;

    float most[QUERIES], total[QUERIES];  // the largest exponents so far, and the sums of exponentials

    explicit Softmax(int64_t count) {
        std::fill(most, most + count, -INFINITY);
        std::fill(total, total + count, 0.0f);
    }

    // Replaces each key's score by its exponential, as rows of operands, and rescales the results of earlier slices,
    // [block, width], when the largest exponent grows.
    void add(const PackedAttention &a, const Segment &segment, const Slice &slice, const Block &block, float *scores,
             float *results) {
        Unit *units = reinterpret_cast<Unit *>(scores);
        const float scaling = a.scaling;
        for (int64_t row = 0; row < block.count; row++) {
            float *line = scores + row * slice.stride();
            Columns seen = find_columns(segment, slice, block.query + row, a.window);
            float largest = std::max(most[row], find_most(line, seen) * scaling);
            float shift = largest == -INFINITY ? 0 : largest;  // no key with a weight yet
            Wide sums = fold_columns(block.begin, block.end, seen, Wide{}, [&](Wide sums, int64_t i, auto is_whole) {
                Wide weights = exponential(load_wide(line + i) * scaling - shift);
                if (!is_whole) weights = keep_seen(weights, i, seen, 0);
                Operands::write_row(weights, row, i, slice, units);
                return sums + weights;
            });
            if (largest != most[row] && most[row] != -INFINITY) {
                float scale = std::exp(most[row] - largest), *result = results + row * a.width;
                for (int64_t i = 0; i < a.width; i += LANES) store(load(result + i) * scale, result + i);
                total[row] *= scale;
            }
            total[row] += add_up(sums);
            most[row] = largest;
        }
    }

    // Writes `count` results, divided by their sums, and the log of each query's sum of exponentials; rows are `stride` and
    // `queries` apart.
    template <typename T>
    void divide(int64_t count, const float *results, int64_t width, T *out, int64_t stride, float *sums, int64_t queries) const {
        for (int64_t row = 0; row < count; row++) {
            float share = 1 / total[row];
            for (int64_t i = 0; i < width; i += LANES) store(load(results + row * width + i) * share, out + row * stride + i);
            sums[row * queries] = most[row] + std::log(total[row]);
        }
    }
};

// Replaces a block's scores by the attention weights, and the gradients of the weights by those of the scores, both as
// columns of operands; writes the gradients of the scores also as rows.
template <typename Operands>
void reverse_shares(const PackedAttention &a, const Segment &segment, const Slice &slice, const Block &block, int64_t own,
                    const float *sums, const float *means, float *scores, float *of_shares, typename Operands::Unit *rows) {
    typedef typename Operands::Unit Unit;
    constexpr int64_t SIZE = Operands::SIZE;
    const float scaling = a.scaling;
    for (int64_t first = 0; first < block.count; first += SIZE) {
        Columns seen[SIZE] = {};  // none after the last query
        float shift[SIZE] = {}, mean[SIZE] = {};
        for (int64_t k = 0; k < SIZE && first + k < block.count; k++) {
            int64_t at = (block.row + first + k) * a.heads * a.grouped + own;
            seen[k] = find_columns(segment, slice, block.query + first + k, a.window);
            shift[k] = sums[at];
            mean[k] = means[at];
        }
        const float *line = scores + first * slice.stride(), *other = of_shares + first * slice.stride();
        Columns all = seen[0];
        for (int64_t k = 1; k < SIZE; k++) all = {std::max(all.first, seen[k].first), std::min(all.last, seen[k].last)};
        fold_columns(block.begin, block.end, all, 0, [&](int, int64_t i, auto is_whole) {
            Wide shares[SIZE], of_scores[SIZE];
            for (int64_t k = 0; k < SIZE; k++) {
                int64_t at = k * slice.stride() + i;
                shares[k] = exponential(load_wide(line + at) * scaling - shift[k]);
                of_scores[k] = shares[k] * (load_wide(other + at) - mean[k]) * scaling;
                if (is_whole) continue;
                shares[k] = keep_seen(shares[k], i, seen[k], 0);
                of_scores[k] = keep_seen(of_scores[k], i, seen[k], 0);
            }
            Operands::write_columns(shares, first, i, slice, reinterpret_cast<Unit *>(scores));
            Operands::write_columns(of_scores, first, i, slice, reinterpret_cast<Unit *>(of_shares));
            Operands::write_rows(of_scores, first, i, slice, rows);
            return 0;
        });
    }
}

// Adds the gradients of a slice's keys and values, [count, width], to those of all tokens.
inline void add_slopes(const PackedAttention &a, const Segment &segment, const Slice &slice, int64_t head,
                       const float *key_slopes, const float *value_slopes, float *of_key, float *of_value) {
    for (int64_t i = 0; i < slice.count; i++) {
        int64_t to = (segment.place(slice.first + i) * a.heads + head) * a.width;
        for (int64_t j = 0; j < a.width; j += LANES) {
            store(load(of_key + to + j) + load(key_slopes + i * a.width + j), of_key + to + j);
            store(load(of_value + to + j) + load(value_slopes + i * a.width + j), of_value + to + j);
        }
    }
}

// The columns that a block attends to, as rows of operands: each unit belongs to one column.
template <typename Unit>
Matrix<Unit> view_columns(const Block &block, const Slice &slice, const Unit *from) {
    return {from + block.begin, 1, slice.stride()};
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

// Calls a function for each slice of each segment and each head of keys; segments that add to the same gradients follow
// each other. A slice has at most `Size` keys.
template <int64_t Size = KEYS, typename Reverse>
void reverse_slices(const PackedAttention &a, Reverse reverse) {
    std::vector<std::vector<int64_t>> groups = group_by_prompt(a);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(a.threads) if (a.threads > 1)
    for (size_t group = 0; group < groups.size(); group++)
        for (int64_t head = 0; head < a.heads; head++)
            for (int64_t number : groups[group]) {
                Segment segment = read_segment(a, number);
                if (segment.skip >= segment.length) continue;
                for (int64_t first = 0; first < segment.count(); first += Size)
                    reverse(segment, find_slice(segment, first, Size), head);
            }
}

// For each query the weighted mean of the gradients of its attention weights: result · gradient. [rows, heads * grouped]
template <typename T>
std::vector<float> find_means(const PackedAttention &a, const T *attended, const T *slopes) {
    int64_t queries = a.heads * a.grouped, rows = 0;
    for (int64_t number = 0; number < a.count; number++) {
        Segment segment = read_segment(a, number);
        rows = std::max(rows, segment.row + segment.length - segment.skip);
    }
    std::vector<float> means(rows * queries);
#pragma omp parallel for num_threads(a.threads) if (a.threads > 1)
    for (int64_t at = 0; at < rows * queries; at++) {
        Vector sum = {};
        for (int64_t i = at * a.width; i < (at + 1) * a.width; i += LANES) sum += load(attended + i) * load(slopes + i);
        means[at] = add_up(sum);
    }
    return means;
}

// Memory of a thread for `count` numbers of one head of a segment, aligned to a cache line.
struct Room {
    explicit Room(int64_t count) : next(find_room(count + 16)) {
        next += -reinterpret_cast<uintptr_t>(next) % 64 / sizeof *next;
    }

    template <typename Unit>
    Unit *take(int64_t count) {
        Unit *taken = reinterpret_cast<Unit *>(next);
        next += count * sizeof(Unit) / sizeof *next;
        return taken;
    }

    float *next;
};

}  // namespace
