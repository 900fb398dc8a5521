// Attention of the newest token of each row, over a KV cache.

#include "decoding.h"
#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 256;      // columns of a block, whose values stay in the CPU's cache
constexpr int64_t QUERIES = 4;      // queries that read a key together
constexpr int SUMS = WIDE > LANES ? 16 : 8;  // vectors of results that stay in registers
constexpr int64_t LINE = 64;        // bytes of a cache line
constexpr int64_t AHEAD = 128;      // columns of the next keys that are prefetched
constexpr int64_t LARGE = 1 << 15;  // key elements from which on several threads share the rows

// Columns of keys and values that one head of a row attends to.
template <typename T>
struct Segment {
    const T *keys, *values;
    int64_t count;
    const T *next;  // keys that are read after this segment; their first `ahead` columns are prefetched
    int64_t ahead;
};

// RoPE (arXiv 2104.09864), after an RMSNorm if `norm` is not null.
template <typename T>
void rotate(const T *from, const float *norm, float epsilon, const float *cos, const float *sin, int64_t width, float *to) {
    float scale = 1;
    if (norm != nullptr) {
        Vector sum = {};
        for (int64_t i = 0; i < width; i += LANES) sum += load(from + i) * load(from + i);
        scale = 1 / std::sqrt(add_up(sum) / width + epsilon);
    }
    float states[width];
    for (int64_t i = 0; i < width; i++) {
        float state = widen(from[i]) * scale;
        if (norm != nullptr) {
            T rounded;
            narrow(state, &rounded);
            state = widen(rounded) * norm[i];
        }
        states[i] = state;
    }
    int64_t half = width / 2;
    for (int64_t i = 0; i < width; i++) to[i] = states[i] * cos[i] + states[i < half ? i + half : i - half] * sin[i];
}

// The number of keys that `Count` queries read together, so that their scores fill a vector.
template <int Count>
constexpr int64_t TOGETHER = LANES / (Count == 3 ? 4 : Count);

// Scores of `Count` queries with `columns` keys: `TOGETHER` of them, or fewer if not `Whole`.
template <int Count, bool Whole, typename T>
inline void score_columns(const float *queries, const T *keys, int64_t columns, int64_t width, float scaling, float *scores,
                          int64_t stride) {
    constexpr int64_t COLUMNS = TOGETHER<Count>;
    Vector sums[LANES] = {};
    for (int64_t i = 0; i < width; i += LANES)
        for (int64_t j = 0; j < COLUMNS; j++) {
            Vector key = load(keys + (Whole ? j : std::min(j, columns - 1)) * width + i);
            for (int query = 0; query < Count; query++) sums[query * COLUMNS + j] += key * load(queries + query * width + i);
        }
    Vector found = add_up_each(sums) * scaling;
    for (int query = 0; query < Count; query++)
        std::memcpy(scores + query * stride, reinterpret_cast<float *>(&found) + query * COLUMNS,
                    (Whole ? COLUMNS : columns) * sizeof(float));
}

// Scores of `Count` queries with the keys of a segment, [Count, columns]. A key's score does not depend on its position.
template <int Count, typename T>
void score(const float *queries, Segment<T> segment, int64_t width, float scaling, float *scores, int64_t stride) {
    constexpr int64_t COLUMNS = TOGETHER<Count>;
    int64_t column = 0;
    for (; column + COLUMNS <= segment.count; column += COLUMNS) {
        const T *keys = segment.keys + column * width, *values = segment.values + column * width;
        for (int64_t i = 0; i < COLUMNS * width; i += LINE / sizeof(T)) __builtin_prefetch(values + i);
        score_columns<Count, true>(queries, keys, COLUMNS, width, scaling, scores + column, stride);
    }
    if (column < segment.count)
        score_columns<Count, false>(queries, segment.keys + column * width, segment.count - column, width, scaling,
                                    scores + column, stride);
}

