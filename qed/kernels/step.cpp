// A whole decoding step of a model in C++. T is the precision of everything except states and norms.

#include <algorithm>

#include "decoding.h"

namespace {

constexpr int64_t SMALL = 1 << 21;  // the most weights that stay in the CPU's cache: then each thread computes its own rows
constexpr int64_t MOST = 128;       // the most rows that are computed together, so that their states stay there too
constexpr int64_t LEAST = 8;        // the fewest rows that are worth a thread

// `count` rows from `first` on.
Rows take_rows(const Rows &rows, int64_t first, int64_t count) {
    Rows part = rows;
    part.count = count;
    part.prompts += first;
    part.outputs += first;
    if (part.owner != nullptr) part.owner += first;
    part.finished += first;
    return part;
}

template <typename T>
Attention take_rows(const Attention &attention, int64_t first, int64_t threads) {
    Attention part = attention;
    part.threads = threads;
    part.keys = static_cast<T *>(part.keys) + first * part.cache_row;
    part.values = static_cast<T *>(part.values) + first * part.cache_row;
    return part;
}

#define OVERLOAD(T)                                                                                                          \
    inline void multiply(const T *states, int64_t rows, const Product &product, int64_t threads, T *out) {                   \
        multiply_##T(states, rows, product.inputs, &product, threads, out);                                                  \
    }                                                                                                                        \
    inline void attend(const Rows &rows, const Attention &attention, const T *query, const T *key, const T *value, T *out) { \
        attend_##T(&rows, &attention, query, key, value, out);                                                               \
    }                                                                                                                        \
    inline void norm(float *states, const T *changes, const float *weight, float epsilon, int64_t rows, int64_t width,       \
                     int64_t threads, T *out) {                                                                              \
        norm_##T(states, changes, weight, epsilon, rows, width, threads, out);                                               \
    }                                                                                                                        \
    inline void gate(const T *joined, int64_t stride, int64_t rows, int64_t width, int64_t threads, T *out) {                \
        gate_##T(joined, joined + width, stride, rows, width, threads, out);                                                 \
    }

OVERLOAD(float32)
OVERLOAD(bfloat16)

// Numbers that a row needs besides twice the width: the widest result of joined products, and attention or gated states.
struct Sizes {
    int64_t wide, inner;
};

Sizes find_sizes(const Model &model) {
    Sizes sizes = {0, 0};
    for (int64_t i = 0; i < model.count; i++) {
        const Layer &layer = model.layers[i];
        sizes.wide = std::max({sizes.wide, layer.project.outputs, layer.gate_and_up.outputs});
        sizes.inner = std::max({sizes.inner, layer.out.inputs, layer.down.inputs});
    }
    return sizes;
}

int64_t count_weights(const Model &model) {
    int64_t total = model.head.outputs * model.head.inputs;
    for (int64_t i = 0; i < model.count; i++)
        for (const Product *each : {&model.layers[i].project, &model.layers[i].out, &model.layers[i].gate_and_up,
                                    &model.layers[i].down})
            total += each->outputs * each->inputs;
    return total;
}

// Computes `count` rows from `first` on, as `step` does.
template <typename T>
void compute_rows(const Model &model, const Rows &rows, int64_t first, int64_t count, int64_t threads, float *states, T *room,
                  T *logits) {
    int64_t width = model.width;
    Sizes sizes = find_sizes(model);
    Rows part = take_rows(rows, first, count);
    states += first * width;
    logits += first * model.head.outputs;
    T *normed = room + first * (2 * width + sizes.wide + sizes.inner), *change = normed + count * width;
    T *wide = change + count * width, *inner = wide + count * sizes.wide;
    const T *added = nullptr;
    for (int64_t i = 0; i < model.count; i++) {
        const Layer &layer = model.layers[i];
        norm(states, added, layer.before, layer.before_epsilon, count, width, threads, normed);
        multiply(normed, count, layer.project, threads, wide);
        Attention attention = take_rows<T>(layer.attention, first, threads);
        int64_t keys = attention.heads * attention.width, queries = keys * attention.grouped;
        attend(part, attention, wide, wide + queries, wide + queries + keys, inner);
        multiply(inner, count, layer.out, threads, change);
        norm(states, change, layer.between, layer.between_epsilon, count, width, threads, normed);
        multiply(normed, count, layer.gate_and_up, threads, wide);
        gate(wide, layer.gate_and_up.outputs, count, layer.down.inputs, threads, inner);
        multiply(inner, count, layer.down, threads, change);
        added = change;
    }
    norm(states, added, model.norm, model.epsilon, count, width, threads, normed);
    multiply(normed, count, model.head, threads, logits);
}

// Computes the logits, [rows, outputs of the head], of the next tokens.
//
// `states` are the embeddings of the last tokens, [rows, width], and are overwritten. `room` is memory for the following of
// all rows: the norm and the change of the states, the widest result of a layer's joined products, and its attention or
// gated states.
template <typename T>
void step(const Model &model, const Rows &rows, float *states, T *room, T *logits) {
    int64_t count = rows.count, threads = model.threads, together = count;
    if (count_weights(model) <= SMALL) together = std::max(LEAST, std::min(MOST, (count + threads - 1) / threads));
    if (together >= count) return compute_rows(model, rows, 0, count, threads, states, room, logits);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < count; first += together)
        compute_rows(model, rows, first, std::min(together, count - first), 1, states, room, logits);
}

}  // namespace

extern "C" {

void step_float32(const Model *model, const Rows *rows, float *states, float *room, float *logits) {
    step(*model, *rows, states, room, logits);
}

void step_bfloat16(const Model *model, const Rows *rows, float *states, bfloat16 *room, bfloat16 *logits) {
    step(*model, *rows, states, room, logits);
}
}