// Adds the weighted values of a segment to `Count` results, `Parts` vectors of each at a time.
template <typename V, int Count, int Parts, typename T>
void add_values(const float *weights, int64_t stride, Segment<T> segment, int64_t width, int64_t place, float *out) {
    constexpr int64_t SIZE = sizeof(V) / sizeof(float), LINES = LINE / sizeof(T);
    V sums[Count][Parts];
    for (int query = 0; query < Count; query++)
        for (int part = 0; part < Parts; part++) sums[query][part] = load_as<V>(out + query * width + place + part * SIZE);
    for (int64_t column = 0; column < segment.count; column++) {
        const T *value = segment.values + column * width + place;
        if (column < segment.ahead)
            for (int64_t i = 0; i < Parts * SIZE; i += LINES) __builtin_prefetch(segment.next + column * width + place + i);
        for (int part = 0; part < Parts; part++) {
            V states = load_as<V>(value + part * SIZE);
            for (int query = 0; query < Count; query++)
                sums[query][part] += (V{} + weights[query * stride + column]) * states;
        }
    }
    for (int query = 0; query < Count; query++)
        for (int part = 0; part < Parts; part++) store_as(sums[query][part], out + query * width + place + part * SIZE);
}

// The same for all positions from one on that fill whole vectors; returns the position after them.
template <typename V, int Count, int Parts, typename T>
int64_t add_places(const float *weights, int64_t stride, Segment<T> segment, int64_t width, int64_t place, float *out) {
    constexpr int64_t SIZE = sizeof(V) / sizeof(float);
    for (; place + Parts * SIZE <= width; place += Parts * SIZE)
        add_values<V, Count, Parts>(weights, stride, segment, width, place, out);
    if constexpr (Parts > 1) return add_places<V, Count, Parts / 2>(weights, stride, segment, width, place, out);
    return place;
}

// Attention of `Count` queries of a head over two segments of columns, [Count, width].
template <int Count, typename T>
void attend_together(const float *queries, const Segment<T> *segments, int64_t width, float scaling, float *scores,
                     float *out) {
    int64_t columns = segments[0].count + segments[1].count, stride = (columns + LANES - 1) / LANES * LANES;
    score<Count>(queries, segments[0], width, scaling, scores, stride);
    score<Count>(queries, segments[1], width, scaling, scores + segments[0].count, stride);
    float totals[Count];
    for (int query = 0; query < Count; query++) {
        float *own = scores + query * stride;
        for (int64_t column = columns; column < stride; column++) own[column] = -INFINITY;
        Vector most = load(own), total = {};
        for (int64_t column = LANES; column < stride; column += LANES) {
            Vector next = load(own + column);
            most = next > most ? next : most;
        }
        float largest = find_largest(most);
        for (int64_t column = 0; column < stride; column += LANES) {
            Vector weights = exponential(load(own + column) - largest);
            store(weights, own + column);
            total += weights;
        }
        totals[query] = add_up(total);
    }
    std::memset(out, 0, Count * width * sizeof(float));
    for (int64_t part = 0; part < 2; part++) {
        const float *weights = scores + (part ? segments[0].count : 0);
        for (int64_t first = 0; first < segments[part].count; first += BLOCK) {
            Segment<T> block = {nullptr, segments[part].values + first * width,
                                std::min(BLOCK, segments[part].count - first), segments[part].next,
                                first ? 0 : segments[part].ahead};
            const float *own = weights + first;
            constexpr int MOST = Count == 1 ? 8 : Count == 2 ? SUMS / 2 : SUMS / 4;
            int64_t place = add_places<Wide, Count, MOST>(own, stride, block, width, 0, out);
            if (place < width) add_places<Vector, Count, 1>(own, stride, block, width, place, out);
        }
    }
    for (int query = 0; query < Count; query++)
        for (int64_t i = 0; i < width; i++) out[query * width + i] /= totals[query];
}

template <typename T>
void attend_head(const float *queries, int64_t count, const Segment<T> *segments, int64_t width, float scaling,
                 float *scores, float *out) {
    for (; count >= QUERIES; count -= QUERIES, queries += QUERIES * width, out += QUERIES * width)
        attend_together<QUERIES>(queries, segments, width, scaling, scores, out);
    if (count == 3) attend_together<3>(queries, segments, width, scaling, scores, out);
    if (count == 2) attend_together<2>(queries, segments, width, scaling, scores, out);
    if (count == 1) attend_together<1>(queries, segments, width, scaling, scores, out);
}

}  // namespace

template <typename T>
static void attend(const Rows &rows, const Attention &a, const T *query, const T *key, const T *value, T *out) {
    int64_t all = a.heads * a.grouped * a.width;
    int64_t numbers = rows.count * a.heads * a.width * (rows.column + rows.prefix_columns);
#pragma omp parallel for num_threads(a.threads) if (a.threads > 1 && numbers > LARGE)
    for (int64_t item = 0; item < rows.count * a.heads; item++) {
        int64_t row = item / a.heads, head = item % a.heads;
        T *to = out + row * all + head * a.grouped * a.width;
        if (rows.finished[row]) {
            std::memset(static_cast<void *>(to), 0, a.grouped * a.width * sizeof(T));
            continue;
        }
        // A row's own columns end at the new one; with a shared prefix they begin after it.
        bool shared = rows.prefix_columns > 0;
        int64_t before = shared ? rows.prefix_lengths[rows.owner[row]] : 0;
        int64_t own = rows.prompts[row] + rows.outputs[row] - before;
        if (a.window && own > a.window) own = a.window;
        int64_t first = rows.column + 1 - own;
        float *room = find_room((a.grouped * a.width * 2 + a.width) + QUERIES * (own + before + LANES));
        float *queries = room, *results = queries + a.grouped * a.width, *rotated = results + a.grouped * a.width;
        float *scores = rotated + a.width;
        int64_t angle = (rows.prompts[row] + rows.outputs[row] - 1) * a.width;  // the angles of the new token's position
        const float *cos = a.cos + angle, *sin = a.sin + angle;
        T *keys = static_cast<T *>(a.keys) + row * a.cache_row + head * a.cache_head;
        T *values = static_cast<T *>(a.values) + row * a.cache_row + head * a.cache_head;
        rotate(key + row * a.key_stride + head * a.width, a.key_norm, a.key_epsilon, cos, sin, a.width, rotated);
        for (int64_t i = 0; i < a.width; i++) narrow(rotated[i], keys + rows.column * a.width + i);
        std::memcpy(static_cast<void *>(values + rows.column * a.width), value + row * a.value_stride + head * a.width,
                    a.width * sizeof(T));
        for (int64_t i = 0; i < a.grouped; i++) {
            const T *from = query + row * a.query_stride + (head * a.grouped + i) * a.width;
            rotate(from, a.query_norm, a.query_epsilon, cos, sin, a.width, queries + i * a.width);
        }
        for (int64_t i = 0; i < a.grouped * a.width; i++) {  // as in fused attention, operands have the cache's precision
            T rounded;
            narrow(queries[i], &rounded);
            queries[i] = widen(rounded);
        }
        const T *begin = keys + first * a.width;
        const T *next = begin + (head + 1 < a.heads ? a.cache_head : a.cache_row - head * a.cache_head);
        Segment<T> segments[2] = {{}, {begin, values + first * a.width, own, next, std::min(own, AHEAD)}};
        if (shared) {
            int64_t start = rows.owner[row] * a.prefix_row + head * a.prefix_head;
            start += (rows.prefix_columns - before) * a.width;
            segments[0] = {static_cast<const T *>(a.prefix_keys) + start, static_cast<const T *>(a.prefix_values) + start,
                           before, begin, std::min(std::min(before, own), AHEAD)};
        }
        attend_head(queries, a.grouped, segments, a.width, a.scaling, scores, results);
        for (int64_t i = 0; i < a.grouped * a.width; i++) narrow(results[i], to + i);
    }
}

extern "C" {

void attend_float32(const Rows *rows, const Attention *attention, const float *query, const float *key,
                    const float *value, float *out) {
    attend(*rows, *attention, query, key, value, out);
}

void attend_bfloat16(const Rows *rows, const Attention *attention, const bfloat16 *query, const bfloat16 *key,
                     const bfloat16 *value, bfloat16 *out) {
    attend(*rows, *attention, query, key, value, out);
}
}
